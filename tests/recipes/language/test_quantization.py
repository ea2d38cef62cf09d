"""Adapters on quantized bases: what is learned, resumed to the bit, and exported."""

import sys
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from paceline import PacelineError
from paceline.__main__ import app
from paceline.callbacks import LambdaCallback

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.callbacks.loggers.series import read_rows
from paceline.recipes.language.models import load_causal_model
from paceline.recipes.llm_finetune import Config, build

BITS = {
    "bitsandbytes-4": {"load_in_4bit": True},
    "bitsandbytes-8": {"load_in_8bit": True},
    "torchao-8": {"load_in_8bit": True, "quantization": "torchao"},
}
RUN = {"length": 64, "batch_size": 2, "epochs": 1, "learning_rate": 2e-3, "method": "lora", "lora_rank": 4}


@pytest.fixture(params=BITS)
def bits(request):
    """Settings of a quantized base, whose package is here."""
    if request.param == "torchao-8":
        pytest.importorskip("torchao")
    else:
        pytest.importorskip("bitsandbytes")
    return BITS[request.param]


def fit(folder, name, stop=None, resume=None, validate_every=2, **settings):
    trainer = {"max_steps": 6, "limit_val_batches": 1, "accelerator": "cpu", "log_every": 1}
    trainer |= {"sanity_val_batches": 1 if validate_every == 2 else 0}
    trainer |= {"run_dir": folder / "runs", "name": name, "validate_every": validate_every}
    experiment = build(Config(**RUN | settings, trainer=trainer))
    if stop is not None:
        halt = LambdaCallback(on_step_end=lambda t: t.stop("half") if t.global_step == stop else None)
        experiment.trainer.callbacks.append(halt)
    run = experiment.fit(resume=resume) if resume else experiment.fit()
    rows = read_rows(run.folder / "metrics.jsonl")
    return run, experiment.module, [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.fit
def test_a_run_that_was_stopped_goes_on_to_the_bit_and_evaluation_changes_nothing(base, bits, tmp_path):
    """By bitsandbytes on a CPU with AVX512-BF16 it changed the weights of the training that followed."""
    _, once, losses = fit(tmp_path, "once", model=str(base), **bits)
    fit(tmp_path, "twice", stop=3, model=str(base), **bits)
    run, twice, again = fit(tmp_path, "twice", resume="latest", model=str(base), **bits)
    assert len(losses) == 6
    assert losses == again
    state = twice.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in once.state_dict().items())
    assert not any("base_layer" in name for name in state)
    assert fit(tmp_path, "never", validate_every=100, model=str(base), **bits)[2] == losses
    loads_and_is_not_merged(base, run.folder, twice, tmp_path)


def loads_and_is_not_merged(base, folder, module, out):
    """What a run on a quantized base has exported."""
    tokens = torch.arange(40).reshape(2, 20) * 7
    given = {"quantization": module.hparams["model"]["quantization"], "adapter": str(folder / "exported")}
    found = load_causal_model(str(base), lora={}, **given)
    plain = load_causal_model(str(base))
    with torch.no_grad():
        before, now, then = (
            model.eval()(input_ids=tokens).logits for model in (plain, found, module.model)
        )
    assert torch.equal(now, then)
    assert (before - now).abs().max() > 1e-2
    done = CliRunner().invoke(app, ["export", str(folder), str(out / "merged"), "--merged"])
    assert "the base is quantized" in str(done.exception)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit is without load_in_8bit"),
        ({"load_in_4bit": True, "quantization": "torchao"}, "no adapters on 4 bits of torchao"),
        ({"load_in_8bit": True, "quantization": "torchao", "lora_init": "pissa"}, "changes the base"),
        ({"load_in_8bit": True, "quantization": "torchao", "export_merged": True}, "is not merged"),
    ],
)
def test_what_does_not_go_with_quantization_is_an_error(settings, expected, monkeypatch):
    for name in ("bitsandbytes", "torchao"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(PacelineError, match=expected):
        Config(**RUN | settings, model="some/model").check("llm-finetune")
