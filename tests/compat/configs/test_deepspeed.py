"""DeepSpeed's own configuration files."""

import json
from pathlib import Path

import pytest

from paceline import PacelineError
from paceline.compat.configs import deepspeed_names as names
from paceline.compat.configs.recognise import read_configuration
from paceline.strategies import DeepSpeed

from .examples import FULL_JSON, PLAIN_JSON


def read(folder, text, monkeypatch):
    monkeypatch.chdir(folder)
    Path("ds.json").write_text(text if isinstance(text, str) else json.dumps(text, indent=1))
    return read_configuration(Path("ds.json"))


def test_a_file_without_contradictions_is_passed_by_its_name(tmp_path, monkeypatch):
    reading = read(tmp_path, PLAIN_JSON, monkeypatch)
    assert reading.source == "DeepSpeed"
    assert reading.trainer == {
        "strategy": {"class": "DeepSpeed", "config": "ds.json"},
        "precision": "bf16",
        "clip_grad_norm": 1.0,
    }
    outcomes = {note.path: note.outcome for note in reading.notes}
    assert outcomes == {
        "train_micro_batch_size_per_gpu": "default",
        "train_batch_size": "default",
        "gradient_accumulation_steps": "default",
        "gradient_clipping": "read",
        "bf16": "read",
        "zero_optimization.stage": "read",
        "zero_optimization.overlap_comm": "read",
        "zero_optimization.reduce_bucket_size": "default",
        "zero_optimization.stage3_param_persistence_threshold": "read",
        "steps_per_print": "read",
        "wall_clock_breakdown": "read",
    }


def test_what_contradicts_a_run_is_taken_out(tmp_path, monkeypatch):
    reading = read(tmp_path, FULL_JSON, monkeypatch)
    became = {note.path: note.became for note in reading.notes}
    assert became["optimizer"] == (
        "configure_optimizers returns torch.optim.AdamW(self.parameters(), lr=3e-05, betas=(0.8, 0.999))"
    )
    assert became["scheduler"] == (
        'configure_optimizers returns "lr_scheduler": Linear(warmup=500), of paceline.schedules'
    )
    assert became["train_micro_batch_size_per_gpu"] == "DataLoader(..., batch_size=8)"
    assert became["train_batch_size"] == "global_batch_size: 64"
    assert "accumulate" not in reading.trainer
    strategy = reading.trainer["strategy"]
    assert strategy["stage"] == 2
    assert not {"optimizer", "scheduler", "fp16", "torch_autocast", "elasticity"} & set(strategy["config"])


@pytest.mark.parametrize("text", [PLAIN_JSON, FULL_JSON], ids=["plain", "full"])
def test_our_strategy_takes_it(text, tmp_path, monkeypatch):
    from paceline.strategies import make_precision
    from paceline.strategies.deepspeed.config import make_config

    trainer = read(tmp_path, text, monkeypatch).trainer
    strategy = dict(trainer["strategy"])
    strategy.pop("class")
    made = DeepSpeed(**strategy)
    config = make_config(made.config, made.stage, False, make_precision(trainer["precision"]), None, 1)
    original = json.loads(text.replace("\t", " "))["zero_optimization"]
    zero = config["zero_optimization"]
    assert {key: zero[key] for key, value in original.items() if value != "auto"} == {
        key: value for key, value in original.items() if value != "auto"
    }


@pytest.mark.parametrize(
    ("config", "strategy"),
    [
        ({"train_batch_size": 8}, "deepspeed_stage_0"),
        ({"zero_optimization": {"stage": 2}}, "deepspeed_stage_2"),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
            "deepspeed_stage_1_offload",
        ),
        ({"zero_optimization": "auto", "bf16": {"enabled": True}}, "deepspeed"),
        (
            {"steps_per_print": 10, "train_batch_size": 8},
            {"class": "DeepSpeed", "stage": 0, "config": "ds.json"},
        ),
    ],
)
def test_the_shortest_form(config, strategy, tmp_path, monkeypatch):
    assert read(tmp_path, config, monkeypatch).trainer["strategy"] == strategy


@pytest.mark.parametrize(
    ("block", "precision", "outcome"),
    [
        ({"bf16": {"enabled": True}}, "bf16", "read"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16-true", "read"),
        ({"torch_autocast": {"enabled": True, "dtype": "torch.bfloat16"}}, "bf16", "read"),
        ({"torch_autocast": {"enabled": True, "dtype": "float16"}}, "fp16", "read"),
        ({"fp16": {"enabled": True}}, "fp16", "read"),
        ({"amp": {"enabled": True}}, "fp16", "read"),
        ({"fp16": {"enabled": False}}, None, "default"),
    ],
)
def test_precision(block, precision, outcome, tmp_path, monkeypatch):
    reading = read(tmp_path, {"train_batch_size": 8, **block}, monkeypatch)
    assert reading.trainer.get("precision") == precision
    assert reading.notes[1].outcome == outcome


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"zero_optimisation": {"stage": 2}, "bf16": {}}, "did you mean zero_optimization?"),
        (
            {"zero_optimization": {"stage": 4}},
            "zero_optimization.stage (ds.json:3): got 4; allowed: 0, 1, 2, 3",
        ),
        ({"zero_optimization": {"overlap_com": True}}, "did you mean overlap_comm?"),
        ({"zero_optimization": 2}, "got 2"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16 (ds.json:5): it is enabled, and"),
        ('{"train_batch_size": 8,\n "bf16": }', "where: ds.json:2"),
        ('{"train_batch_size": 8,\n\t"bf16": }', "this is no JSON\n  where: ds.json:2"),
        ({"learning_rate": 1}, "no configuration of Accelerate, DeepSpeed, LLaMA-Factory or Axolotl"),
        ("", "the file is empty"),
        ("[1]", "a configuration holds key: value lines"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, said, tmp_path, monkeypatch):
    with pytest.raises(PacelineError) as raised:
        read(tmp_path, text, monkeypatch)
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 12


def test_every_key_of_zero_optimization_is_known():
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    fields = zero.DeepSpeedZeroConfig.model_fields
    keys = {*fields, *(field.alias for field in fields.values() if field.alias)}
    assert keys <= {"stage", *names.ZERO}
