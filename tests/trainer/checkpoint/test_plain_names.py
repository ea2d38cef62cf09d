"""A part that is compiled, or recomputes its activations, keeps its names in a checkpoint."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import assert_same_tensors, stored_tensors
from helpers.ranks import run_cases
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint
from paceline.errors import PacelineError
from paceline.trainer.checkpoint.export import consolidate


def compiled(part):
    return torch.compile(part, backend="eager")


WRAPPERS = {
    "plain": lambda part: part,
    "compiled": compiled,
    "recomputed": checkpoint_wrapper,
    "both": lambda part: compiled(checkpoint_wrapper(part)),
}
WRAPPED = [name for name in WRAPPERS if name != "plain"]


class Net(TrainModule):
    """A part that is wrapped, with a buffer and a tied weight, between two that are not."""

    def __init__(self, kind="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        block = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6))
        block[2].weight = block[0].weight
        block[1].register_buffer("seen", torch.ones(2))
        self.block = WRAPPERS[kind](block)
        self.last = nn.Linear(6, 1)

    def training_step(self, batch):
        return self.last(self.block(self.first(batch[0])).relu()).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fit(folder, module, epochs=1, **options):
    seed_everything(3)
    torch._dynamo.reset()
    data = DataLoader(TensorDataset(torch.randn(32, 4)), 8, shuffle=True)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "name": "n"}
    trainer = Trainer(**settings, max_epochs=epochs, run_dir=folder, callbacks=Checkpoint(), **options)
    return trainer.fit(module, data)


def on_rank(folder, kind, strategy):
    fit(folder, Net(kind), strategy=strategy)
    return {}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of one epoch, by what wraps the block."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = fit(tmp_path_factory.mktemp(kind), Net(kind)).latest
        return made[kind]

    return of


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_checkpoint_is_that_of_the_plain_module(checkpoint, kind):
    found = stored_tensors(checkpoint(kind))
    names = {"model.block.0.weight", "model.block.1.seen", "optim.0.block.1.weight.exp_avg"}
    assert names <= found.keys()
    assert_same_tensors(stored_tensors(checkpoint("plain")), found, 0)


@pytest.mark.parametrize(
    ("writer", "reader"), [("compiled", "plain"), ("plain", "compiled"), ("recomputed", "both")]
)
def test_a_run_goes_on_with_and_without_the_wrapper(checkpoint, tmp_path, writer, reader):
    whole = fit(tmp_path / "whole", Net(), epochs=2)
    resumed = fit_on(tmp_path / "resumed", Net(reader), checkpoint(writer))
    assert_same_tensors(stored_tensors(whole.latest), stored_tensors(resumed.latest), 0)


def test_a_checkpoint_with_names_of_compiled_parts_is_read_once_it_is_consolidated(checkpoint, tmp_path):
    """tests/golden/compiled-names is what fit(folder, Net("compiled")) wrote before names were plain."""
    old = tmp_path / "old"
    shutil.copytree(Path(__file__).parents[2] / "golden/compiled-names", old)
    for load in (lambda: fit_on(tmp_path, Net(), old), lambda: Net.load_from_checkpoint(old)):
        with pytest.raises(PacelineError, match="differences") as caught:
            load()
        assert f"fix: paceline checkpoint consolidate {old} OUT: _orig_mod" in str(caught.value)
    consolidate(old, tmp_path / "new")
    expected = stored_tensors(checkpoint("plain"))
    assert_same_tensors(expected, stored_tensors(tmp_path / "new"), 1e-6)
    whole = fit(tmp_path / "whole", Net(), epochs=2)
    for kind in ("plain", "compiled"):
        resumed = fit_on(tmp_path / kind, Net(kind), tmp_path / "new")
        assert_same_tensors(stored_tensors(whole.latest), stored_tensors(resumed.latest), 1e-6)


def fit_on(folder, module, checkpoint):
    seed_everything(3)
    data = DataLoader(TensorDataset(torch.randn(32, 4)), 8, shuffle=True)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "name": "n"}
    trainer = Trainer(**settings, max_epochs=2, run_dir=folder, callbacks=Checkpoint())
    return trainer.fit(module, data, resume=checkpoint)


@pytest.mark.parametrize(("writer", "reader"), [("both", "plain"), ("plain", "both")])
def test_weights_load_with_and_without_the_wrapper(checkpoint, writer, reader):
    loaded = Net.load_from_checkpoint(checkpoint(writer), kind=reader)
    expected = stored_tensors(checkpoint(writer))
    assert all(torch.equal(value, expected[f"model.{name}"]) for name, value in loaded.state_dict().items())
    assert len(loaded.state_dict()) == len(Net().state_dict())


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("other", WRAPPERS)
def test_a_state_dict_of_another_wrapping_loads(kind, other):
    """Also inside another module, with the names that torch gives the parts alone."""
    values = Net(other).state_dict()
    assert list(values) == list(Net().state_dict())
    outer = nn.ModuleDict({"inner": Net(kind)})
    outer.load_state_dict({f"inner.{name}": value for name, value in values.items()})
    assert list(outer.state_dict()) == [f"inner.{name}" for name in values]
    raw = {f"block.{name}": value for name, value in Net(other).block.state_dict().items()}
    given = {name: value for name, value in values.items() if not name.startswith("block.")} | raw
    Net(kind).load_state_dict(given)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Net(kind).load_state_dict(given | {"block.7.weight": torch.zeros(1)})


ON_RANKS = {
    f"{strategy} {kind}": {"strategy": strategy, "kind": kind}
    for strategy, kind in [
        ("ddp", "compiled"),
        ("fsdp", "compiled"),
        ("deepspeed_stage_1", "compiled"),
        ("ddp", "recomputed"),
    ]
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_cases(Path(__file__), folder, ON_RANKS, one_pair=True)
    return folder


@pytest.mark.parametrize("case", ON_RANKS)
def test_every_strategy_writes_plain_names(ranks, checkpoint, case):
    (found,) = (ranks / case.replace(" ", "-")).glob("n/1/checkpoints/step-*")
    assert stored_tensors(found).keys() == stored_tensors(checkpoint("plain")).keys()
