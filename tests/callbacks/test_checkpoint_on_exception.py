"""``Checkpoint(save_on_exception=True)``: no step before an error is lost, where the state is whole."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchmetrics import MeanMetric

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping

pytestmark = pytest.mark.launch  # for its length

X = torch.linspace(-1, 1, 24).reshape(24, 1)
STEPS = 6  # an epoch


class Breaks(Exception):
    """What the parts of these runs raise."""


class Net(TrainModule):
    """Draws in the model, counts in an epoch's mean, and validates with an object that has a state."""

    def __init__(self, fails=""):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.mean, self.fails = MeanMetric(), fails

    def training_step(self, batch):
        if self.fails == "training_step" and self.global_step == 9:
            raise Breaks
        return (self.net(batch) - batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.mean.update(self.net(batch))
        if self.fails == "validation" and self.global_step == 9 and batch_idx == 2:
            raise Breaks
        self.log("mean", self.mean)
        self.log("score", float(self.epoch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


class Samples(Dataset):
    """The sample of a step in the second epoch cannot be read."""

    def __init__(self, fails):
        self.fails, self.epoch = fails, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if self.fails and self.epoch == 1 and index == 13:
            raise Breaks
        return X[index] + 0.01 * torch.randn(1)


class Stream(IterableDataset):
    def __init__(self, fails):
        self.fails, self.epoch = fails, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for index, x in enumerate(X):
            if self.fails and self.epoch == 1 and index == 13:
                raise Breaks
            yield x + 0.01 * torch.randn(1)


class Raises(Callback):
    """At step 9, or in the epoch after it."""

    def __init__(self, where=""):
        self.where = where

    def _meet(self, hook, trainer):
        if hook == self.where and trainer.global_step >= 9:
            raise Breaks

    def on_step_boundary(self, trainer):
        self._meet("on_step_boundary", trainer)

    def on_train_epoch_start(self, trainer):
        self._meet("on_train_epoch_start", trainer)

    def on_step_end(self, trainer, outputs):
        self._meet("on_step_end", trainer)

    def on_train_epoch_end(self, trainer):
        self._meet("on_train_epoch_end", trainer)

    def on_validation_end(self, trainer):
        self._meet("on_validation_end", trainer)


def fit(folder, fails="", resume=None, workers=0, kind="map", save=True, **settings):
    module = Net(fails)
    fails_to_read = fails == "reading"
    data = Stream(fails_to_read) if kind == "stream" else Samples(fails_to_read)
    loader = DataLoader(data, 4, shuffle=kind == "map", num_workers=workers)
    trainer = Trainer(
        accelerator="cpu",
        progress=False,
        run_dir=folder,
        name="n",
        max_epochs=3,
        validate_every=3,
        callbacks=[
            Raises(fails),
            EarlyStopping("val/score", mode="max", patience=50),
            Checkpoint("1000ep", save_on_exception=save, **settings),
        ],
    )
    trainer.fit(module, loader, DataLoader(X, 8), resume=resume)
    return module, trainer


def rows(trainer):
    measured = ("perf/", "time")
    kept = Run(trainer.folder).rows
    return [{k: v for k, v in row.items() if not k.startswith(measured)} for row in kept]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights and rows of a run that nothing happened to, by kind of data and number of workers."""
    found = {}

    def of(kind, workers):
        if (kind, workers) not in found:
            folder = tmp_path_factory.mktemp("whole")
            module, trainer = fit(folder, kind=kind, workers=workers)
            found[kind, workers] = module.state_dict(), rows(trainer)
        return found[kind, workers]

    return of


WHOLE = {
    "reading": None,  # whichever step the shuffled sample is of
    "validation": 9,
    "on_step_boundary": 9,
    "on_train_epoch_start": 12,
}


@pytest.mark.parametrize(
    ("fails", "kind", "workers"),
    [
        pytest.param("reading", "map", 0, marks=pytest.mark.soak),
        ("reading", "map", 2),
        pytest.param("reading", "stream", 0, marks=pytest.mark.soak),
        ("reading", "stream", 1),
        ("validation", "map", 0),
        pytest.param("validation", "stream", 0, marks=pytest.mark.soak),
        ("on_step_boundary", "stream", 0),
        ("on_train_epoch_start", "map", 0),
    ],
)
def test_a_run_resumes_from_the_step_before_the_error(whole, tmp_path, capsys, fails, kind, workers):
    weights, expected = whole(kind, workers)
    with pytest.raises(Breaks):
        fit(tmp_path / "broken", fails, kind=kind, workers=workers)
    saved = Run(tmp_path / "broken" / "n" / "1").latest
    step = int(saved.name.rpartition("-")[2])
    assert step == WHOLE[fails] or (fails == "reading" and STEPS <= step < 2 * STEPS)
    assert f"saved {saved.name}, the step before the error" in capsys.readouterr().out
    module, trainer = fit(tmp_path / "broken", resume="latest", kind=kind, workers=workers)
    assert all(map(torch.equal, module.state_dict().values(), weights.values()))
    assert rows(trainer) == expected


@pytest.mark.parametrize(
    "fails", ["training_step", "on_step_end", "on_train_epoch_end", "on_validation_end"]
)
def test_a_state_that_is_not_whole_is_not_saved(tmp_path, fails):
    with pytest.raises(Breaks):
        fit(tmp_path, fails)
    assert Run(tmp_path / "n" / "1").latest is None


def test_it_can_be_switched_off(tmp_path):
    with pytest.raises(Breaks):
        fit(tmp_path, "on_step_boundary", save=False)
    assert Run(tmp_path / "n" / "1").latest is None


def test_weights_alone_are_not_saved(tmp_path):
    with pytest.raises(Breaks):
        fit(tmp_path, "on_step_boundary", weights_only=True)
    assert Run(tmp_path / "n" / "1").checkpoints == []


def test_a_save_that_fails_is_a_note_on_the_error(tmp_path, monkeypatch):
    from paceline.trainer.checkpoint import writer

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.commit, "commit", full, raising=True)
    with pytest.raises(Breaks) as found:
        fit(tmp_path, "on_step_boundary")
    assert "No space left on device" in " ".join(found.value.__notes__)


def test_the_error_of_a_save_does_not_start_another(tmp_path, monkeypatch):
    from paceline.trainer.checkpoint import writer

    tried = []

    def full(*_, **__):
        tried.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.commit, "commit", full, raising=True)
    trainer = Trainer(
        max_epochs=1, run_dir=tmp_path, progress=False, callbacks=Checkpoint(2, background=False)
    )
    with pytest.raises(PacelineError, match="No space left"):
        trainer.fit(Net(), DataLoader(X, 4))
    assert len(tried) == 1
