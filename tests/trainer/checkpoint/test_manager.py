"""The checkpoint manager over a run's state, built without a Trainer."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from paceline import PacelineError, TrainModule
from paceline.strategies import Environment, Single, make_precision
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.pointers import read_pointer
from paceline.trainer.checkpoint.manager import CheckpointManager
from paceline.trainer.checkpoint.module_changes import ModuleChanges
from paceline.trainer.checkpoint.run_state import RunState
from paceline.trainer.metrics.logger import MetricLogger
from paceline.trainer.metrics.store import MetricStore
from paceline.trainer.optimization import Optimization
from paceline.trainer.state import Clock, TrainState


class Net(TrainModule):
    def __init__(self, width=3):
        super().__init__()
        self.line = torch.nn.Linear(2, width)


class Hooks:
    """Remembers which hooks were called; ``on_save_checkpoint`` adds a value."""

    def __init__(self):
        self.calls = []

    def call(self, name, trainer, state):
        self.calls.append((name, dict(state)))
        if name == "on_save_checkpoint":
            state["mine"] = 5


class NoData:
    """A feed without a position of its own."""

    def fingerprint(self):
        return {"dataset": "none"}

    reloads = False

    def prepare(self, epoch):
        pass

    reload = prepare

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def make(folder, step=0):
    """A manager, and the parts of the run it saves."""
    strategy, module = Single(), Net()
    strategy.attach(Environment(torch.device("cpu")), make_precision("32"))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    state = TrainState(global_step=step)
    clock = Clock(state)
    logger = MetricLogger(strategy.collectives, state, clock, [], print)
    run = RunState(
        module=module,
        strategy=strategy,
        optimization=Optimization([optimizer]),
        changes=ModuleChanges(module, strategy, [optimizer], None),
        counters=state,
        clock=clock,
        logger=logger,
        callbacks=[],
        hooks=Hooks(),
        trainer=SimpleNamespace(log_line=print),
        feed=NoData(),
        datamodule=None,
        config={"name": "net"},
    )
    watchdog = SimpleNamespace(during=lambda phase: nullcontext())
    return CheckpointManager(strategy, run, logger, watchdog, None, folder), run


def train(run):
    """One step."""
    run.module.line(torch.ones(4, 2)).sum().backward()
    run.optimization.optimizers[0].step()
    run.optimization.optimizers[0].zero_grad()
    run.counters.global_step += 1


@pytest.mark.parametrize("background", [False, True])
def test_a_run_is_restored_from_what_was_saved(tmp_path, background):
    manager, run = make(tmp_path)
    train(run)
    run.logger.latest["train/loss"] = 2.5
    save = manager.save("step-00000001", weights_only=False, background=background)
    save.wait()
    assert save.error is None
    _, other = make(tmp_path)
    assert other.restore(tmp_path / "step-00000001") == []
    for mine, theirs in zip(run.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert other.counters.global_step == 1
    assert other.logger.latest == {"train/loss": 2.5}
    assert other.hooks.calls == [("on_load_checkpoint", {"mine": 5})]
    train(run)
    train(other)
    for mine, theirs in zip(run.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)  # the moments were restored too


def test_what_exists_is_not_written_again_unless_its_step_was_repeated(tmp_path):
    manager, run = make(tmp_path)
    train(run)
    name = "step-00000001"
    manager.save(name, weights_only=False, background=False)
    first = (tmp_path / name / files.MANIFEST).stat().st_mtime_ns
    manager.save(name, weights_only=False, background=False)
    assert (tmp_path / name / files.MANIFEST).stat().st_mtime_ns == first
    manager.allow_again(1)
    manager.save(name, weights_only=False, background=False)
    assert (tmp_path / name / files.MANIFEST).stat().st_mtime_ns > first
    manager.save(name, weights_only=False, background=False)  # which holds for one save


def test_pointers_are_written_and_superfluous_checkpoints_deleted(tmp_path):
    manager, run = make(tmp_path)
    for step in (1, 2):
        train(run)
        manager.save(f"step-{step:08d}", weights_only=False, background=False)
    manager.update({"latest": "step-00000002"}, ["step-00000001"])
    assert read_pointer(tmp_path / "latest") == tmp_path / "step-00000002"
    assert [path.name for path in files.finished(tmp_path)] == ["step-00000002"]


def test_a_state_that_is_not_whole_is_not_saved(tmp_path):
    manager, run = make(tmp_path)
    with (
        run.logger.logging_to(MetricStore("val", print)),
        pytest.raises(PacelineError, match="inside a validation"),
    ):
        manager.save_to(tmp_path / "mine")


def test_an_existing_folder_is_never_written_over(tmp_path):
    manager, _ = make(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(PacelineError, match="never overwritten"):
        manager.save_to(tmp_path / "mine")
