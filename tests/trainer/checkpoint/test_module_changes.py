"""What a run has changed of its module is made again when it resumes, or is reported at a save."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.strategies.torch_internals import buffers_of

JOB = Path(__file__).with_name("changes_job.py")
job = load_job(JOB)
X = torch.linspace(-1, 1, 32).reshape(16, 2)


def trainer(folder, epochs=1, **options):
    options = {"loggers": False, "progress": False} | options
    return Trainer(max_epochs=epochs, run_dir=folder, **options)


def loader():
    return DataLoader(TensorDataset(X), 4)


def refused(call):
    with pytest.raises(PacelineError) as caught:
        call()
    return str(caught.value)


# -- what is trained -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    alone = {"whole": job.on_rank(folder, "single", 3, "whole", devices=1)}
    two = job.on_rank(folder, "single", 2, "cut", devices=1)
    alone["cut"] = job.on_rank(folder, "single", 3, "cut", resume=two["latest"], devices=1)
    names = ("ddp", "fsdp")
    whole = {f"{name} whole": {"strategy": name, "epochs": 3, "name": f"{name}-whole"} for name in names}
    first = {f"{name} first": {"strategy": name, "epochs": 2, "name": f"{name}-cut"} for name in names}
    ranks = run_cases(JOB, folder, whole | first, one_pair=True)
    latest = {name: ranks[f"{name} first"][0]["latest"] for name in names}
    again = {
        f"{name} cut": {"strategy": name, "epochs": 3, "name": f"{name}-cut", "resume": latest[name]}
        for name in names
    }
    zero = {"strategy": "deepspeed_stage_1", "epochs": 3, "name": "zero", "resume": latest["ddp"]}
    return {"single": alone} | ranks | run_cases(JOB, folder, again | {"zero": zero}, one_pair=True)


@pytest.mark.fault(52)
@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_a_part_unfrozen_with_its_group_is_trained_after_a_resume_as_without(found, strategy):
    if strategy == "single":
        whole, cut = found["single"]["whole"], found["single"]["cut"]
    else:
        whole, cut = found[f"{strategy} whole"][0], found[f"{strategy} cut"][0]
    assert "error" not in cut
    assert cut["weights"] == whole["weights"]
    assert cut["groups"] == whole["groups"] == [0.05, 0.01]
    assert cut["flags"] == {"body.weight": True, "body.bias": True, "head.weight": True, "head.bias": False}


def test_a_strategy_that_cannot_follow_says_so_when_it_resumes(found):
    for rank in found["zero"]:
        assert rank["error"].startswith("strategy 'deepspeed_stage_1' fixes at the start which parameters")
        assert "unfrozen: body.weight, body.bias" in rank["error"]


class Two(TrainModule):
    def __init__(self, groups=1):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.groups = nn.Linear(2, 1), nn.Linear(2, 1), groups

    def training_step(self, batch):
        return (self.a(batch[0]) + self.b(batch[0])).square().mean()

    def on_train_epoch_start(self):
        if self.trainer.epoch == 0 and self.groups == 2:
            self.b.requires_grad_(True)
            self.trainer.optimizers[0].add_param_group({"params": list(self.b.parameters())})

    def configure_optimizers(self):
        self.b.requires_grad_(self.groups == 1)
        held = self.a if self.groups == 2 else self
        return torch.optim.SGD(held.parameters(), lr=0.1, momentum=0.9)


def test_a_group_of_parameters_that_an_optimizer_has_is_not_added(tmp_path):
    run = trainer(tmp_path / "run").fit(Two(groups=2), loader())
    error = refused(lambda: trainer(tmp_path / "other", 2).fit(Two(), loader(), resume=run.latest))
    assert "SGD: 2 parameter groups in the checkpoint, 1 now" in error


# -- buffers ---------------------------------------------------------------------------------------


class Queue(TrainModule):
    """Buffers: one is None at first, one grows, one is registered by a step, and one ends as None."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(2, 1)
        self.register_buffer("queue", None)
        self.register_buffer("bank", torch.zeros(1, 2))
        self.register_buffer("once", torch.ones(3))
        self.seen = None

    def training_step(self, batch):
        if self.queue is None:
            self.queue = torch.zeros(2, dtype=torch.float64)
            self.once = None
            del self.seen
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.seen += 1
        self.queue = self.queue + batch[0].double().mean(0)
        self.bank = torch.cat([self.bank, batch[0][:1]])
        return (self.line(batch[0] + self.bank.mean(0)) - self.queue.sum().float()).square().mean()

    def validation_step(self, batch):
        self.log("bank", float(self.bank.shape[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.fault(52)
def test_buffers_that_a_run_has_given_another_shape_are_there_after_a_resume(tmp_path):
    whole = Queue()
    trainer(tmp_path / "whole", 2).fit(whole, loader())
    run = trainer(tmp_path / "cut").fit(Queue(), loader())
    cut = Queue()
    trainer(tmp_path / "cut", 2).fit(cut, loader(), resume=run.latest)
    assert cut.state_dict().keys() == whole.state_dict().keys() == {
        "line.weight", "line.bias", "queue", "bank", "seen"
    }  # fmt: skip
    for name, value in whole.state_dict().items():
        assert torch.equal(value, cut.state_dict()[name]), name
        assert value.dtype == cut.state_dict()[name].dtype
    assert buffers_of(cut)["once"] is None


def test_such_a_checkpoint_is_loaded_and_evaluated(tmp_path):
    run = trainer(tmp_path / "run").fit(module := Queue(), loader())
    again = Queue.load_from_checkpoint(run.latest)
    for name, value in module.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert trainer(tmp_path / "val").validate(Queue(), loader(), weights=run.latest)["val/bank"] == 5


def test_a_buffer_that_the_constructor_makes_otherwise_is_a_difference(tmp_path):
    class Wider(Queue):
        def __init__(self):
            super().__init__()
            self.register_buffer("fixed", torch.zeros(4))

    class Narrower(Queue):
        def __init__(self):
            super().__init__()
            self.register_buffer("fixed", torch.zeros(3))

    run = trainer(tmp_path / "run").fit(Wider(), loader())
    error = refused(lambda: trainer(tmp_path / "run", 2).fit(Narrower(), loader(), resume=run.latest))
    assert "fixed: shape [4] in the checkpoint, [3] in the model" in error


# -- a module that takes part in its loading -------------------------------------------------------


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.new = nn.Linear(2, 1)

    def forward(self, x):
        return self.new(x)


class ByHook(Renamed):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_pre_hook(lambda module, values, prefix, *_: rename(values, prefix))


class ByOverride(Renamed):
    def _load_from_state_dict(self, values, prefix, *args):
        rename(values, prefix)
        super()._load_from_state_dict(values, prefix, *args)


class NoHelp(Renamed):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_pre_hook(lambda *_: None)


class Resized(Renamed):
    """Takes a bank of any size."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("bank", torch.zeros(size))

    def _load_from_state_dict(self, values, prefix, *args):
        self.bank = torch.empty_like(values[f"{prefix}bank"])
        super()._load_from_state_dict(values, prefix, *args)


class Old(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.old = nn.Linear(2, 1)

    def forward(self, x):
        return self.old(x)


def rename(values, prefix):
    for last in ("weight", "bias"):
        if f"{prefix}old.{last}" in values:
            values[f"{prefix}new.{last}"] = values.pop(f"{prefix}old.{last}")


class Around(TrainModule):
    def __init__(self, part):
        super().__init__()
        torch.manual_seed(0)
        self.part = part()

    def training_step(self, batch):
        return self.part(batch[0]).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("part", [ByHook, ByOverride])
def test_a_module_that_changes_what_it_loads_is_asked_before_a_checkpoint_is_refused(tmp_path, part):
    run = trainer(tmp_path / "run").fit(old := Around(Old), loader())
    loaded = Around(part)
    trainer(tmp_path / "val").validate(loaded, loader(), weights=run.latest)
    assert torch.equal(loaded.part.new.weight, old.part.old.weight)
    assert torch.equal(Around.load_from_checkpoint(run.latest, part=part).part.new.bias, old.part.old.bias)


def test_a_buffer_that_the_module_resizes_itself_is_no_reason_to_refuse_a_resume(tmp_path):
    run = trainer(tmp_path / "run").fit(Around(lambda: Resized(3)), loader())
    module = Around(lambda: Resized(1))
    trainer(tmp_path / "run", 2).fit(module, loader(), resume=run.latest)
    assert module.part.bank.shape == (3,)


def test_a_hook_that_does_not_help_ends_in_one_error_with_the_names(tmp_path):
    run = trainer(tmp_path / "run").fit(Around(Old), loader())
    error = refused(
        lambda: trainer(tmp_path / "val").validate(Around(NoHelp), loader(), weights=run.latest)
    )
    assert "part.new.weight" in error
    assert "part.old.weight" in error
    assert str(run.latest) in error


# -- what no resume can make again -----------------------------------------------------------------


class Grows(TrainModule):
    def __init__(self, what):
        super().__init__()
        self.line, self.what = nn.Linear(2, 1), what

    def training_step(self, batch):
        return self.line(batch[0]).square().mean()

    def on_step_start(self, trainer):
        if trainer.global_step == 1:
            if self.what == "added":
                self.scale = nn.Parameter(torch.ones(1))
            if self.what == "removed":
                del self.line.bias
                self.line.bias = None
            if self.what == "reshaped":
                self.line.weight = nn.Parameter(torch.ones(3, 2))
            if self.what == "replaced":
                self.line.weight = nn.Parameter(torch.ones(1, 2))
            if self.what == "groups":
                trainer.optimizers[0].param_groups[0]["params"].pop()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("added", "(scale: added)"),
        ("removed", "(line.bias: removed; SGD: 1 parameter that the module does not have)"),
        (
            "reshaped",
            "(line.weight: of another shape; SGD: 1 parameter that the module does not have)",
        ),
        ("replaced", "(SGD: 1 parameter that the module does not have)"),
        ("groups", "(SGD: its first groups hold other parameters)"),
    ],
)
@pytest.mark.fault(52)
def test_what_no_resume_can_make_again_is_said_once_when_it_is_saved(tmp_path, what, said):
    with pytest.warns(UserWarning, match="cannot be resumed") as caught:
        trainer(tmp_path / "run", callbacks=Checkpoint(every=1)).fit(Grows(what), loader())
    found = [str(w.message) for w in caught if "cannot be resumed" in str(w.message)]
    assert len(found) == 1
    assert said in found[0]


def test_what_a_constructor_adds_to_its_hparams_is_added_again(tmp_path):
    class Adds(TrainModule):
        def __init__(self, sizes):
            super().__init__()
            self.hparams.update(sizes)
            self.net = nn.Linear(2, self.hparams.width)

        def training_step(self, batch):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run = trainer(tmp_path).fit(Adds({"width": 3}), loader())
    assert Adds.load_from_checkpoint(run.latest).hparams == {"sizes": {"width": 3}, "width": 3}
