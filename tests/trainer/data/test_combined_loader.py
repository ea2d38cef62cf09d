"""Several training loaders: what each step has of each, and runs that are resumed during an epoch."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from helpers.stops import StopsAt
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import CombinedLoader, PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint

JOB = Path(__file__).with_name("combined_job.py")


class Net(TrainModule):
    """Trains on the difference of two parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Linear(1, 1), []

    def training_step(self, batch):
        parts = batch if isinstance(batch, list) else list(batch.values())
        self.seen.append([None if part is None else part[0].flatten().tolist() for part in parts])
        losses = [
            (self.net(part[0]) - i).square().mean() for i, part in enumerate(parts) if part is not None
        ]
        return sum(losses)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        yield from ((x,) for x in self.x)


LONG = torch.arange(12.0).reshape(12, 1) / 100
SHORT = 1 + torch.arange(5.0).reshape(5, 1) / 100


def loader(x, size, kind="map", **options):
    if kind == "list":
        return [(part,) for part in x.split(size)]
    source = Stream(x) if kind == "stream" else TensorDataset(x)
    return DataLoader(source, size, shuffle=kind == "shuffled", **options)


def two(kind="map", mode="cycle", **options):
    parts = {"long": loader(LONG, 2, kind, **options), "short": loader(SHORT, 2, kind, **options)}
    return CombinedLoader(parts, mode)


def fit(module, data, *callbacks, resume=None, val=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 2}
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(module, data, val, resume=resume)
    return trainer


def index(step):
    """The indices in a step, of each loader."""
    return [None if part is None else [round(x % 1 * 100) for x in part] for part in step]


CYCLED = [
    [[0, 1], [0, 1]],
    [[2, 3], [2, 3]],
    [[4, 5], [4]],
    [[6, 7], [0, 1]],
    [[8, 9], [2, 3]],
    [[10, 11], [4]],
]
EPOCHS = {
    "cycle": CYCLED,
    "max": [*CYCLED[:3], *([one[0], None] for one in CYCLED[3:])],
    "min": CYCLED[:3],
}


@pytest.mark.parametrize("kind", ["map", "stream", "list"])
@pytest.mark.parametrize("mode", EPOCHS)
def test_an_epoch_is_as_long_as_its_mode_says(mode, kind):
    module = Net()
    trainer = fit(module, two(kind, mode))
    assert [index(step) for step in module.seen] == EPOCHS[mode] * 2
    assert trainer.global_step == 2 * len(EPOCHS[mode])
    assert trainer.counters.samples == 2 * sum(len(part or []) for step in EPOCHS[mode] for part in step)
    assert trainer.total_steps == (None if kind == "stream" else trainer.global_step)


@pytest.mark.parametrize("given", [lambda parts: parts, lambda parts: list(parts.values())])
def test_a_dict_or_a_list_is_cycled(given):
    class Types(Net):
        def training_step(self, batch):
            self.type = type(batch)
            return super().training_step(batch)

    module, parts = Types(), two().loaders
    fit(module, given(parts), max_epochs=1)
    assert module.type is type(given(parts))
    assert [index(step) for step in module.seen] == CYCLED


def test_the_weights_are_those_of_a_plain_loop():
    module, expected = Net(), Net()
    fit(module, two())
    optimizer = expected.configure_optimizers()
    for step in CYCLED * 2:
        parts = [LONG[step[0]], SHORT[step[1]]]
        sum((expected.net(part) - i).square().mean() for i, part in enumerate(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(module.net.weight, expected.net.weight)


def test_a_loader_that_begins_again_has_a_new_order_and_each_has_its_own():
    module = Net()
    same = {"a": loader(LONG, 2, "shuffled"), "b": loader(LONG, 2, "shuffled")}
    fit(module, same, max_epochs=1)
    a, b = ([x for step in module.seen for x in index(step)[i]] for i in (0, 1))
    assert sorted(a) == sorted(b) == [*range(12)]
    assert a != b
    module = Net()
    fit(module, {"a": loader(LONG, 1, "shuffled"), "b": loader(LONG, 2, "shuffled")}, max_epochs=2)
    b = [x for step in module.seen for x in index(step)[1]]
    passes = [b[start : start + 12] for start in range(0, 48, 12)]
    assert [sorted(one) for one in passes] == [[*range(12)]] * 4
    assert all(one != other for one, other in combinations(passes, 2))


def test_the_first_loader_has_the_order_that_it_has_alone():
    class Alone(Net):
        def training_step(self, batch):
            return super().training_step({"long": batch})

    module, alone = Net(), Alone()
    fit(module, two("shuffled"))
    fit(alone, two("shuffled").loaders["long"])
    assert [step[0] for step in module.seen] == [step[0] for step in alone.seen]


MODES = (("cycle", 0), ("cycle", 1), ("max", 0), ("min", 0))
RESUMED = [(k, m, w) for k in ("shuffled", "stream") for m, w in MODES]
USUAL = [("shuffled", "cycle", 1), ("shuffled", "max", 0), ("stream", "cycle", 0), ("stream", "min", 0)]


@pytest.mark.parametrize(("kind", "mode", "workers"), soaked(RESUMED, USUAL))
def test_a_run_resumes_from_any_step(tmp_path, kind, mode, workers):
    def data():
        return two(kind, mode, num_workers=workers)

    whole = Net()
    fit(whole, data(), Checkpoint(1, keep=None), run_dir=tmp_path, name="whole")
    for step in range(1, len(whole.seen)):
        if workers and step % 4:  # each takes a second
            continue
        second = Net()
        saved = tmp_path / "whole" / "1" / "checkpoints" / f"step-{step:08d}"
        fit(second, data(), resume=saved)
        assert second.seen == whole.seen[step:], step
        assert torch.equal(second.net.weight, whole.net.weight)


class Bad(TensorDataset):
    """One sample cannot be read, in one pass."""

    epoch, bad = 0, (0, 3)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        if (self.epoch, index) == self.bad:
            raise OSError("bad")
        return super().__getitem__(index)


@pytest.mark.parametrize("bad", [(0, 0), (0, 3), (1, 0)])
def test_an_error_in_one_loader_loses_no_batch_of_another(tmp_path, bad):
    def data(bad):
        samples = Bad(SHORT[:4])
        samples.bad = bad
        return CombinedLoader({"a": loader(LONG, 2, "shuffled"), "b": DataLoader(samples, 1)}, "min")

    whole, first, second = Net(), Net(), Net()
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(whole, data(None))
    with pytest.raises(OSError, match="bad"):
        fit(first, data(bad), Checkpoint("100ep"), **kept)
    saved = bad != (0, 0)  # before step 1 there is nothing to save
    fit(second, data(None), Checkpoint(), resume="latest" if saved else None, **kept)
    assert first.seen + second.seen == whole.seen
    assert torch.equal(second.net.weight, whole.net.weight)


class Stateful(IterableDataset):
    """Keeps its own position."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 20:
            self.at += 1
            yield (torch.tensor([1 + self.at / 100]),)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("stop", [6, 12])
def test_a_source_with_a_state_loses_nothing_where_a_shorter_one_ends(tmp_path, stop):
    def data():
        return CombinedLoader({"a": loader(LONG, 2, "shuffled"), "b": DataLoader(Stateful(), 2)}, "min")

    whole, first, second = Net(), Net(), Net()
    fit(whole, data(), max_epochs=3)
    taken = [x for step in whole.seen for x in index(step)[1]]
    assert taken == [*range(1, 21), *range(1, 13)]  # the second epoch ends with the source
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(first, data(), StopsAt(stop), Checkpoint(), max_epochs=3, **kept)
    fit(second, data(), Checkpoint(), max_epochs=3, resume="latest", **kept)
    assert first.seen + second.seen == whole.seen


def test_micro_batches_have_a_part_of_each_and_the_step_is_the_same():
    one, many = Net(), Net()
    parts = {"a": loader(LONG, 4), "b": loader(LONG[:6], 2)}
    fit(one, parts)
    parts = {"a": loader(LONG, 2), "b": loader(LONG[:6], 1)}
    fit(many, parts, accumulate=2)
    assert len(many.seen) == 2 * len(one.seen)
    torch.testing.assert_close(one.net.weight, many.net.weight, rtol=1e-6, atol=0)


def test_a_global_batch_size_is_of_all_in_proportion():
    module, data = Net(), {"a": loader(LONG[:8], 4), "b": loader(LONG[:4], 2)}
    trainer = fit(module, data, global_batch_size=12, max_epochs=1)
    assert [[len(part) for part in step] for step in module.seen] == [[4, 2], [4, 2]]
    assert trainer.global_step == 1
    with pytest.raises(PacelineError, match="a multiple of 6"):
        fit(Net(), data, global_batch_size=7)


def test_a_last_step_that_is_not_full_is_refused_where_it_would_be_cut():
    parts = {"long": loader(LONG, 2), "short": loader(SHORT, 2)}
    with pytest.raises(PacelineError, match="last step of training loader 'short' is not a full one"):
        fit(Net(), parts, accumulate=2)
    module = Net()
    parts = {"long": loader(LONG, 2), "short": loader(SHORT, 2, drop_last=True)}
    fit(module, parts, accumulate=2, max_epochs=1)
    assert [index(step)[1] for step in module.seen] == [[0, 1], [2, 3]] * 3
    parts = {"long": loader(LONG, 2, "stream"), "short": loader(SHORT, 2, "stream")}
    with pytest.raises(PacelineError, match="last step of training loader 'short' is not a full one"):
        fit(Net(), parts, accumulate=2)


def test_limits_and_overfitting_are_of_each_loader():
    module = Net()
    fit(module, two(), limit_train_batches=2, max_epochs=1)
    assert [index(step) for step in module.seen] == CYCLED[:2]
    module = Net()
    fit(module, two("shuffled"), overfit_batches=2, max_epochs=2)
    assert module.seen[:2] == module.seen[2:]


def test_the_samples_of_a_bad_step_are_named_with_their_loader():
    class Nan(Net):
        def __init__(self, at):
            super().__init__()
            self.at = at

        def training_step(self, batch):
            return super().training_step(batch) * (float("nan") if self.global_step == self.at else 1)

    with pytest.raises(PacelineError, match="dataset indices long: 4, long: 5, short: 4"):
        fit(Nan(2), two())
    with pytest.raises(PacelineError, match="dataset indices long: 8, long: 9\n"):
        fit(Nan(4), two(mode="max"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CombinedLoader({"a": []}, mode="min_size"), "mode='min'"),
        (lambda: CombinedLoader({"a": []}, mode="longest"), "mode: got 'longest'"),
        (lambda: CombinedLoader([]), "takes several loaders"),
        (lambda: CombinedLoader(loader(LONG, 2)), "a dict or a list of DataLoaders"),
        (lambda: fit(Net(), {"a": loader(LONG, 2), "b": loader(LONG[:0], 2)}), "'b' gave no batch"),
        (lambda: fit(Net(), {"a": loader(LONG, 2), "b": 3}), "cannot be iterated over batches"),
        (lambda: fit(Net(), {"a": loader(LONG, 2), "b": {"c": loader(LONG, 2)}}), "loaders of loaders"),
        (
            lambda: fit(Net(), two(drop_last=True), global_batch_size=6, accumulate=1),
            "3 samples in a step of 'long' cannot be cut into 2 equal parts",
        ),
        (
            lambda: fit(Net(), two(drop_last=True), accumulate=2, on_data_error="skip"),
            'on_data_error="skip" with several training loaders',
        ),
        (lambda: Trainer(accelerator="cpu").predict(Predicts(), two()), "takes no CombinedLoader"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(PacelineError, match=message):
        make()


class Predicts(Net):
    def predict_step(self, batch):
        return batch


def test_other_loaders_than_the_checkpoints_are_named(tmp_path):
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), two(), Checkpoint(), max_steps=2, **kept)
    with pytest.raises(PacelineError, match="several loaders in the checkpoint, one now"):
        fit(Net(), loader(LONG, 2), resume="latest", **kept)
    with pytest.raises(PacelineError, match="loaders long, short in the checkpoint, long, other now"):
        fit(Net(), {"long": loader(LONG, 2), "other": loader(SHORT, 2)}, resume="latest", **kept)


def test_other_loaders_are_taken_and_reported_where_that_is_allowed(tmp_path, capsys):
    class Alone(Net):
        def training_step(self, batch):
            return super().training_step([batch])

    for epochs, steps in ((1, 3), (2, 2)):  # at the end of an epoch, and in one
        kept = {"run_dir": tmp_path, "name": f"n{steps}"}
        fit(Alone(), loader(LONG, 4), StopsAt(steps), Checkpoint(), max_epochs=epochs, **kept)
        module = Net()
        trainer = Trainer(accelerator="cpu", progress=False, loggers=False, max_epochs=2, **kept)
        trainer.fit(module, two(), resume="latest", allow="data")
        assert [index(step) for step in module.seen] == CYCLED * (1 if steps == 3 else 2)
        assert "one loader in the checkpoint, several now" in capsys.readouterr().out


# -- on ranks ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    outcome = run_ranks(JOB, 2, folder, folder=folder)
    assert outcome.codes == [0, 0], outcome.output
    return folder


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_2"])
@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_two_ranks_take_the_steps_of_one(ranks, strategy, kind):
    module = Net()
    fit(module, {"a": loader(LONG, 4, kind), "b": loader(SHORT[:4], 2, kind)})
    for rank in (0, 1):
        found = json.loads((ranks / f"{strategy}-{kind}-{rank}.json").read_text())
        assert found["weight"] == pytest.approx(module.net.weight.item(), rel=1e-5)
        assert found["samples"] == 2 * 3 * 6


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_a_run_of_two_ranks_resumes_on_one(ranks, kind):
    whole, module = Net(), Net()
    fit(whole, {"a": loader(LONG, 4, kind), "b": loader(SHORT[:4], 2, kind)})
    saved = ranks / "runs" / kind / "1" / "checkpoints" / "step-00000004"
    trainer = fit(module, {"a": loader(LONG, 2, kind), "b": loader(SHORT[:4], 1, kind)}, resume=saved)
    assert trainer.global_step == 6
    torch.testing.assert_close(module.net.weight, whole.net.weight, rtol=1e-5, atol=0)


def test_ranks_refuse_a_step_that_would_not_be_even(ranks):
    for rank in (0, 1):
        assert "'b' is not a full one" in (ranks / f"uneven-{rank}.txt").read_text()
