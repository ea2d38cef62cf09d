"""Checkpoints in torch's own forms: another loop continues with the same numbers."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_state_dict,
)
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from paceline import PacelineError, Trainer, TrainModule
from paceline.__main__ import app
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint.export import pretrained_part
from paceline.trainer.checkpoint.training_state import export_training_state

GOLDEN = Path(__file__).parents[2] / "golden/format-1"


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.ones(()))

    def training_step(self, batch):
        return loss_of(self.inner, self.scale, batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW([{"params": [self.scale], "lr": 0.1}, {"params": self.inner.parameters()}])


def loss_of(inner, scale, x):
    return (inner(x) * scale).square().mean()


@pytest.fixture
def trained(tmp_path):
    """The run, and its module after one more step of a plain loop."""
    trainer = Trainer(
        accelerator="cpu", progress=False, run_dir=tmp_path, name="n", max_steps=5, loggers=False,
        callbacks=[Checkpoint(every=5), Checkpoint(every=5, weights_only=True, name="weights")],
    )  # fmt: skip
    module = Net()
    run = trainer.fit(module, DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3) / 36), 4))
    found = copy.deepcopy(dict(module.state_dict()))
    step(module, trainer.optimizers[0])
    return run, found, dict(module.state_dict())


def step(module, optimizer):
    optimizer.zero_grad()
    loss_of(module.inner, module.scale, torch.linspace(0, 1, 6).reshape(2, 3)).backward()
    optimizer.step()


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def other():
    """A module with other weights, and its optimizer with other settings."""
    module = Net()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    optimizer = module.configure_optimizers()
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 7.0, 0.5
    return module, optimizer


def test_a_plain_loop_continues_from_the_file(trained, tmp_path):
    run, saved, after = trained
    export_training_state(run.latest, tmp_path / "out", "torch")
    content = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)
    assert content["progress"] == {"global_step": 5, "epoch": 1, "samples": 20}
    module, optimizer = other()
    module.load_state_dict(content["model"])
    equal(dict(module.state_dict()), saved)
    optimizer.load_state_dict(content["optimizer"])
    step(module, optimizer)
    equal(dict(module.state_dict()), after)


def test_torch_distributed_checkpoint_continues_from_the_folder(trained, tmp_path):
    run, saved, after = trained
    done = CliRunner().invoke(app, ["export", str(run.folder), str(tmp_path / "out"), "--to", "dcp"])
    assert done.exit_code == 0, done.output
    module, optimizer = other()
    step(module, optimizer)  # it makes the state that is loaded into
    state = {
        "model": get_model_state_dict(module),
        "optimizer": get_optimizer_state_dict(module, optimizer),
        "progress": {"global_step": 0, "epoch": 0, "samples": 0},
    }
    dcp.load(state, checkpoint_id=str(tmp_path / "out"), no_dist=True)
    assert state["progress"] == {"global_step": 5, "epoch": 1, "samples": 20}
    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    equal(dict(module.state_dict()), saved)
    step(module, optimizer)
    equal(dict(module.state_dict()), after)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_2"])
def test_checkpoints_of_many_ranks_are_those_of_one(strategy, tmp_path):
    """What two ranks wrote, beside what one device wrote of the same training."""
    found = {}
    for name in ("single", strategy):
        export_training_state(GOLDEN / name, tmp_path / name, "torch")
        found[name] = torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
    one, many = found["single"], found[strategy]
    assert one["progress"] == many["progress"]
    assert one["model"].keys() == many["model"].keys()
    for name, value in one["model"].items():
        torch.testing.assert_close(many["model"][name], value, rtol=1e-4, atol=1e-6)
    assert one["optimizer"]["state"].keys() == many["optimizer"]["state"].keys()
    for number, state in one["optimizer"]["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(many["optimizer"]["state"][number][key], value, rtol=1e-3, atol=1e-6)


def test_a_part_has_its_own_names_and_state(trained, tmp_path):
    run, saved, _ = trained
    export_training_state(run.latest, tmp_path / "out", "torch", "inner")
    content = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)
    inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    inner.load_state_dict(content["model"])
    assert torch.equal(inner[0].weight, saved["inner.0.weight"])
    optimizer = torch.optim.AdamW(inner.parameters())
    optimizer.load_state_dict(content["optimizer"])
    assert optimizer.state[inner[0].weight]["exp_avg"].shape == (4, 3)
    assert optimizer.param_groups[0]["lr"] == 0.001
    with pytest.raises(PacelineError, match="no submodule 'outer'"):
        export_training_state(run.latest, tmp_path / "x", "torch", "outer")


def test_weights_alone_have_no_optimizer(trained, tmp_path):
    run, saved, _ = trained
    (weights,) = (run.folder / "checkpoints").glob("weights-*")
    export_training_state(weights, tmp_path / "out", "torch")
    content = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)
    assert content.keys() == {"model", "progress"}
    equal(content["model"], saved)


class Counted(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Two(TrainModule):
    """Two optimizers, and a layer that keeps more than tensors."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = nn.Linear(3, 1), Counted(3, 1)

    def training_step(self, batch):
        for optimizer, layer in zip(self.optimizers(), (self.a, self.b), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.a.parameters()), torch.optim.SGD(self.b.parameters(), 0.1, 0.9)]


def test_several_optimizers_and_what_a_layer_keeps_beside_tensors(tmp_path):
    trainer = Trainer(
        accelerator="cpu", progress=False, run_dir=tmp_path, name="n", max_steps=2, loggers=False
    )
    run = trainer.fit(Two(), DataLoader(TensorDataset(torch.ones(8, 3)), 4))
    export_training_state(run.latest, tmp_path / "all", "torch")
    content = torch.load(tmp_path / "all/checkpoint.pt", weights_only=True)
    module = Two()
    module.load_state_dict(content["model"])
    assert module.b.calls == 3
    for name, optimizer in zip(("optimizer", "optimizer_1"), module.configure_optimizers(), strict=True):
        optimizer.load_state_dict(content[name])
    export_training_state(run.latest, tmp_path / "part", "torch", "b")
    content = torch.load(tmp_path / "part/checkpoint.pt", weights_only=True)
    assert content.keys() == {"model", "optimizer", "progress"}
    part = Counted(3, 1)
    part.load_state_dict(content["model"])
    torch.optim.SGD(part.parameters(), 0.1, 0.9).load_state_dict(content["optimizer"])


class Pretrained(nn.Linear):
    """As models of Hugging Face are recognised, which hold others of their kind."""

    class Config:
        def save_pretrained(self, folder):
            (Path(folder) / "config.json").write_text("{}")

    config = Config()

    @classmethod
    def from_pretrained(cls, folder):
        raise NotImplementedError


def test_the_outermost_model_of_hugging_face_is_found(tmp_path):
    class Wraps(Net):
        def __init__(self, several=False):
            super().__init__()
            self.model = Pretrained(3, 1)
            self.model.inner = Pretrained(3, 1)
            if several:
                self.other = Pretrained(3, 1)

    def run(module):
        trainer = Trainer(accelerator="cpu", progress=False, run_dir=tmp_path, max_steps=1, loggers=False)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        module.inner.requires_grad_(True)
        module.scale.requires_grad_(True)
        return trainer.fit(module, DataLoader(TensorDataset(torch.ones(8, 3)), 4)).latest

    one = run(Wraps())
    assert pretrained_part(one, None) == "model"
    assert pretrained_part(one, "model.inner") == "model.inner"
    with pytest.raises(PacelineError, match=r"there are several(.|\n)*--submodule model, --submodule"):
        pretrained_part(run(Wraps(several=True)), None)


@pytest.mark.parametrize(("to", "file"), [("torch", ".checkpoint.pt"), ("dcp", ".metadata.tmp")])
def test_a_file_that_cannot_be_written_is_an_error_that_says_so(trained, tmp_path, to, file):
    run, _, _ = trained
    (tmp_path / "out" / file / "taken").mkdir(parents=True)
    with pytest.raises(PacelineError, match="nothing can be written here"):
        export_training_state(run.latest, tmp_path / "out", to)


def test_what_cannot_be_written_is_said(trained, tmp_path):
    run, _, _ = trained
    (tmp_path / "file").touch()
    with pytest.raises(PacelineError, match="nothing can be written here"):
        export_training_state(run.latest, tmp_path / "file/out", "dcp")
    with pytest.raises(PacelineError, match=r"and there is none(.|\n)*fix: --to safetensors"):
        pretrained_part(run.latest, None)
    with pytest.raises(PacelineError, match="and 'inner' is none"):
        pretrained_part(run.latest, "inner")
