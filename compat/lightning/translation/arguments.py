"""Lightning's arguments of ``Trainer`` as ours. What has no counterpart raises at construction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from ....errors import PacelineError, nearest
from ....strategies import Precision
from ....trainer.data.feed import limited
from .strategies import strategy_of
from .validation_rule import ValidationRule, interval_of

_PRECISIONS = {
    "32-true": "32",
    "64-true": "64",
    "16": "fp16",
    "16-mixed": "fp16",
    "bf16-mixed": "bf16",
    "16-true": "fp16-true",
}
_DEFAULT_EPOCHS = 1000
FOREVER = 10**9
"""Epochs of a run without a limit."""
_SAME = (
    "num_nodes",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "sync_batchnorm",
    "reload_dataloaders_every_n_epochs",
)
DEFAULTS: dict[str, Any] = {
    "accelerator": "auto",
    "strategy": "auto",
    "devices": "auto",
    "num_nodes": 1,
    "precision": None,
    "logger": None,
    "callbacks": None,
    "fast_dev_run": False,
    "max_epochs": None,
    "min_epochs": None,
    "max_steps": -1,
    "min_steps": None,
    "max_time": None,
    "limit_train_batches": None,
    "limit_val_batches": None,
    "limit_test_batches": None,
    "limit_predict_batches": None,
    "overfit_batches": 0.0,
    "val_check_interval": None,
    "check_val_every_n_epoch": 1,
    "num_sanity_val_steps": None,
    "log_every_n_steps": None,
    "enable_checkpointing": None,
    "enable_progress_bar": None,
    "enable_model_summary": None,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "gradient_clip_algorithm": None,
    "deterministic": None,
    "benchmark": None,
    "inference_mode": True,
    "use_distributed_sampler": True,
    "profiler": None,
    "detect_anomaly": False,
    "barebones": False,
    "plugins": None,
    "sync_batchnorm": False,
    "reload_dataloaders_every_n_epochs": 0,
    "default_root_dir": None,
    "enable_autolog_hparams": True,
    "model_registry": None,
}
"""Every argument of Lightning 2.6's Trainer with its default.

Source: https://lightning.ai/docs/pytorch/stable/common/trainer.html#trainer-class-api
"""
_REMOVED = {
    "gpus": 'accelerator="gpu", devices=...',
    "tpu_cores": 'accelerator="gpu", devices=...',
    "num_processes": 'accelerator="cpu", devices=...',
    "resume_from_checkpoint": "fit(..., ckpt_path=...)",
    "auto_lr_find": "find_learning_rate of paceline.tools",
    "auto_scale_batch_size": "find_batch_size of paceline.tools",
    "checkpoint_callback": "enable_checkpointing",
    "progress_bar_refresh_rate": "enable_progress_bar, or callbacks=[TQDMProgressBar()]",
    "weights_summary": "enable_model_summary",
    "replace_sampler_ddp": "use_distributed_sampler",
    "stochastic_weight_avg": "callbacks=[StochasticWeightAveraging(...)]",
    "terminate_on_nan": "nothing: a loss that is not finite ends the run",
    "weights_save_path": "default_root_dir",
    "multiple_trainloader_mode": "CombinedLoader(loaders, mode)",
    "amp_backend": "precision",
    "amp_level": "precision",
    "ipus": "accelerator and devices",
}


def check_names(unknown: dict[str, Any]) -> None:
    """Refuse arguments that Lightning does not have either.

    Raises:
        PacelineError: one report of all.
    """
    if unknown:
        lines = [
            f"{name}: use {_REMOVED[name]}"
            if name in _REMOVED
            else f"{name}: no such argument" + (f"; did you mean {near}?" if near else "")
            for name in unknown
            for near in [nearest(name, DEFAULTS)]
        ]
        raise PacelineError(
            "Trainer: " + "\n  ".join(["these arguments are not Lightning's", *lines]),
            code="unknown-argument",
        )


def rule_of(given: dict[str, Any]) -> ValidationRule:
    """When it validates.

    Raises:
        PacelineError: for an interval that is none.
    """
    interval, every = interval_of(given["val_check_interval"]), given["check_val_every_n_epoch"]
    if isinstance(interval, timedelta) and every not in (None, 1):
        raise PacelineError(
            "val_check_interval is a time, and validations are in every epoch then",
            code="conflicting-arguments",
            got=f"check_val_every_n_epoch={every}",
            fix="check_val_every_n_epoch=None",
        )
    if every is None and given["val_check_interval"] is None:
        every = 1
    if every is None and isinstance(interval, float):
        raise PacelineError(
            "check_val_every_n_epoch=None counts batches over the whole run",
            code="conflicting-arguments",
            got=f"val_check_interval={interval}",
            fix="val_check_interval=1000",
        )
    return ValidationRule(interval, every)


def translated(
    given: dict[str, Any], *, manual: bool = False, own_clipping: bool = False
) -> dict[str, Any]:
    """Our arguments for Lightning's, callbacks and loggers aside.

    Args:
        given: All of Lightning's, defaults included.
        manual: Whether the module updates its weights itself: ``max_steps`` counts those updates.
        own_clipping: Whether the module clips gradients itself.

    Raises:
        PacelineError: for what has no counterpart.
    """
    ours: dict[str, Any] = {name: given[name] for name in _SAME} | computation(given)
    ours |= {name: given[name] or None for name in ("min_epochs", "min_steps")}
    ours |= limits(given, manual)
    ours |= _clipping(given, manual, own_clipping)
    ours["accumulate"] = given["accumulate_grad_batches"]
    sanity = given["num_sanity_val_steps"]
    no_check = given["fast_dev_run"] or given["barebones"]
    ours["sanity_val_batches"] = 0 if no_check else 2 if sanity is None else sanity
    ours["validate_every"] = rule_of(given).validate_every
    ours["log_every"] = (
        max(given["log_every_n_steps"] or 50, 1) if given["log_every_n_steps"] != 0 else None
    )
    ours["checkpoint"] = given["enable_checkpointing"] is not False and not given["barebones"]
    ours["progress"] = given["enable_progress_bar"] is not False and not given["barebones"]
    ours["deterministic"] = bool(given["deterministic"])
    ours["profile"] = given["profiler"] or False
    root = given["default_root_dir"]
    ours["run_dir"] = Path("lightning_logs") if root is None else Path(root) / "lightning_logs"
    _refuse(given)
    return ours


def computation(given: dict[str, Any]) -> dict[str, Any]:
    """Where and how it computes: ``strategy``, ``accelerator``, ``devices`` and ``precision`` of ours.

    Args:
        given: These four of Lightning's.

    Raises:
        PacelineError: for what has no counterpart.

    Example:
        >>> given = {"strategy": "auto", "accelerator": "cpu", "devices": "0,", "precision": "16-mixed"}
        >>> computation(given)
        {'strategy': 'auto', 'accelerator': 'cpu', 'devices': [0], 'precision': 'bf16'}
    """
    devices, accelerator = given["devices"], given["accelerator"]
    if accelerator in ("tpu", "hpu", "ipu"):
        raise PacelineError(
            f"accelerator={accelerator!r} is not offered",
            code="unknown-choice",
            allowed="auto, cpu, gpu, mps",
        )
    listed = isinstance(devices, str) and "," in devices  # "0," is the first one
    return {
        "strategy": strategy_of(given["strategy"]),
        "accelerator": "gpu" if accelerator == "cuda" else accelerator,
        "devices": [int(one) for one in devices.split(",") if one] if listed else devices,
        "precision": _precision(given),
    }


def limits(given: dict[str, Any], manual: bool = False) -> dict[str, Any]:
    """``max_epochs``, ``max_steps`` and ``max_time`` of ours."""
    steps, epochs, time = given["max_steps"], given["max_epochs"], given["max_time"]
    if isinstance(time, Mapping):
        time = timedelta(**time)
    has_limit = steps is not None and steps >= 0
    if 0 in (epochs, steps):  # our trainer is not asked to train
        epochs, has_limit = 1, False
    if epochs is None and not has_limit and time is None:
        epochs = _DEFAULT_EPOCHS
    if epochs == -1 or (epochs is None and not has_limit and time is None):
        epochs = None if has_limit and not manual else FOREVER
    if manual and epochs is None:
        epochs = FOREVER
    return {
        "max_epochs": epochs,
        "max_steps": steps if has_limit and not manual else None,
        "max_time": time,
    }


def overfitting(given: dict[str, Any]) -> dict[str, Any]:
    """What ``overfit_batches`` sets; nothing without it. Loaders are read in order then."""
    few = given["overfit_batches"]
    return {"limit_train_batches": few, "limit_val_batches": few} if few else {}


def quick_run(given: dict[str, Any]) -> dict[str, Any]:
    """What ``fast_dev_run`` sets; nothing without it."""
    few = int(given["fast_dev_run"])
    if not few:
        return {}
    stages = ("train", "val", "test", "predict")
    ends = {"max_epochs": 1, "max_steps": few, "num_sanity_val_steps": 0}
    validation = {"val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    return {f"limit_{stage}_batches": few for stage in stages} | ends | validation


def _clipping(given: dict[str, Any], manual: bool, own: bool) -> dict[str, Any]:
    value, algorithm = given["gradient_clip_val"], given["gradient_clip_algorithm"]
    if algorithm not in (None, "norm", "value"):
        raise PacelineError(
            "gradient_clip_algorithm is not known",
            code="unknown-choice",
            got=repr(algorithm),
            allowed="'norm', 'value'",
        )
    if value is not None and not isinstance(value, (int, float)):
        raise PacelineError(
            "gradient_clip_val is no number",
            code="invalid-value",
            got=repr(value),
            fix="gradient_clip_val=1.0",
        )
    if value and manual:
        raise PacelineError(
            "gradients are not clipped by the trainer under manual optimization",
            code="manual-optimization",
            got=f"gradient_clip_val={value}",
            fix="self.clip_gradients(optimizer, gradient_clip_val=...) in training_step",
        )
    if not value or own:
        return {}
    return {"clip_grad_value" if algorithm == "value" else "clip_grad_norm": float(value)}


def length_of(data: Any) -> int | None:
    """The batches of a loader; None where it has no length."""
    try:
        return len(data)
    except TypeError:  # also of one that has __len__, over a stream
        return None


def part_of(name: str, limit: Any, data: Any) -> list[str]:
    """What a limit that is a part of the data comes to, as a line; nothing for others.

    Args:
        name: Of the argument.
        limit: What it was given.
        data: The loader.

    Raises:
        PacelineError: where it is less than one batch.
    """
    if not isinstance(limit, float) or limit in (0.0, 1.0):
        return []
    found = length_of(data)
    if found is None:
        return []
    if found * limit < 1:
        raise PacelineError(
            f"{name}={limit} of {found} batches is less than one",
            code="invalid-value",
            fix=f"{name}=1, or a larger part",
        )
    return [f"{name}={limit} of {found} batches: {limited(found, limit)}"]


def has_bfloat16_instead(given: dict[str, Any]) -> bool:
    """Whether a mixed precision of float16 becomes one of bfloat16, as in Lightning: it runs on a CPU."""
    accelerator = given["accelerator"]
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    return on_cpu and str(given["precision"]) in ("16", "16-mixed")


def _precision(given: dict[str, Any]) -> Any:
    named = given["precision"]
    if named is None or isinstance(named, Precision):
        return named or "32"
    text = str(named)
    if text in ("transformer-engine", "transformer-engine-float16"):
        raise PacelineError(
            f"precision={named!r} is not offered", code="unknown-precision", fix='precision="bf16-mixed"'
        )
    return "bf16" if has_bfloat16_instead(given) else _PRECISIONS.get(text, text)


def _refuse(given: dict[str, Any]) -> None:
    if given["model_registry"] is not None:
        raise PacelineError(
            "Trainer(model_registry=...) is not offered",
            code="not-offered",
            fix="ModelCheckpoint and load_from_checkpoint",
        )
