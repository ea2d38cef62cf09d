"""Names that other trainers use, answered with ours: of arguments of calls, and of attributes."""

from __future__ import annotations

from typing import Any

from ...errors import PacelineError, nearest

_OPTIMIZER = "configure_optimizers of the module: return torch.optim.AdamW(self.parameters(), lr=...)"
TRAINER_PEERS = {
    "barebones": "progress=False, loggers=False, checkpoint=False",
    "profiler": "profile=True",
    "accumulate_grad_batches": "accumulate",
    "multiple_trainloader_mode": "fit(module, CombinedLoader(loaders, mode=...))",
    "gradient_accumulation_steps": "accumulate",
    "gradient_clip_val": "clip_grad_norm",
    "max_grad_norm": "clip_grad_norm",
    "gradient_clipping": "clip_grad_norm",
    "gradient_clip_algorithm": "clip_grad_norm or clip_grad_value",
    "check_val_every_n_epoch": 'validate_every="2ep"',
    "val_check_interval": 'validate_every="0.25ep"',
    "eval_steps": "validate_every",
    "eval_strategy": 'validate_every="1ep"',
    "log_every_n_steps": "log_every",
    "logging_steps": "log_every",
    "num_sanity_val_steps": "sanity_val_batches",
    "logger": "loggers",
    "report_to": "loggers",
    "enable_progress_bar": "progress",
    "disable_tqdm": "progress=False",
    "enable_checkpointing": "checkpoint",
    "enable_model_summary": "progress",
    "save_steps": "callbacks=[Checkpoint(every=...)]",
    "save_total_limit": "callbacks=[Checkpoint(keep=...)]",
    "default_root_dir": "run_dir",
    "output_dir": "run_dir",
    "num_train_epochs": "max_epochs",
    "epochs": "max_epochs",
    "mixed_precision": "precision",
    "fp16": 'precision="fp16"',
    "bf16": 'precision="bf16"',
    "gpus": "devices",
    "num_processes": "devices",
    "resume_from_checkpoint": "fit(resume=...)",
    "learning_rate": _OPTIMIZER,
    "lr": _OPTIMIZER,
    "weight_decay": _OPTIMIZER,
    "optimizer": _OPTIMIZER,
    "optimizers": _OPTIMIZER,
    "lr_scheduler": "configure_optimizers of the module: return optimizer, scheduler",
    "batch_size": "the DataLoader's batch_size or global_batch_size",
    "train_batch_size": "global_batch_size",
    "per_device_train_batch_size": "the DataLoader's batch_size",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(True)",
    "auto_lr_find": "trainer.find_learning_rate(module, dataloader)",
    "auto_scale_batch_size": "trainer.find_batch_size(module, dataloader)",
    "benchmark": "torch.backends.cudnn.benchmark",
}
TRAINER_NEEDS_NONE = {
    "inference_mode": "evaluations run without gradients, under torch.no_grad()",
    "use_distributed_sampler": "the samples of any sampler are divided among the ranks, each counted once",
    "replace_sampler_ddp": "the samples of any sampler are divided among the ranks, each counted once",
}
_FIT_PEERS = {
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "weights": "resume",
    "train_dataloaders": "train_dataloader",
    "dataloader": "train_dataloader",
    "val_dataloaders": "val_dataloader",
    "eval_dataset": "val_dataloader",
    "model": "module, the first argument",
}
_EVALUATION_PEERS = {
    "ckpt_path": "weights",
    "resume": "weights",
    "dataloaders": "dataloader",
    "val_dataloader": "dataloader",
    "test_dataloader": "dataloader",
    "model": "module, the first argument",
    "return_predictions": "out=folder, or keep=False, for more predictions than memory holds",
}
_ATTRIBUTE_PEERS = {
    "callback_metrics": "metrics",
    "logged_metrics": "metrics",
    "progress_bar_metrics": "metrics",
    "current_epoch": "epoch",
    "should_stop": 'stop("why")',
    "estimated_stepping_batches": "total_steps",
    "lightning_module": "module",
    "model": "module",
    "log_dir": "folder",
    "is_main_process": "is_global_zero",
    "global_rank": "rank",
    "train": "fit(module, dataloader)",
    "evaluate": "validate(module, dataloader)",
    "tune": "find_learning_rate(module, dataloader) or find_batch_size(module, dataloader)",
    "tuner": "find_learning_rate(module, dataloader) or find_batch_size(module, dataloader)",
    "lr_find": "find_learning_rate(module, dataloader)",
    "scale_batch_size": "find_batch_size(module, dataloader)",
    "save_model": "save_checkpoint(path)",
}
_FIT_ARGUMENTS = ("train_dataloader", "val_dataloader", "datamodule", "resume", "allow", "decay")
_EVALUATION_ARGUMENTS = ("dataloader", "datamodule", "weights")


def refuse_unknown(method: str, unknown: dict[str, Any]) -> None:
    """Refuse arguments that are none, with the name that was meant.

    Raises:
        PacelineError: for the first of them.
    """
    peers = _FIT_PEERS if method == "fit" else _EVALUATION_PEERS
    known = _FIT_ARGUMENTS if method == "fit" else _EVALUATION_ARGUMENTS
    for name in unknown:
        ours = peers.get(name)
        raise PacelineError(
            f"{method} has no argument {name!r}",
            meant=None if ours else nearest(name, known),
            fix=f"use {ours}" if ours else None,
        )


def attribute_hint(name: str, owner: type) -> str:
    """The end of a message about an attribute that does not exist: the name that was meant, if any."""
    ours = _ATTRIBUTE_PEERS.get(name)
    if ours:
        return f"; use {ours}"
    near = None if name.startswith("_") else nearest(name, [n for n in dir(owner) if n[0] != "_"])
    return f"; did you mean {near}?" if near else ""
