"""Loops written for Fabric: what they give on two ranks, and what this package adds or refuses."""

import copy
import itertools
import json
import subprocess
import sys

import pytest
import torch
from helpers.environment import clean_environment
from helpers.lightning_records import FOLDER, OURS
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError
from paceline.compat.lightning import Fabric
from paceline.compat.lightning.fabric.wrappers import FabricModule
from paceline.strategies import AutocastFP16

SCRIPT = FOLDER / "fabric" / "ranks.py"
CLOSE = {"rtol": 2e-5, "atol": 1e-6}


def on_ranks(folder, what, strategy, ranks, file=None):
    """What rank 0 of a job wrote."""
    out = folder / "out.json"
    more = () if file is None else (file,)
    run_ranks(SCRIPT, ranks, OURS, out, what, strategy, ranks, *more, folder=folder)
    return json.loads(out.read_text())


def assert_close(found, expected):
    """Numbers of two nested structures, one by one."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = [*found.values()], [*expected.values()]
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
        return
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The fit in one process: its folder, and what it found."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, on_ranks(folder, "fit", "auto", 1)


@pytest.mark.launch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3"])
def test_two_ranks_take_the_steps_of_one_and_read_its_file(tmp_path, alone, strategy):
    folder, (steps, weights) = alone
    found, theirs = on_ranks(tmp_path, "fit", strategy, 2)
    for mine, all_of_them in zip(found, steps, strict=True):
        assert set(mine) == set(all_of_them)
    tail = steps[3]
    assert (len(tail), len(steps)) == (3, 8)
    assert steps[:4] != steps[4:]
    assert_close(theirs, weights)
    # What one process wrote after an epoch these ranks continue, and the other way round.
    (tmp_path / "again").mkdir()
    continued, there = on_ranks(tmp_path / "again", "fit", strategy, 2, folder / "after_one.ckpt")
    assert [set(one) for one in continued] == [set(one) for one in steps[4:]]
    assert_close(there, weights)
    back, here = on_ranks(tmp_path, "fit", "auto", 1, tmp_path / "after_one.ckpt")
    assert back == steps[4:]
    assert_close(here, weights)


@pytest.mark.launch
def test_launch_starts_the_ranks_of_a_loop(tmp_path):
    out = tmp_path / "out.json"
    run_ranks(SCRIPT, 1, OURS, out, "gan", "ddp", 2, folder=tmp_path, launches=True)
    found = json.loads(out.read_text())
    (tmp_path / "alone").mkdir()
    assert_close(found, on_ranks(tmp_path / "alone", "gan", "auto", 1))


@pytest.mark.launch
@pytest.mark.parametrize("name", ["gan", pytest.param("resume", marks=pytest.mark.soak)])
def test_two_ranks_are_as_under_lightning(tmp_path, name):
    pytest.importorskip("lightning")
    out = tmp_path / "theirs.json"
    command = [sys.executable, str(SCRIPT), "lightning", str(out), name, "ddp", "2"]
    subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), check=True, timeout=240, capture_output=True
    )
    (tmp_path / "ours").mkdir()
    ours = on_ranks(tmp_path / "ours", name, "ddp", 2)
    assert_close(json.loads(json.dumps(ours)), json.loads(out.read_text()))


# -- one process -----------------------------------------------------------------------------------


def numbers(size, batch, **options):
    return DataLoader(TensorDataset(torch.arange(size)), batch, **options)


def taken(loader):
    return [batch.tolist() for (batch,) in loader]


def test_a_loader_gives_the_order_of_the_trainer_and_keeps_its_place():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(3)
    loader, again = (fabric.setup_dataloaders(numbers(11, 4, shuffle=True)) for _ in range(2))
    state = torch.get_rng_state()
    first, second = taken(loader), taken(loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(11))
    assert [taken(again), taken(again)] == [first, second]
    third = fabric.setup_dataloaders(numbers(11, 4, shuffle=True))
    batches = iter(third)
    assert next(batches)[0].tolist() == first[0]
    place = third.state_dict()
    assert place == {"epoch": 0, "position": 4}
    resumed = fabric.setup_dataloaders(numbers(11, 4, shuffle=True))
    resumed.load_state_dict(place)
    assert [taken(resumed), taken(resumed)] == [first[1:], second]
    assert (len(resumed), resumed.batch_size, resumed.loss_weight) == (3, 4, 1.0)


def test_a_loader_that_is_read_as_it_is():
    fabric = Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(numbers(5, 2), use_distributed_sampler=False)
    assert taken(loader) == [[0, 1], [2, 3], [4]]
    place = next(iter(loader)) and loader.state_dict()
    loader.load_state_dict(place)
    loader.load_state_dict(place | {"position": 0})
    with pytest.raises(PacelineError, match="no place to continue from"):
        loader.load_state_dict(place | {"position": 2})
    assert not hasattr(loader, "nothing")


def a_module(fabric, module=None):
    module = nn.Linear(2, 1) if module is None else module
    return fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, m, o: f.backward(m(torch.ones(1, 2)).sum(), create_graph=True), "torch.autograd.grad"),
        (lambda f, m, o: f.backward(m(torch.ones(1, 2)).sum(), torch.ones(1)), "retain_graph"),
        (lambda f, m, o: f.clip_gradients(m, o, max_norm=1.0, norm_type=1), "norm_type=1"),
        (lambda f, m, o: f.all_gather(torch.ones(1), group="mine"), "over all ranks"),
        (lambda f, m, o: f.all_reduce(torch.ones(1), reduce_op="product"), "allowed: mean"),
        (lambda f, m, o: f.load("nothing.ckpt"), "there is no such checkpoint"),
        (lambda f, m, o: m.mark_forward_method("nothing"), "'nothing'"),
        (lambda f, m, o: m.mark_forward_method("forward"), "beside forward"),
        (lambda f, m, o: f.launch(3), "first argument is the Fabric"),
    ],
)
def test_what_is_refused(call, message):
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(PacelineError, match=message):
        call(fabric, *a_module(fabric))


def test_arguments_that_have_no_counterpart(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)  # by a test before
    with pytest.raises(PacelineError, match="accelerator='tpu' is not offered"):
        Fabric(accelerator="tpu")
    with pytest.raises(PacelineError, match="pytest would be started again"):
        Fabric(accelerator="cpu", devices=2)


class Thing:
    pass


def test_a_file_that_may_run_code_is_read_when_it_is_trusted(tmp_path):
    fabric, path = Fabric(accelerator="cpu", devices=1), tmp_path / "state.ckpt"
    module, _ = a_module(fabric)
    fabric.save(path, {"module": module, "thing": Thing()})
    assert [one.name for one in tmp_path.iterdir()] == ["state.ckpt"]
    with pytest.raises(PacelineError, match="weights_only=False"):
        fabric.load(path, {"module": module})
    assert isinstance(fabric.load(path, {"module": module}, weights_only=False)["thing"], Thing)
    with pytest.raises(PacelineError, match="without optimizer; it has module, thing"):
        fabric.load(path, {"optimizer": 1}, weights_only=False)


def test_scaled_gradients_come_from_fabric_alone():
    fabric = Fabric(accelerator="cpu", devices=1, precision=AutocastFP16(16.0))
    module, optimizer = a_module(fabric)
    with pytest.raises(PacelineError, match=r"fabric.backward\(loss\)"):
        module(torch.ones(1, 2)).sum().backward()
    fabric.backward(module(torch.ones(1, 2)).sum())
    assert module.weight.grad.tolist() == [[16.0, 16.0]]
    fabric.clip_gradients(module, optimizer, max_norm=100.0)
    assert module.weight.grad.tolist() == [[1.0, 1.0]]
    before = module.weight.tolist()
    optimizer.step()
    torch.testing.assert_close(module.weight, torch.tensor(before) - 0.1)


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs):
        return self.layer(inputs)

    def encode(self, inputs):
        return self(inputs).dtype


def test_a_marked_method_computes_as_forward_does():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    module, _ = a_module(fabric, Calls())
    assert isinstance(module, FabricModule)
    assert module(torch.ones(1, 2)).dtype == torch.float32
    module.mark_forward_method(module.encode)
    assert module.encode(torch.ones(1, 2)) == torch.bfloat16
    assert "forward" not in vars(module.module)
    assert not hasattr(module, "training_step")


def test_a_copy_computes_with_its_own_weights():
    fabric = Fabric(accelerator="cpu", devices=1)
    module, optimizer = a_module(fabric)
    average, inputs = copy.deepcopy(module), torch.ones(1, 2)
    before = module(inputs)
    fabric.backward(before.sum())
    optimizer.step()
    assert torch.equal(average(inputs), before)
    assert not torch.equal(module(inputs), before)


def test_a_compiled_module_has_the_names_of_the_users():
    fabric = Fabric(accelerator="cpu", devices=1)
    plain = nn.Linear(2, 1)
    module, optimizer = a_module(fabric, torch.compile(plain, backend="eager"))
    assert (module.module, [*module.state_dict()]) == (plain, ["weight", "bias"])
    before = plain.weight.tolist()
    fabric.backward(module(torch.ones(1, 2)).sum())
    optimizer.step()
    torch.testing.assert_close(plain.weight, torch.tensor(before) - 0.1)
