"""A run's forward as a program: in processes without this package, and what cannot be one."""

import subprocess
import sys

import pytest
import torch
from helpers.environment import clean_environment
from helpers.ranks import run_ranks
from safetensors.torch import load_file
from torch import nn

from paceline import PacelineError, TrainModule
from paceline.__main__ import app
from paceline.recipes.digits import Digits
from paceline.recipes.vit_cifar10 import ViTClassifier
from paceline.tools.exported_program import export_program, find_call

LOADS = """
import sys

import onnxruntime
import torch

given = torch.load("given.pt")
session = onnxruntime.InferenceSession("program/model.onnx")
(logits,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
loaded = torch.export.load("program/model.pt2").module()
torch.save([loaded(given).detach(), torch.from_numpy(logits)], "outputs.pt")
assert "paceline" not in sys.modules
"""
RUNS = {
    "digits": (["preset=quick"], Digits, "model", (5, 64)),
    "vit-cifar10": (["preset=tiny", "epochs=1"], ViTClassifier, "", (5, 3, 32, 32)),
}


def call(*shape, **kwargs):
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(0)),), kwargs


def run(*words, folder):
    return run_ranks("paceline", 1, *words, folder=folder)


@pytest.mark.launch
@pytest.mark.parametrize("name", ["digits", pytest.param("vit-cifar10", marks=pytest.mark.soak)])
def test_programs_of_a_run_compute_in_other_processes_what_its_averages_do(name, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    settings, kind, part, shape = RUNS[name]
    run("fit", name, *settings, "callbacks+=ema", "trainer.loggers=false", folder=tmp_path)
    for form in ("torch", "onnx"):
        done = run("export", f"runs/{name}/1", "program", "--format", form, folder=tmp_path)
        assert "batches of 4, 7, 1 samples differ" in done.stderr, done.output
    (given,), _ = call(*shape)
    torch.save(given, tmp_path / "given.pt")
    loads = [sys.executable, "-c", LOADS]
    subprocess.run(loads, cwd=tmp_path, env=clean_environment(), check=True, timeout=120)

    module = kind.load_from_checkpoint(tmp_path / f"runs/{name}/1").eval()
    with torch.no_grad():
        expected = module.get_submodule(part)(given)
    for found in torch.load(tmp_path / "outputs.pt"):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    run("export", f"runs/{name}/1", "weights", folder=tmp_path)
    weights = load_file(tmp_path / "weights/model.safetensors")
    in_program = torch.export.load(tmp_path / "program/model.pt2").state_dict
    prefix = f"{part}." if part else ""
    assert weights.keys() == {f"{prefix}{one}" for one in in_program}
    assert all(torch.equal(weights[f"{prefix}{one}"], value) for one, value in in_program.items())
    newest = sorted((tmp_path / f"runs/{name}/1/checkpoints").glob("*/model-*.safetensors"))[-1]
    trained = load_file(newest)
    assert not all(torch.equal(trained[f"model.{one}"], value) for one, value in weights.items())


class OfValues(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class OfFourSamples(nn.Module):
    def forward(self, x):
        return torch.stack([row * 2 for row in x])


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand(x.shape[0], 1)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x, more=None, doubled=True):
        return {"sum": self.drop(x) + more["other"], "rest": (x * (2 if doubled else 1),)}


def test_a_branch_on_values_is_named_with_its_line(tmp_path):
    with pytest.raises(PacelineError, match="depends on the values of a tensor") as error:
        export_program(OfValues(), "", call(5, 3), tmp_path, "torch")
    line = OfValues.forward.__code__.co_firstlineno + 1
    assert f"test_exported_program.py:{line}" in str(error.value)
    assert "torch.where" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_size_that_forward_fixes_is_said(tmp_path):
    done = export_program(OfFourSamples(), "", call(5, 3), tmp_path, "torch")
    assert (done.sizes, done.inputs) == ([5], "float32[5, 3]")
    assert done.fixed.endswith("x.shape[0] stays free")


def test_other_values_than_the_modules_are_refused(tmp_path):
    with pytest.raises(PacelineError, match="computes other values than the module, for 4 samples"):
        export_program(Random(), "", call(5, 3), tmp_path, "torch")
    assert list(tmp_path.iterdir()) == []


def test_nested_arguments_and_a_first_batch_of_one_sample(tmp_path):
    done = export_program(Nested(), "", call(1, 3, more={"other": torch.ones(1, 3)}), tmp_path, "torch")
    assert (done.fixed, list(done.sizes), done.difference) == ("", [4, 7, 1], 0)
    assert done.inputs == "float32[batch, 3], float32[batch, 3]"
    loaded = torch.export.load(done.file).module()
    found = loaded(torch.ones(9, 3), more={"other": torch.ones(9, 3)})
    assert torch.equal(found["sum"], torch.full((9, 3), 2.0))


class Two(TrainModule):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def validation_step(self, batch):
        return self.second(self.first(batch)).sum()


def test_of_several_parts_one_is_to_be_named():
    module, batch = Two(), torch.ones(3, 2)
    with pytest.raises(PacelineError, match="calls several parts") as error:
        find_call(module, None, lambda: module.validation_step(batch))
    assert "--submodule first, --submodule second" in str(error.value)
    part, (args, kwargs) = find_call(module, "second", lambda: module.validation_step(batch))
    assert (part, args[0].shape, kwargs) == ("second", (3, 2), {})
    with pytest.raises(PacelineError, match="calls no such part"):
        find_call(module, "third", lambda: module.validation_step(batch))


def test_onnx_needs_its_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(PacelineError, match="--format onnx needs onnx") as error:
        export_program(Nested(), "", call(2, 3), tmp_path, "onnx")
    assert "pip install 'paceline[onnx]'" in str(error.value)


@pytest.mark.parametrize(
    "option", ["--merged", "--gguf", "--public", "--dry-run", "--to=torch", "--hub=me/it"]
)
def test_options_for_weights_are_refused_beside_a_format(option, tmp_path):
    with pytest.raises(PacelineError, match="--format writes a program, and other options are for weights"):
        app(["export", "run", str(tmp_path), "--format=torch", option], standalone_mode=False)
