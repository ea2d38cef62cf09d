"""precision="fp8": which layers are converted, where it is refused, and that it trains (emulated)."""

import sys
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.messages import refusal, says
from helpers.pairwise import soaked
from helpers.ranks import run_cases
from torch import nn

from paceline import PacelineError, Trainer
from paceline.strategies import Float8, make_precision
from paceline.strategies.dtypes.precision import AutocastBF16

JOB = Path(__file__).with_name("precision_job.py")
CPU = torch.device("cpu")
STRATEGIES = ("ddp", "fsdp", "hsdp", "deepspeed_stage_0", "deepspeed_stage_2", "deepspeed_stage_3")
USUAL = ("ddp", "fsdp", "deepspeed_stage_3")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 520))
        self.odd = nn.Linear(520, 1000)
        self.small = nn.Linear(1000, 16)
        self.lm_head = nn.Linear(1024, 1024)


def test_it_is_refused_where_the_device_has_no_float8():
    pytest.importorskip("torchao")
    with pytest.raises(PacelineError, match="needs a device with float8 products") as caught:
        make_precision("fp8").attach(CPU)
    assert 'precision="bf16"' in str(caught.value)


def test_it_is_refused_without_torchao(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(PacelineError, match="needs torchao, which is not installed"):
        Float8(emulate=True).attach(CPU)


def test_a_torchao_that_this_torch_cannot_import_is_not_called_missing(monkeypatch, tmp_path):
    """As torchao 0.18 under torch 2.9."""
    folder = tmp_path / "torchao"
    folder.mkdir()
    (folder / "__init__.py").write_text("from torch.nn.functional import gone\n")
    monkeypatch.delitem(sys.modules, "torchao", raising=False)
    monkeypatch.delitem(sys.modules, "torchao.float8", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PacelineError, match=r"a torchao that works with torch(.|\n)*'gone'"):
        Float8(emulate=True).attach(CPU)


@pytest.mark.parametrize("name", ["mxfp8", "NVFP4", "fp4"])
def test_formats_of_blackwell_are_refused_with_an_alternative(name):
    with pytest.raises(PacelineError, match="needs NVIDIA Blackwell") as caught:
        Trainer(precision=name)
    assert 'precision="fp8"' in str(caught.value)


def test_wrong_arguments_are_reported_together():
    says(refusal(Float8, "blockwise", min_features=0, emulate="yes"), "recipe", "min_features", "emulate")


def test_large_layers_are_converted_and_the_others_named():
    pytest.importorskip("torchao")
    net, precision = Net(), Float8(emulate=True)
    before = {name: id(p) for name, p in net.named_parameters()}
    precision.attach(CPU)
    precision.convert_module(net)
    kinds = {n: type(m).__name__ for n, m in net.named_modules() if isinstance(m, nn.Linear)}
    assert kinds == {
        "wide.0": "Float8Linear",
        "wide.2": "Linear",
        "odd": "Linear",
        "small": "Linear",
        "lm_head": "Linear",
    }
    assert precision.left_out == {
        "wide.2": "features no multiple of 16",
        "odd": "features no multiple of 16",
        "small": "small",
        "lm_head": "by its name",
    }
    assert {name: id(p) for name, p in net.named_parameters()} == before
    assert precision.description.startswith("fp8: 1 linear layers in float8, not ")
    assert "lm_head (by its name)" in precision.description
    precision.convert_module(net)  # a second run with the same module
    assert len(precision.converted) == 1


def test_what_is_left_out_can_be_chosen():
    pytest.importorskip("torchao")
    net, precision = Net(), Float8("rowwise", skip=[], min_features=1000, emulate=True)
    precision.attach(CPU)
    precision.convert_module(net)
    assert [type(m).__name__ for m in (net.lm_head, net.wide[0])] == ["Float8Linear", "Linear"]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    pytest.importorskip("torchao")
    chosen = STRATEGIES if request.config.getoption("--soak") else USUAL
    cases = {strategy: {"strategy": strategy, "precision": "fp8 emulated"} for strategy in chosen}
    return run_cases(JOB, tmp_path_factory.mktemp("fp8"), cases, one_pair=True, function="train")


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return load_job(JOB).train(tmp_path_factory.mktemp("one"), "single", "32", devices=1)


@pytest.mark.launch  # for its time
@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_it_trains_as_float32_does_within_float8_s_rounding(found, exact, strategy):
    losses, expected = found[strategy][0]["losses"], exact["losses"]
    apart = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    assert 1e-3 < apart < 0.1
    assert found[strategy][0]["dtypes"]["parameters"] == "torch.float32"
    said = "precision fp8: 8 linear layers in float8, not head (by its name)\n"
    assert said in found[strategy][0]["output"]


def test_all_else_is_bf16():
    assert isinstance(make_precision("fp8"), AutocastBF16)
