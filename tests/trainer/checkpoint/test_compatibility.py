"""What differs between a run and the checkpoint it would resume from: one report, nothing by position."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping


class Net(TrainModule):
    def __init__(self, width=4, extra=False, optimizer="Adam", groups=1, schedule=False):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        if extra:
            self.extra = nn.Linear(2, 2)
        self.options = optimizer, groups, schedule
        self.seen = []

    def training_step(self, batch):
        self.seen += batch[0][:, 0].tolist()
        loss = self.head(self.net(batch[0])).square().mean()
        return loss + self.extra(batch[0][:, :2]).square().mean() if hasattr(self, "extra") else loss

    def validation_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def configure_optimizers(self):
        name, groups, schedule = self.options
        parameters = list(self.parameters())
        parts = [{"params": parameters[:1]}, {"params": parameters[1:]}] if groups == 2 else parameters
        if groups == "other":
            parts = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        optimizer = getattr(torch.optim, name)(parts, lr=0.01)
        return (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5)) if schedule else optimizer


class Computed(Dataset):
    """Data that is computed: its content cannot be looked at without reading it."""

    def __init__(self, samples, shift=0.0):
        self.samples, self.shift = samples, shift

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return (torch.full((3,), float(index) + self.shift),)


def data(shift=0.0, samples=12):
    return DataLoader(TensorDataset(torch.arange(3.0 * samples).reshape(samples, 3) + shift), 4)


def fit(folder, module=None, loader=None, callbacks=(), max_steps=5, **options):
    trainer = Trainer(
        accelerator="cpu", progress=False, loggers=False, run_dir=folder, name="n",
        callbacks=[*callbacks, Checkpoint(1, keep=None)], max_steps=max_steps,
    )  # fmt: skip
    module = module or Net()
    return module, trainer.fit(module, loader or data(), data(), **options)


@pytest.mark.fault(26)
def test_all_differences_are_one_report(tmp_path):
    fit(tmp_path)
    changed = Net(width=5, extra=True, optimizer="SGD", schedule=True)
    before = {k: v.clone() for k, v in changed.state_dict().items()}
    with pytest.raises(PacelineError) as caught:
        fit(tmp_path, changed, data(shift=1.0), resume="latest", max_steps=9)
    text = str(caught.value)
    assert "cannot resume from this checkpoint" in text
    for printed in ("missing in the checkpoint: extra.weight", "net.weight: shape [4, 3]", "more"):
        assert printed in text, printed
    assert len(text.splitlines()) <= 12
    assert all(torch.equal(v, before[k]) for k, v in changed.state_dict().items())


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    ("then", "now", "printed"),
    [
        ({}, {"optimizer": "SGD"}, "optimizer: Adam in the checkpoint, SGD now"),
        ({}, {"groups": 2}, "Adam: 1 parameter groups in the checkpoint, 2 now"),
        (
            {"groups": 2},
            {"groups": "other"},
            "Adam, group 0, net.bias: not in this group of the checkpoint",
        ),
        ({}, {"schedule": True}, "learning rate schedules: none in the checkpoint, StepLR now"),
        ({"schedule": True}, {}, "learning rate schedules: StepLR in the checkpoint, none now"),
    ],
)
def test_optimizers_and_schedules(then, now, printed, tmp_path):
    fit(tmp_path, Net(**then))
    with pytest.raises(PacelineError) as caught:
        fit(tmp_path, Net(**now), resume="latest", max_steps=9)
    assert printed in str(caught.value)


@pytest.mark.fault(25)
@pytest.mark.parametrize(
    ("loader", "printed"),
    [
        (data(shift=1.0), "training data: content"),
        (data(samples=16), "training data: samples 12 in the checkpoint, 16 now"),
        (
            DataLoader(Computed(12), 4),
            "training data: dataset TensorDataset in the checkpoint, Computed now",
        ),
    ],
)
def test_other_data_is_refused_unless_allowed_by_name(loader, printed, tmp_path, capsys):
    fit(tmp_path)
    with pytest.raises(PacelineError) as caught:
        fit(tmp_path, loader=loader, resume="latest", max_steps=9)
    assert printed in str(caught.value)
    assert 'allow="data"' in str(caught.value)
    capsys.readouterr()
    module, _ = fit(tmp_path, loader=loader, resume="latest", allow="data", max_steps=8)
    assert printed in capsys.readouterr().out
    # The epoch under way began again: three steps, the first samples of the other data.
    assert len(module.seen) == 12
    assert sorted(module.seen)[0] == sorted(loader.dataset[i][0][0].item() for i in range(12))[0]


def test_what_may_be_allowed_has_names(tmp_path):
    with pytest.raises(PacelineError, match=r"'model'(.|\n)*'data'"):
        fit(tmp_path, allow="model")


def test_the_same_data_continues_without_a_word(tmp_path, capsys):
    fit(tmp_path, loader=DataLoader(Computed(12), 4))
    fit(tmp_path, loader=DataLoader(Computed(12), 4), resume="latest", max_steps=9)
    assert "note:" not in capsys.readouterr().out


class Counts(Callback):
    def __init__(self):
        self.count = 0

    def on_step_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.fault(26)
def test_another_set_of_callbacks_is_said_and_continues(tmp_path, capsys):
    fit(tmp_path, callbacks=[EarlyStopping("val/loss", patience=99)], max_steps=4)
    counts = Counts()
    capsys.readouterr()
    fit(tmp_path, callbacks=[counts], resume="latest", max_steps=6)
    said = capsys.readouterr().out
    assert "the checkpoint's state of EarlyStopping is not used: this run has no such callback" in said
    assert "Counts starts from scratch: the checkpoint has no state for it" in said
    assert counts.count == 2


@pytest.mark.parametrize("resume", [True, 3, ["latest"]])
def test_resume_of_another_type_is_reported(resume, tmp_path):
    with pytest.raises(PacelineError, match=r"'auto', 'latest', 'best'"):
        fit(tmp_path, resume=resume)
