"""Lightning's objects for settings: what each comes to here."""

import pytest
import torch

import paceline.compat.lightning as L
from paceline.compat.lightning.pytorch import accelerators, plugins, profilers, strategies
from paceline.compat.lightning.translation.validation_rule import ValidationRule

from .small import trainer


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        (plugins.MixedPrecision("bf16-mixed", "cuda"), "bf16"),
        ([plugins.HalfPrecision("bf16-true")], "bf16-true"),
        (plugins.DoublePrecision(), "64"),
        ([plugins.Precision()], "32"),
        ([plugins.environments.SLURMEnvironment(auto_requeue=False), plugins.AsyncCheckpointIO()], "32"),
        ([type("Mine", (plugins.TorchCheckpointIO,), {})()], "32"),
    ],
)
def test_plugins(given, precision):
    assert trainer(plugins=given).ours.strategy.precision.name == precision


def test_batch_norms_over_all_ranks():
    assert trainer(plugins=plugins.TorchSyncBatchNorm()).ours.settings.sync_batchnorm


def test_who_started_the_processes(monkeypatch):
    assert not plugins.environments.SLURMEnvironment.detect()
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert plugins.environments.SLURMEnvironment.detect()


def test_strategies():
    sharded = strategies.FSDPStrategy(
        auto_wrap_policy={torch.nn.Linear}, activation_checkpointing_policy={torch.nn.Linear}
    )
    assert sharded.reshard_after_forward is None
    assert strategies.FSDPStrategy(sharding_strategy="SHARD_GRAD_OP").reshard_after_forward is False
    offloaded = torch.distributed.fsdp.CPUOffload(offload_params=True)
    assert strategies.FSDPStrategy(cpu_offload=offloaded).cpu_offload
    assert not strategies.FSDPStrategy(cpu_offload=torch.distributed.fsdp.CPUOffload()).cpu_offload


def test_the_configuration_of_a_strategy():
    made = strategies.DeepSpeedStrategy(
        stage=3, offload_optimizer=True, reduce_bucket_size=5, config={"zero_optimization": {"stage": 3}}
    )
    assert (made.name, made.offload) == ("deepspeed_stage_3_offload", True)
    assert made.config["zero_optimization"] == {"reduce_bucket_size": 5, "stage": 3}
    assert strategies.DeepSpeedStrategy(zero_optimization=False).stage == 0


def test_a_view_is_of_the_strategy_that_runs():
    view = trainer(strategy=strategies.DDPStrategy(find_unused_parameters=True), devices=1).strategy
    assert isinstance(view, strategies.DDPStrategy)
    assert not isinstance(view, strategies.FSDPStrategy)
    assert not isinstance(object(), strategies.DDPStrategy)


def test_accelerators(monkeypatch):
    made = trainer(accelerator=accelerators.CPUAccelerator())
    assert made.ours.strategy.device == torch.device("cpu")
    assert accelerators.accelerator_of(torch.device("meta")).name == "meta"
    assert accelerators.find_usable_cuda_devices(0) == []
    with pytest.raises(ValueError, match="there are only"):
        accelerators.find_usable_cuda_devices(999)
    assert trainer(devices="0,", accelerator="cpu").given["devices"] == "0,"


def test_a_profiler_of_the_users_own():
    class Mine(profilers.Profiler):
        def start(self, action_name):
            found.append(("start", action_name))

        def stop(self, action_name):
            found.append(("stop", action_name))

    found = []
    run = trainer(profiler=Mine())
    with run.profiler.profile("work"):
        pass
    assert found == [("start", "work"), ("stop", "work")]
    assert trainer().profiler.ours is False
    assert trainer(profiler=profilers.PyTorchProfiler(record_shapes=True)).given["profiler"] is not None


@pytest.mark.parametrize(
    ("rule", "accumulate", "expected"),
    [
        (ValidationRule(3, 1), 2, [2, 6]),
        (ValidationRule(3, 1), 1, [3, 6]),
        (ValidationRule(1, 1), 3, [3, 6, 7]),
        (ValidationRule(2, 1), 4, [4]),
        (ValidationRule(5, 1), 4, [4]),
        (ValidationRule(5, 1), 6, [6]),
        (ValidationRule(7, 1), 4, [7]),
        (ValidationRule(0.5, 1), 2, [2, 6]),
        (ValidationRule(1.0, 1), 2, [7]),
    ],
)
def test_after_which_batches_it_validates(rule, accumulate, expected):
    """Of seven: what is due within a step comes before it; in the first step after it."""
    ends = [*range(accumulate, 7, accumulate), 7]
    assert [b for b in ends if rule.due(b, b, 0, b == 7, 7, accumulate)] == expected


def test_the_version_is_lightnings():
    assert L.__version__ == L.pytorch.__version__
    assert L.__version__.startswith("2.6")
