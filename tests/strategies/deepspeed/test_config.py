"""DeepSpeed's configuration: the run's own arguments, and the user's where the two agree."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from helpers.messages import says

from paceline import PacelineError
from paceline.strategies import DeepSpeed, Environment, StrategySettings, make_precision, make_strategy
from paceline.strategies.deepspeed.config import make_config, read_config

SETTINGS = StrategySettings(step_samples=64, micro_batch_size=8, micro_batches=4, clip_norm=0.5)
LAUNCHING = Environment(
    torch.device("cpu"), world_size=2, local_world_size=2, starts=2
)  # touches no process group


def config_of(users=None, stage=2, offload=False, precision="32", settings=SETTINGS, parameters=1000):
    return make_config(read_config(users), stage, offload, make_precision(precision), settings, parameters)


def refusal(**given) -> str:
    with pytest.raises(PacelineError) as refused:
        config_of(**given)
    return str(refused.value)


@pytest.mark.parametrize("stage", range(4))
def test_the_run_says_what_a_step_is_and_deepspeed_clips_nothing(stage):
    config = config_of(stage=stage)
    assert config["zero_optimization"]["stage"] == stage
    assert config["gradient_clipping"] == 0.0  # its own default is 1.0
    assert config["gradient_accumulation_steps"] == config["train_micro_batch_size_per_gpu"] == 1
    assert "fp16" not in config


def test_a_dict_and_a_file_are_merged_alike(tmp_path):
    users = {
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 77},
        "wall_clock_breakdown": True,
    }
    (tmp_path / "ds.json").write_text(json.dumps(users))
    for given in (users, tmp_path / "ds.json", str(tmp_path / "ds.json")):
        config = config_of(given)
        assert config["wall_clock_breakdown"] is True
        assert config["zero_optimization"]["overlap_comm"] is True
        assert config["zero_optimization"]["reduce_bucket_size"] == 77


def test_the_users_dict_is_left_as_it_is():
    users = {"zero_optimization": {"reduce_bucket_size": "auto", "stage": 3}, "train_batch_size": "auto"}
    before = copy.deepcopy(users)
    strategy = DeepSpeed(config=users)
    make_config(strategy.config, 3, True, make_precision("32"), SETTINGS, 10)
    assert users == before


def test_auto_is_left_to_the_run():
    users = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"},
        "fp16": "auto",
    }
    assert config_of(users) == config_of()
    assert DeepSpeed(config=users).stage == 2


@pytest.mark.parametrize("block", ["fp16", "bf16"])
def test_a_block_that_is_enabled_auto_is_left_to_the_run(block):
    """As in the configurations that go with Hugging Face's Trainer."""
    users = {block: {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16}}
    assert config_of(users) == config_of()


def test_a_block_that_is_switched_off_is_no_conflict():
    assert config_of({"fp16": {"enabled": False}, "amp": {"enabled": False}}) == config_of()


def test_values_that_agree_with_the_run_are_no_conflict():
    users = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2},
    }
    assert config_of(users) == config_of()
    for block in ("bf16", "fp16"):
        assert config_of({block: {"enabled": True}}, precision=block) == config_of()


def test_what_is_not_known_yet_is_no_conflict():
    users = {"train_batch_size": 64, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5}
    DeepSpeed(config=users).attach(LAUNCHING, make_precision("32"))


def test_all_conflicts_are_reported_together_with_both_values():
    message = refusal(
        users={
            "train_batch_size": 32,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 3,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 1},
            "fp16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupLR"},
        }
    )
    for key, theirs, ours in (
        ("train_batch_size", "32", "64"),
        ("train_micro_batch_size_per_gpu", "2", "8"),
        ("gradient_accumulation_steps", "3", "4"),
        ("gradient_clipping", "1.0", "0.5"),
        ("zero_optimization.stage", "1", "2"),
        ("fp16", "given", "precision='32'"),
        ("optimizer", "given", "configure_optimizers"),
        ("scheduler", "given", "configure_optimizers"),
    ):
        (line,) = [line for line in message.splitlines() if line.strip().startswith(f"{key} is ")]
        assert theirs in line
        assert ours in line
    assert '"auto"' in message
    assert len(message.splitlines()) <= 12


@pytest.mark.parametrize(
    ("users", "precision"),
    [({"bf16": {"enabled": True}}, "32"), ({"fp16": {"enabled": True}}, "bf16"), ({"amp": True}, "32")],
)
def test_another_precision_is_a_conflict(users, precision):
    assert f"precision={precision!r}" in refusal(users=users, precision=precision)


def test_clipping_of_theirs_without_one_of_ours_is_a_conflict():
    message = refusal(users={"gradient_clipping": 1.0}, settings=StrategySettings(step_samples=64))
    says(message, "gradient_clipping is 1.0", "clip_grad_norm")


@pytest.mark.parametrize("precision", ["64", "fp16-true"])
def test_a_precision_it_has_not_is_refused_with_a_cure(precision):
    says(refusal(precision=precision), f"precision={precision!r}", "fix:", "32, bf16, fp16, bf16-true")


@pytest.mark.parametrize("stage", range(4))
def test_gradients_in_16_bits_are_summed_and_reduced_in_float32_unless_the_user_says(stage):
    config = config_of(stage=stage, precision="bf16-true")
    assert config.get("communication_data_type") == ("fp32" if stage else None)
    assert config.get("data_types") == ({"grad_accum_dtype": "fp32"} if stage > 1 else None)
    users = {"communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "bf16"}}
    config = config_of(users, stage=stage, precision="bf16-true")
    assert {key: config[key] for key in users} == users
    assert "communication_data_type" not in config_of(stage=stage, precision="bf16")
    alone = StrategySettings(
        step_samples=8, micro_batch_size=8, micro_batches=1
    )  # nothing is summed, and memory is saved
    assert "data_types" not in config_of(stage=stage, precision="bf16-true", settings=alone)


@pytest.mark.parametrize("precision", ["64", "fp16-true"])
def test_it_is_refused_before_anything_is_started(precision):
    with pytest.raises(PacelineError, match="deepspeed has no precision"):
        DeepSpeed(2).attach(LAUNCHING, make_precision(precision))


def test_a_file_that_is_not_there_or_no_json_object_is_named(tmp_path):
    with pytest.raises(PacelineError, match=r"cannot be read(.|\n)*nowhere\.json"):
        DeepSpeed(config=tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text('{"zero_optimization": {')
    with pytest.raises(PacelineError, match=r"no JSON(.|\n)*broken\.json"):
        DeepSpeed(config=str(tmp_path / "broken.json"))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(PacelineError, match=r"no JSON object(.|\n)*list\.json"):
        DeepSpeed(config=tmp_path / "list.json")


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"stage": 4}, "0, 1, 2, 3"),
        ({"stage": -1}, "0, 1, 2, 3"),
        ({"config": {"zero_optimization": {"stage": 7}}}, "0, 1, 2, 3"),
        ({"stage": 0, "offload": True}, "1, 2, 3"),
    ],
)
def test_a_stage_out_of_range_is_refused(arguments, allowed):
    with pytest.raises(PacelineError, match="no such stage") as refused:
        DeepSpeed(**arguments)
    assert f"allowed: {allowed}" in str(refused.value)


def test_the_stage_comes_from_the_configuration_unless_given():
    assert DeepSpeed().stage == 2
    assert DeepSpeed(config={"zero_optimization": {"stage": 3}}).stage == 3
    assert DeepSpeed(1).name == "deepspeed_stage_1"
    assert DeepSpeed(3, offload=True).name == "deepspeed_stage_3_offload"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offload_moves_the_optimizer_and_under_stage_3_the_parameters(stage):
    strategy = make_strategy(f"deepspeed_stage_{stage}_offload")
    zero = config_of(stage=stage, offload=strategy.offload)["zero_optimization"]
    assert (strategy.stage, zero["offload_optimizer"]["device"]) == (stage, "cpu")
    assert ("offload_param" in zero) == (stage == 3)
    own = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.3}}}
    assert config_of(own, stage, True)["zero_optimization"]["offload_optimizer"]["ratio"] == 0.3


@pytest.mark.parametrize(("parameters", "size"), [(1000, 1000), (10**12, 200_000_000)])
def test_no_bucket_is_larger_than_the_model(parameters, size):
    zero = config_of(parameters=parameters)["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"]
    assert size <= zero["reduce_bucket_size"] < size + 64  # aligned


@pytest.mark.parametrize(
    ("config", "expected"),
    [([1], "got: list"), ({"zero_optimization": True}, "zero_optimization is no object")],
)
def test_what_is_no_configuration_is_reported(config, expected):
    with pytest.raises(PacelineError, match=expected):
        DeepSpeed(config=config)
