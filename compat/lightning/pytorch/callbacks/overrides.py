"""Methods of Lightning's own callbacks that a subclass may override there, and that nobody calls here."""

from __future__ import annotations

from typing import Any

from ..... import PacelineError
from ...translation.hooks import CallbackHooks, names_of
from .callback import Callback

_NEVER_CALLED = {
    "ModelCheckpoint": "check_monitor_top_k _save_topk_checkpoint _save_last_checkpoint "
    "_save_monitor_checkpoint _save_none_monitor_checkpoint _should_skip_saving_checkpoint "
    "_should_save_on_train_epoch_end _get_metric_interpolated_filepath_name _should_remove_checkpoint",
    "ProgressBar": "init_train_tqdm init_validation_tqdm init_test_tqdm init_sanity_tqdm "
    "init_predict_tqdm configure_columns",
    "GradientAccumulationScheduler": "get_accumulate_grad_batches going_to_accumulate_grad_batches",
    "LearningRateMonitor": "_extract_stats _add_prefix _add_suffix",
    "DeviceStatsMonitor": "_get_and_log_device_stats",
    "Timer": "_check_time_remaining start_time end_time",
}
_WITHOUT_EFFECT = ("GradientAccumulationScheduler",)  # its hooks do nothing themselves


def refuse_overrides(callback: Any, base: type) -> None:
    """Refuse a subclass that overrides what nobody calls, or what changes nothing.

    Args:
        callback: The user's.
        base: The class of this package.

    Raises:
        PacelineError: naming the methods.
    """
    if written := _overridden(callback, base):
        raise PacelineError(
            f"{type(callback).__name__} overrides {', '.join(written)}, which would never be called "
            f"in the place of {base.__name__}'s own",
            code="hook-mismatch",
            fix="a Callback of your own beside it; callbacks of paceline.callbacks may be subclassed too",
        )


def explain_overrides(callback: Any, base: type, trainer: Any) -> None:
    """Say which overridden methods are never called, where only what is shown depends on them.

    Args:
        callback: The user's.
        base: The class of this package.
        trainer: Tells the user.
    """
    if written := _overridden(callback, base):
        names = ", ".join(written)
        trainer.explain(
            f"{type(callback).__name__} overrides {names}, which is not called: the look is ours"
        )


def _overridden(callback: Any, base: type) -> list[str]:
    kind = base.__name__
    names = _NEVER_CALLED[kind].split()
    if kind in _WITHOUT_EFFECT:
        names += [name for name in names_of(CallbackHooks) if hasattr(Callback, name)]
    return [n for n in names if getattr(type(callback), n, None) is not getattr(base, n, None)]
