"""The configuration for DeepSpeed: the run's arguments, merged with the user's dict or JSON file."""

from __future__ import annotations

import copy
import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ...errors import PacelineError
from ..dtypes.precision import Precision
from ..settings import StrategySettings

_BUCKET = 200_000_000
_ALIGNED = 1000
_RUN_SAYS = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "the loader's batch_size",
    "gradient_accumulation_steps": "accumulate",
    "gradient_clipping": "clip_grad_norm",
}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_COMPUTES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WRITTEN_ELSEWHERE = {
    "optimizer": "configure_optimizers",
    "scheduler": "configure_optimizers",
    "fp16": "precision",
    "bf16": "precision",
    "amp": "precision",
    "torch_autocast": "precision",
}


def read_config(given: Any) -> dict[str, Any]:
    """The user's configuration as a dict; values that are ``"auto"`` are left to us.

    Raises:
        PacelineError: for a file that is not there or no JSON object.
    """
    if given is None:
        return {}
    if isinstance(given, dict):
        return _checked(_without_auto(copy.deepcopy(given)))
    if not isinstance(given, (str, PathLike)):
        raise PacelineError(
            "DeepSpeed: config is no configuration",
            code="wrong-object",
            got=type(given).__name__,
            allowed="a dict, or the path of a JSON file",
        )
    path = Path(given).expanduser()
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise PacelineError(
            "the DeepSpeed configuration cannot be read", code="deepspeed-config", got=str(error)
        ) from None
    except ValueError as error:
        raise PacelineError(
            "the DeepSpeed configuration is no JSON",
            code="deepspeed-config",
            where=str(path),
            got=str(error),
        ) from None
    if not isinstance(found, dict):
        raise PacelineError(
            "the DeepSpeed configuration is no JSON object", code="deepspeed-config", where=str(path)
        )
    return _checked(_without_auto(found))


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    zero = config.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise PacelineError(
            "the DeepSpeed configuration's zero_optimization is no object",
            code="deepspeed-config",
            got=zero,
            fix='{"zero_optimization": {"stage": 2}}',
        )
    return config


def _without_auto(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != "auto"
    }


def make_config(
    users: dict[str, Any],
    stage: int,
    offload: bool,
    precision: Precision,
    settings: StrategySettings | None,
    trained: int,
) -> dict[str, Any]:
    """One configuration out of the user's and the run's.

    Args:
        users: The user's configuration, as read from a dict or JSON file.
        stage: The ZeRO stage, 0 to 3.
        offload: Keep optimizer states, and under stage 3 parameters, in the host's memory.
        precision: The run's precision, which sets DeepSpeed's blocks ``bf16`` and ``fp16``.
        settings: What the run asks for, and what a step is; None before that is known.
        trained: How many numbers are trained, at least 1: no buffer need be larger.

    Raises:
        PacelineError: one report of every key that contradicts the run.
    """
    block = _precision_block(precision, stage)
    _refuse_conflicts(users, stage, precision, settings)
    config = {k: v for k, v in users.items() if k not in _RUN_SAYS and k not in _WRITTEN_ELSEWHERE}
    # Micro-batches are counted and weighed by the loop: to the engine each backward is one of one sample.
    config |= {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
    }
    config.setdefault("zero_allow_untested_optimizer", True)
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    zero = config["zero_optimization"] = {**users.get("zero_optimization", {}), "stage": stage}
    if stage:
        bucket = default_bucket(trained)
        zero.setdefault("reduce_bucket_size", bucket)
        zero.setdefault("allgather_bucket_size", bucket)
    if stage == 3:
        zero.setdefault("memory_efficient_linear", False)
    if offload:
        zero.setdefault("offload_optimizer", {"device": "cpu", "pin_memory": torch.cuda.is_available()})
        if stage == 3:
            zero.setdefault("offload_param", {"device": "cpu", "pin_memory": torch.cuda.is_available()})
    return _gradient_dtypes(precision, stage, settings) | config | block


def default_bucket(trained: int) -> int:
    """How many numbers are reduced at once, of so many in all: a bucket is allocated in whole."""
    return min(_BUCKET, -(-trained // _ALIGNED) * _ALIGNED)


def _precision_block(precision: Precision, stage: int) -> dict[str, Any]:
    """What the engine is to know of the precision: autocast and the loss scale are the strategy's own."""
    kept = precision.param_dtype
    if getattr(precision, "keep_fp32", ()):
        raise PacelineError(
            "deepspeed keeps all parameters in one dtype, and this precision's keep_fp32 asks for two",
            code="precision-not-supported",
            fix="strategy='fsdp', or precision='bf16': float32 parameters, products in bfloat16",
        )
    if kept == torch.float32:
        return {}
    if kept == torch.bfloat16:
        states = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        return {"bf16": {"enabled": True, **states}} if stage else {}
    raise PacelineError(
        f"deepspeed has no precision {precision.name!r}",
        code="precision-not-supported",
        got=f"precision={precision.name!r}",
        allowed="32, bf16, fp16, bf16-true",
        fix=f"strategy='fsdp' has {precision.name!r}"
        + ("; or precision='fp16', with parameters in float32" if kept == torch.float16 else ""),
    )


def _gradient_dtypes(precision: Precision, stage: int, settings: StrategySettings | None) -> dict[str, Any]:
    """What gradients of 16-bit parameters are summed and reduced in, unless the user's keys say it."""
    if not stage or precision.param_dtype != torch.bfloat16:
        return {}
    found: dict[str, Any] = {"communication_data_type": _NAMES[precision.reduce_dtype]}
    several = settings is None or settings.micro_batches != 1
    if stage > 1 and several:  # at stage 1 it would bring a second copy of the parameters with it
        found["data_types"] = {"grad_accum_dtype": _NAMES[precision.accumulate_dtype]}
    return found


def _refuse_conflicts(
    users: dict[str, Any], stage: int, precision: Precision, settings: StrategySettings | None
) -> None:
    run: dict[str, Any] = (
        {}
        if settings is None
        else {
            "train_batch_size": settings.step_samples,
            "train_micro_batch_size_per_gpu": settings.micro_batch_size,
            "gradient_accumulation_steps": settings.micro_batches,
            "gradient_clipping": settings.clip_norm or 0.0,
        }
    )
    conflicts = [
        f"{key} is {users[key]}, and {_RUN_SAYS[key]} makes it {value}"
        for key, value in run.items()
        if key in users and value is not None and users[key] != value
    ]
    stated = users.get("zero_optimization", {}).get("stage", stage)
    if stated != stage:
        conflicts.append(f"zero_optimization.stage is {stated}, and the strategy is stage {stage}")
    for key, ours in _WRITTEN_ELSEWHERE.items():
        block = users.get(key)
        on = key in ("optimizer", "scheduler")  # the others are off unless enabled
        enabled = block.get("enabled", on) if isinstance(block, dict) else bool(block)
        if not enabled or precision.compute_dtype == _COMPUTES.get(key):
            continue
        said = f"precision={precision.name!r}" if ours == "precision" else f"{ours} is there"
        conflicts.append(f"{key} is given, and {said}")
    more = f"\n    and {len(conflicts) - 8} more" if len(conflicts) > 8 else ""
    if conflicts:
        raise PacelineError(
            "the DeepSpeed configuration and the run say different things",
            code="deepspeed-config",
            got="\n    " + "\n    ".join(conflicts[:8]) + more,
            fix='leave those keys out, or write "auto" for them: the run\'s arguments hold',
        )
