"""batch_size="auto": a step that runs out of memory is repeated in smaller micro-batches, and is exact.

What it is compared with never ran out: it was stopped before that step, and resumed with a loader of half
the batch size and the same global batch.
"""

from __future__ import annotations

import json

import pytest
import torch
from helpers.pairwise import soaked
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule, tools
from paceline.callbacks import Callback, Checkpoint, GradientAccumulationScheduler, Throughput
from paceline.callbacks.loggers.series import read_rows
from paceline.strategies.launch.job_notes import note_micro_batch, noted_micro_batch

pytestmark = pytest.mark.launch  # for its length

SAMPLES, BATCH, STEP = 44, 8, 3  # 6 steps an epoch, the last of 4 samples
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise torch.OutOfMemoryError("planted")


class Net(TrainModule):
    """Draws, counts in buffers, logs; runs out of memory above ``most`` samples from step ``at`` on.

    Args:
        nth: In so many calls above ``most``.
        always: It does above so many samples from the beginning.
    """

    def __init__(self, most=999, where="forward", at=STEP, nth=1, always=999):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.most, self.where, self.at, self.nth = most, where, at, nth
        self.always = always
        self.sizes: list[int] = []
        self.failed = self.calls = 0

    def training_step(self, batch, batch_idx):
        x = batch[0] if isinstance(batch, list) else batch
        self.sizes.append(len(x))
        self.seen += x.sum()
        self.replaced = self.replaced + x.sum()
        loss = self.net(x).square().mean()
        self.log("sum", loss.detach().float(), reduce="sum")
        self.log("batch_idx", batch_idx, reduce="max")
        if self.global_step + 1 >= self.at:
            self.log("late", loss.detach().float(), reduce="sum")
        if len(x) > self.always:
            raise torch.OutOfMemoryError("planted")
        if len(x) <= self.most or self.global_step + 1 < self.at:
            return loss
        self.calls += 1
        if self.calls < self.nth:
            return loss
        self.failed += 1
        self.log("of a failed step", 1.0)
        if self.where == "forward":
            raise torch.OutOfMemoryError("planted")
        return Fails.apply(loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def loader(size=BATCH, **options):
    return DataLoader(TensorDataset(X), size, **({"shuffle": True} | options))


def trainer(folder=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "run_dir": folder, "max_epochs": 2, "log_every": 1}
    usual |= {"callbacks": [Checkpoint("1ep")] if folder else [], "checkpoint": bool(folder)}
    usual |= {"loggers": ["-tensorboard", "-curves"] if folder else False}
    return Trainer(**(usual | {"name": "n"} | settings))


def content(run):
    tensors, newest = {}, Run(run).latest
    for path in newest.glob("*.safetensors"):
        tensors |= load_file(path)
    state = json.loads((newest / "state.json").read_text())
    for counter in ("elapsed", "micro_batch"):
        del state["counters"][counter]
    rows = read_rows(run / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if not k.startswith(("time", "perf/"))} for row in rows]
    return tensors, state["counters"], state["ranks"], rows


def compared(folder, module, data=loader, **settings):
    """A run that runs out of memory in step 3; and one that never does, with the same micro-batches."""
    auto = trainer(folder / "auto", batch_size="auto", **settings)
    auto.fit(module, data())
    plain = trainer(folder / "plain", **(settings | {"max_steps": STEP - 1, "max_epochs": None}))
    plain.fit(Net(), data())
    settings = {name: value for name, value in settings.items() if name != "accumulate"}
    half = trainer(folder / "plain", global_batch_size=plain._fit.state.global_batch, **settings)
    half.fit(Net(), data(auto._fit.state.micro_batch), resume="latest")
    found, expected = content(auto.folder), content(half.folder)
    assert found[0].keys() == expected[0].keys()
    assert [name for name in found[0] if not torch.equal(found[0][name], expected[0][name])] == []
    assert found[1:] == expected[1:]
    assert len(found[3]) == auto.global_step + 2
    return auto


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    ("precision", "where"),
    soaked(
        [("32", "forward"), ("bf16-true", "backward"), ("fp16", "forward"), ("fp16", "backward")],
        [("32", "forward"), ("bf16-true", "backward"), ("fp16", "forward")],
    ),
)
def test_a_step_is_repeated_exactly(tmp_path, where, precision):
    module = Net(4, where)
    run = compared(tmp_path, module, precision=precision)
    assert module.failed == 1
    assert module.sizes == [8] * STEP + [4] * (7 + 11)
    assert run.global_step == 12


def test_a_later_micro_batch_may_be_the_one(tmp_path):
    """The one before it has gone backward: its gradients, loss and draws are not counted twice."""
    module = Net(4, "backward", nth=2, always=8)
    compared(tmp_path, module, accumulate=2, precision="bf16-true")
    assert module.failed == 1
    assert module.sizes[:9] == [8, 8, 8, 8, 6, 6, 4, 4, 4]


class Drawn(Dataset):
    """Augments its samples, in the process or worker that reads."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return X[index] + torch.rand(6)


@pytest.mark.launch
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_workers": 2}, marks=pytest.mark.soak),
        {"num_workers": 1, "persistent_workers": True},
    ],
)
def test_samples_are_read_again_as_they_were(tmp_path, options):
    module = Net(4)
    compared(tmp_path, module, lambda size=BATCH: DataLoader(Drawn(), size, shuffle=True, **options))
    assert module.failed == 1


class Broken(Drawn):
    def __getitem__(self, index):
        if index == 7:
            raise OSError("no such picture")
        return super().__getitem__(index)


@pytest.mark.parametrize(("before", "reads"), [(16, 2), (24, 1)])
def test_samples_that_cannot_be_read_are_counted_once(tmp_path, before, reads):
    """A sample of the step that is repeated, and one of the next step."""
    module = Net(4)
    run = trainer(tmp_path, batch_size="auto", on_data_error="skip:1", max_epochs=1)
    order = [*range(20, 20 + before), *range(20), *range(20 + before, SAMPLES)]
    run.fit(module, DataLoader(Broken(), BATCH, sampler=order))
    assert module.failed == 1
    log = (run.folder / "log.txt").read_text()
    assert log.count("skipped samples, 1 of at most 1") == reads


@pytest.mark.parametrize("first", ["none", "nan"])
def test_what_the_failed_step_knew_of_its_losses_is_forgotten(first):
    """The step is repeated with losses that are all finite: it updates the weights."""

    class Partly(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if len(batch[0]) > 4 and self.calls == 1:
                return None if first == "none" else loss * float("nan")
            return loss

    module = Partly(4, nth=2, always=8)
    run = trainer(batch_size="auto", accumulate=2, max_epochs=1, nonfinite="skip:9")
    run.fit(module, loader())
    assert module.failed == 1
    assert run.global_step == 3
    assert run.counters.skipped_steps == 0


def test_it_is_halved_until_it_fits_and_stays_so(tmp_path):
    module = Net(2)
    run = trainer(tmp_path, batch_size="auto")
    run.fit(module, loader())
    assert module.failed == 2
    assert module.sizes == [8, 8, 8, 4] + [2] * (4 * 4 - 2 + 5 * 4 + 2)
    log = (run.folder / "log.txt").read_text()
    line = "step 3, epoch 1: out of memory (planted); the step is repeated with micro-batches of at most"
    for size, before in ((4, 8), (2, 4)):
        assert f"{line} {size} samples, {before} before" in log


@pytest.mark.parametrize("settings", [{"reload_dataloaders_every_n_epochs": 1}, {"callbacks": "schedule"}])
def test_a_later_epoch_s_own_feed_has_the_same_micro_batches(settings):
    class Owner(Net):
        def train_dataloader(self):
            return loader()

    if "callbacks" in settings:
        settings = {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 2})]}
    module = Owner(4)
    trainer(batch_size="auto", **settings).fit(module)
    assert module.sizes[:4] == [8, 8, 8, 4]
    assert set(module.sizes[3:]) == {4}
    assert module.failed == 1


def test_nothing_of_the_failed_step_is_logged(tmp_path):
    run = trainer(tmp_path, batch_size="auto")
    run.fit(Net(4), loader())
    rows = read_rows(run.folder / "metrics.jsonl")
    assert not any("train/of a failed step" in row for row in rows)


def test_an_object_of_torchmetrics_counts_each_sample_once():
    torchmetrics = pytest.importorskip("torchmetrics")

    class Counts(Net):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.mean, self.all = torchmetrics.MeanMetric(), torchmetrics.CatMetric()
            self.failing = torchmetrics.SumMetric()

        def training_step(self, batch, batch_idx):
            self.mean.update(batch[0])
            self.all.update(batch[0][:, 0])
            self.log("mean", self.mean)
            if len(batch[0]) > 4 and self.global_step + 1 == STEP:
                self.failing.update(1.0)
                self.log("of a failed step", self.failing)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self):
            self.found = self.all.compute()
            self.all.reset()

    module = Counts(2)
    run = trainer(batch_size="auto", max_epochs=1)
    run.fit(module, loader())
    assert module.failed == 2
    torch.testing.assert_close(module.found.sort().values, X[:, 0].sort().values)
    assert run.metrics["train/mean_epoch"] == pytest.approx(X.mean().item(), abs=1e-6)
    assert not [name for name in run.metrics if "failed" in name]


def test_an_object_of_torchmetrics_outside_the_module_does_too():
    torchmetrics = pytest.importorskip("torchmetrics")

    class Listed(Net):
        def training_step(self, batch, batch_idx):
            if not hasattr(self, "metrics"):
                self.metrics = [torchmetrics.SumMetric()]
            if self.global_step + 1 == 7 and len(self.metrics) == 1:  # it first counts in a failed step
                self.metrics.append(torchmetrics.MetricCollection([torchmetrics.SumMetric()]))
            for name, metric in zip(("one", "other"), self.metrics, strict=False):
                metric.update(batch[0][:, 0])
                self.log(name, metric)
            return super().training_step(batch, batch_idx)

    for first in (STEP, 7):
        module = Listed(4, at=first)
        run = trainer(batch_size="auto")
        run.fit(module, loader())
        assert module.failed == 1
        expected = pytest.approx(X[:, 0].sum().item(), abs=1e-5)
        assert run.metrics["train/one_epoch"] == expected
        assert run.metrics["train/SumMetric_epoch"] == expected


def test_a_buffer_that_the_failed_step_filled_is_empty_again():
    """And one that it was the first to have."""

    class Lazy(Net):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.lazy = nn.Module()
            self.lazy.register_buffer("last", None, persistent=False)
            self.seen_before = []

        def training_step(self, batch, batch_idx):
            if batch_idx in (0, 2):
                self.seen_before.append(self.lazy.last)
            self.lazy.last = batch[0].mean() if batch_idx != 1 else None
            return super().training_step(batch, batch_idx)

    module = Lazy(4)
    trainer(batch_size="auto", max_epochs=1).fit(module, loader())
    assert module.seen_before == [None, None, None]
    assert module.failed == 1


def test_generators_of_the_module_are_those_of_before_the_step():
    class Draws(Net):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.generator = torch.Generator().manual_seed(3)
            self.drawn = []

        def training_step(self, batch, batch_idx):
            self.drawn.append(torch.rand((), generator=self.generator).item())
            return super().training_step(batch, batch_idx)

    module = Draws(4)
    trainer(batch_size="auto", max_epochs=1).fit(module, loader())
    assert module.failed == 1
    assert module.drawn[STEP - 1] == module.drawn[STEP]
    expected = torch.rand(len(module.drawn) - 1, generator=torch.Generator().manual_seed(3)).tolist()
    assert module.drawn[:STEP] + module.drawn[STEP + 1 :] == expected


def test_a_step_that_wrote_to_parameters_is_not_repeated():
    """A teacher that follows its student, say: it would follow twice."""

    class Follows(Net):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.teacher = nn.Linear(6, 1).requires_grad_(False)

        def training_step(self, batch, batch_idx):
            with torch.no_grad():
                self.teacher.weight.lerp_(self.net[0].weight[:1], 0.1)
            return super().training_step(batch, batch_idx)

    module = Follows(4)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer(batch_size="auto").fit(module, loader())
    assert "it wrote to the parameters teacher.weight; on_step_end is" in "\n".join(raised.value.__notes__)
    assert module.sizes == [8, 8, 8]


class Alternates(Sampler):
    """Gives another order each time that it is asked, whatever the seed."""

    asked = 0

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        self.asked += 1
        order = list(range(SAMPLES))
        return iter(order if self.asked % 2 else order[::-1])


def test_the_order_is_not_drawn_again():
    class Sees(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.rows = [*getattr(self, "rows", []), *batch[0][:, 0].tolist()]
            return loss

    module = Sees(4)
    trainer(batch_size="auto", max_epochs=1).fit(module, loader(shuffle=None, sampler=Alternates()))
    assert module.failed == 1
    assert sorted(module.rows) == sorted(X[:, 0].tolist())


@pytest.mark.parametrize(
    ("at", "every"), soaked([(1, 1), (1, "1ep"), (STEP, 1), (STEP, "1ep")], [(1, "1ep"), (STEP, 1)])
)
def test_a_replay_has_the_micro_batches_of_the_run(tmp_path, every, at):
    """Those that the search found, or those from the step on where memory ran out."""
    run = trainer(tmp_path, batch_size="auto", callbacks=[Checkpoint(every, keep=None)])
    run.fit(Net(4, at=at), loader())
    rows = read_rows(run.folder / "metrics.jsonl")
    losses = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    for step, sizes in ((2, [4, 4] if at == 1 else [8]), (3, [4, 4]), (5, [4, 4]), (9, [4, 4])):
        module = Net()
        found = tools.replay(trainer(batch_size="auto"), module, loader(), step=step, run=run.folder)
        assert module.sizes[-len(sizes) :] == sizes
        assert sum(found.losses) / len(found.losses) == losses[step]


class Watches(Callback):
    def __init__(self):
        self.started, self.ended = [], []

    def on_step_start(self, trainer, batches):
        self.started.append((trainer.global_step, [len(batch[0]) for batch in batches]))

    def on_step_end(self, trainer, outputs):
        self.ended.append(trainer.global_step)


def test_what_hooks_see():
    watches = Watches()
    trainer(batch_size="auto", max_epochs=1, callbacks=[watches, Throughput(flops=True, every=2)]).fit(
        Net(4), loader()
    )
    assert watches.started[:4] == [(0, [8]), (1, [8]), (2, [8]), (2, [4, 4])]
    assert watches.ended == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_keeps_its_micro_batches(tmp_path):
    run = trainer(tmp_path, batch_size="auto", max_epochs=1)
    run.fit(Net(4), loader())
    module = Net()
    again = trainer(tmp_path, batch_size="auto")
    again.fit(module, loader(), resume="auto")
    assert module.sizes == [4] * 11
    assert 'batch_size="auto"' not in (again.folder / "log.txt").read_text().split("resumes from")[1]


class Greedy(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps == STEP:
            raise torch.OutOfMemoryError("in the update")
        return super().step(closure)


def test_an_update_is_not_repeated():
    """Smaller micro-batches would need as much, and weights may have changed."""

    class Late(Net):
        def configure_optimizers(self):
            return Greedy(self.parameters(), lr=0.1)

    module = Late()
    with pytest.raises(torch.OutOfMemoryError, match="in the update") as raised:
        trainer(batch_size="auto").fit(module, loader())
    assert module.sizes == [8, 8, 8]
    assert "batch_size" not in "\n".join(raised.value.__notes__)


def test_one_sample_that_does_not_fit_ends_the_run():
    module = Net(0)
    module.net = nn.Linear(6, 1)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer(batch_size="auto").fit(module, loader())
    assert module.sizes == [8, 8, 8, 4, 2, 1]
    notes = "\n".join(raised.value.__notes__)
    assert "in step 3, epoch 1" in notes
    assert "batch_size" not in notes  # there is no smaller one


def test_an_error_of_smaller_micro_batches_says_why_they_are_small():
    module = Net(1)
    with pytest.raises(ValueError, match="more than 1 value per channel") as raised:
        trainer(batch_size="auto").fit(module, loader())
    assert "the step had run out of memory before: planted" in raised.value.__notes__


def test_where_nothing_repeats_the_step_the_error_says_what_would(group_ends):
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer(batch_size="auto", strategy="ddp", devices=1).fit(Net(4), loader())
    notes = "\n".join(raised.value.__notes__)
    assert 'that takes strategy="single", or ranks that a launcher of paceline has started' in notes
    assert "DataLoader(batch_size=4) and Trainer(global_batch_size=8)" in notes
    assert 'batch_size="auto")' not in notes


def test_another_error_is_not_repeated():
    class Wrong(Net):
        def training_step(self, batch, batch_idx):
            if self.global_step:
                raise RuntimeError("shapes do not match")
            return super().training_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match="shapes do not match"):
        trainer(batch_size="auto").fit(Wrong(), loader())


def test_a_run_without_it_is_not_repeated():
    with pytest.raises(torch.OutOfMemoryError):
        trainer().fit(Net(4), loader())


class Endless(IterableDataset):
    def __iter__(self):
        return iter(X)


class Manual(Net):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "data", "text"),
    [
        (Manual, loader(), "with manual optimization a step is one batch"),
        (Net, [X[:4], X[4:8]], "these batches come ready made"),
        (Net, DataLoader(TensorDataset(X), batch_sampler=[[0, 1], [2]]), "these batches come ready made"),
        (Net, DataLoader(Endless(), 8), "come ready made\n *got: DataLoader of a Endless"),
        (Net, DataLoader(X, batch_size=None), "these batches come ready made"),
        (
            Net,
            {"one": loader(), "other": loader()},
            "the steps of one training loader, and there are several",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_before_the_run(tmp_path, module, data, text):
    with pytest.raises(PacelineError, match=text):
        trainer(tmp_path, batch_size="auto").fit(module(), data)
    assert list(tmp_path.glob("n/*")) == []


def test_no_data_to_train_on_needs_no_search():
    trainer(batch_size="auto", limit_train_batches=0).fit(Net(), loader())


def test_only_an_agent_is_asked_for_another_attempt(tmp_path, monkeypatch):
    """Ranks that a notebook has forked have a folder for notes too, and end for good."""
    monkeypatch.setenv("PACELINE_JOB", str(tmp_path))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not note_micro_batch(1, 4)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert note_micro_batch(1, 4)
    monkeypatch.setenv("RANK", "1")
    assert note_micro_batch(1, 2)
    assert note_micro_batch(2, 8)
    assert [noted_micro_batch(fit) for fit in (1, 2, 3)] == [2, 8, None]
