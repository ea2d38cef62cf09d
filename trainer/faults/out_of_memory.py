"""What to try when memory runs out, with the numbers of this run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from ...strategies import Strategy
from ...strategies.torch_internals import dump_memory_snapshot
from ..utils.text import shown_size

# The last one is that of libraries which allocate for themselves: CUBLAS_STATUS_ALLOC_FAILED.
_TEXTS = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is out of memory, on a device or on the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def memory_notes(
    strategy: Strategy,
    module: Any,
    optimizers: Iterable[Optimizer],
    where: Literal["step", "update", "evaluation"],
    micro_batch: int = 0,
) -> list[str]:
    """What this run holds, and what would need less, most likely to help first.

    Args:
        strategy: The run's strategy, which knows the device.
        module: Its parameters and gradients are counted, in bytes.
        optimizers: Their states are counted, in bytes.
        where: It ran out: in a step of training before its update, in the update, which needs as much with
            any batch, or in an evaluation.
        micro_batch: The size in samples that ``batch_size="auto"`` has reached; 0 without it.
    """
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    gradients = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    moments = sum(
        value.numel() * value.element_size()
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    held = (
        f"memory: parameters {shown_size(parameters)}, gradients {shown_size(gradients)}, optimizer "
        f"{shown_size(moments)}; {_in_use(strategy.device)}"
    )
    return [held, "try: " + "; ".join(_ways(strategy, module, where, micro_batch))]


def _in_use(device: torch.device) -> str:
    if device.type == "cpu":
        import psutil

        used, whole = psutil.Process().memory_info().rss, psutil.virtual_memory().total
        return f"the process {shown_size(used)} of {shown_size(whole)}"
    with suppress(Exception):  # the device may be of no use any more
        most = torch.accelerator.max_memory_allocated(device)
        return f"at most {shown_size(most)} allocated on {device}"
    return f"on {device}"


def _ways(strategy: Strategy, module: Any, where: str, micro_batch: int) -> list[str]:
    settings, ways = strategy.settings, []
    size = micro_batch or settings.micro_batch_size or 0
    if where == "evaluation" or not module.automatic_optimization:
        ways.append("a smaller batch_size of this DataLoader")
    elif settings.step_samples and size > 1 and where == "step":
        auto = "" if micro_batch else ', or Trainer(batch_size="auto")'
        ways.append(
            f"DataLoader(batch_size={size // 2}) and Trainer(global_batch_size={settings.step_samples}), "
            f"half at once in the same steps{auto}"
        )
    if where == "step" and not strategy.activations.checkpointing:
        ways.append(f"strategy={type(strategy).__name__}(activation_checkpointing=True)")
    if strategy.precision.compute_dtype == torch.float32:
        ways.append('precision="bf16"')
    smaller = strategy.description.smaller
    if smaller is not None:
        ways.append(f"{smaller}, which spreads the model over the ranks")
    return ways


def write_snapshot(strategy: Strategy, folder: Path | None) -> str | None:
    """Write who holds a CUDA device's memory, for pytorch.org/memory_viz. The file's path; else None."""
    if strategy.device.type != "cuda" or folder is None:
        return None
    path = folder / f"memory-rank-{strategy.environment.rank}.pickle"
    with suppress(Exception):
        dump_memory_snapshot(str(path))
        return str(path)
    return None
