"""Methods and hooks that users of other trainers write, which a run here never calls."""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    """A method that other trainers call, and a run here never does.

    Args:
        fix: What to write instead.
        arguments: Where given, it is theirs only if its arguments begin like this: the name is common.
    """

    fix: str
    arguments: tuple[str, ...] = ()


_EPOCH_END = "keep what the steps give on self, and use it in {}(self, trainer)"
_OPTIMIZERS = Method("def configure_optimizers(self) returns the optimizer, or optimizer and schedule")
MODULE_METHODS = {
    # Lightning
    "configure_gradient_clipping": Method(
        "Trainer(clip_grad_norm=...) or Trainer(clip_grad_value=...) clips; other ways of clipping go into "
        "on_before_optimizer_step(self, trainer, optimizer)"
    ),
    "optimizer_zero_grad": Method("remove it: gradients are cleared after each step"),
    "configure_callbacks": Method("Trainer(callbacks=[...])"),
    "configure_sharded_model": Method("def configure_model(self)"),
    "training_epoch_end": Method(_EPOCH_END.format("on_train_epoch_end")),
    "validation_epoch_end": Method(_EPOCH_END.format("on_validation_end")),
    "test_epoch_end": Method(_EPOCH_END.format("on_test_end")),
    "predict_epoch_end": Method(_EPOCH_END.format("on_predict_end")),
    "training_step_end": Method("return the loss from training_step; on_step_end(self, trainer, outputs)"),
    "validation_step_end": Method("on_validation_step_end(self, trainer, output, batch, batch_idx)"),
    "test_step_end": Method("on_test_step_end(self, trainer, output, batch, batch_idx)"),
    "tbptt_split_batch": Method(
        "split the batch in training_step, with self.automatic_optimization = False"
    ),
    "get_progress_bar_dict": Method("self.log(name, value, prog_bar=True)"),
    # Hugging Face
    "compute_loss": Method(
        "def training_step(self, batch, batch_idx) returns the loss", ("model", "inputs")
    ),
    "prediction_step": Method("def validation_step(self, batch, batch_idx)", ("model", "inputs")),
    "compute_metrics": Method("log values in validation_step", ("eval_pred",)),
    "create_optimizer": _OPTIMIZERS,
    "create_scheduler": _OPTIMIZERS,
    "create_optimizer_and_scheduler": _OPTIMIZERS,
    "get_train_dataloader": Method("def train_dataloader(self)"),
    "get_eval_dataloader": Method("def val_dataloader(self)"),
    "get_test_dataloader": Method("def test_dataloader(self)"),
    # Composer
    "loss": Method(
        "def training_step(self, batch, batch_idx): return self.loss(self(batch), batch)",
        ("outputs", "batch"),
    ),
    "eval_forward": Method("def validation_step(self, batch, batch_idx)", ("batch",)),
    "update_metric": Method("log values or torchmetrics objects in validation_step", ("batch", "outputs")),
    "get_metrics": Method("log values or torchmetrics objects in validation_step", ("is_train",)),
}
DATAMODULE_METHODS = {
    name: MODULE_METHODS[name]
    for name in ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
}
_COMPOSER = {
    "fit_start": "on_fit_start(self, trainer)",
    "fit_end": "on_fit_end(self, trainer)",
    "epoch_start": "on_train_epoch_start(self, trainer)",
    "epoch_end": "on_train_epoch_end(self, trainer)",
    "batch_start": "on_step_start(self, trainer, batches)",
    "batch_end": "on_step_end(self, trainer, outputs)",
    "before_train_batch": "on_step_start(self, trainer, batches)",
    "after_train_batch": "on_step_end(self, trainer, outputs)",
    "before_backward": "on_before_optimizer_step(self, trainer, optimizer)",
    "after_backward": "on_before_optimizer_step(self, trainer, optimizer)",
    "batch_checkpoint": "on_step_boundary(self, trainer)",
    "epoch_checkpoint": "on_step_boundary(self, trainer)",
    "before_load": "on_load_checkpoint(self, trainer, state)",
    "after_load": "on_load_checkpoint(self, trainer, state)",
    "eval_start": "on_validation_start(self, trainer)",
    "eval_batch_end": "on_validation_step_end(self, trainer, output, batch, batch_idx)",
    "eval_end": "on_validation_end(self, trainer)",
    "predict_start": "on_predict_start(self, trainer)",
    "predict_end": "on_predict_end(self, trainer)",
    "close": "on_teardown(self, trainer, stage)",
    "post_close": "on_teardown(self, trainer, stage)",
}
CALLBACK_METHODS = {
    "setup": Method("def on_setup(self, trainer, stage)", ("trainer",)),
    "teardown": Method("def on_teardown(self, trainer, stage)", ("trainer",)),
    **{name: Method(f"def {ours}", ("state", "logger")) for name, ours in _COMPOSER.items()},
}
_METRICS = "log a torchmetrics object itself in {}: it is computed, and reset before this hook"
_IN_SANITY_CHECK = "trainer.loop.is_fit_validation is False in the sanity check"
_BY_BATCH = "what is to happen before each batch goes into {}"
HOOKS = {
    "on_train_start": ("on_fit_start", ""),
    "on_train_begin": ("on_fit_start", ""),
    "on_pretrain_routine_start": ("on_fit_start", ""),
    "on_pretrain_routine_end": ("on_fit_start", ""),
    "on_init_end": ("on_setup", ""),
    "on_train_end": ("on_fit_end", ""),
    "on_keyboard_interrupt": ("on_fit_end", "trainer.interrupted is True after Ctrl-C"),
    "on_train_batch_start": ("on_step_start", ""),
    "on_batch_start": ("on_step_start", ""),
    "on_step_begin": ("on_step_start", ""),
    "on_train_batch_end": ("on_step_end", ""),
    "on_batch_end": ("on_step_end", ""),
    "on_substep_end": ("on_step_end", ""),
    "on_optimizer_step": ("on_step_end", ""),
    "on_before_zero_grad": ("on_step_end", ""),
    "on_log": ("on_step_end", ""),
    "on_pre_optimizer_step": ("on_before_optimizer_step", ""),
    "on_after_backward": ("on_before_optimizer_step", ""),
    "on_before_backward": (
        "on_before_optimizer_step",
        "def backward(self, loss) of a module is called earlier",
    ),
    "on_epoch_start": ("on_train_epoch_start", ""),
    "on_epoch_begin": ("on_train_epoch_start", ""),
    "on_epoch_end": ("on_train_epoch_end", ""),
    "on_sanity_check_start": ("on_validation_start", _IN_SANITY_CHECK),
    "on_sanity_check_end": ("on_validation_end", _IN_SANITY_CHECK),
    "on_validation_batch_start": ("on_validation_start", _BY_BATCH.format("validation_step")),
    "on_validation_batch_end": ("on_validation_step_end", ""),
    "on_prediction_step": ("on_validation_step_end", ""),
    "on_validation_epoch_start": ("on_validation_start", ""),
    "on_validation_model_eval": ("on_validation_start", "modes are set by the run"),
    "on_validation_model_train": ("on_validation_end", "modes are restored by the run"),
    "on_validation_epoch_end": ("on_validation_end", _METRICS.format("validation_step")),
    "on_evaluate": ("on_validation_end", ""),
    "on_test_batch_start": ("on_test_start", _BY_BATCH.format("test_step")),
    "on_test_batch_end": ("on_test_step_end", ""),
    "on_test_epoch_start": ("on_test_start", ""),
    "on_test_epoch_end": ("on_test_end", _METRICS.format("test_step")),
    "on_predict_batch_start": ("on_predict_start", _BY_BATCH.format("predict_step")),
    "on_predict_batch_end": ("on_predict_step_end", ""),
    "on_predict_epoch_start": ("on_predict_start", ""),
    "on_predict_epoch_end": ("on_predict_end", ""),
    "on_predict": ("on_predict_end", ""),
    "on_save": ("on_save_checkpoint", ""),
}
"""Their hooks, with ours and what to know about it."""
