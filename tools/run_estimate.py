"""Whether a model fits, and how fast it would be, under each strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..strategies.launch.job_notes import uncaught_errors_shortened
from ..trainer.estimate.estimate import Wanted, estimate_run

if TYPE_CHECKING:
    from ..trainer.estimate.result import Estimate
    from ..trainer.module import TrainModule
    from ..trainer.trainer import Trainer


@uncaught_errors_shortened()
def estimate(
    trainer: Trainer,
    module: TrainModule,
    batch: Any = None,
    datamodule: Any = None,
    *,
    devices: int | None = None,
    per_node: int | None = None,
    memory: int | float | str | None = None,
    gpu: str | None = None,
    assume: Mapping[str, float] | None = None,
) -> Estimate:
    """Whether ``module`` fits, and how fast it would be, under each strategy; nothing is allocated.

    The second step of a copy on one device is traced under fake tensors: its parameters, gradients,
    optimizer state, activations and FLOPs. What ranks hold and exchange are formulas. The time is a
    model whose assumptions are part of the result. No process is started, and the module, the data's
    generators and the trainer stay as they are. ``docs/guides/estimate.md``: formulas, limits.

    Args:
        trainer: Whose arguments count; it stays as it is.
        module: Its parameters may be on the meta device.
        batch: One micro-batch, or a DataLoader, whose first batch is taken; None: the training data of
            the DataModule or the module.
        datamodule: A ``DataModule``, as ``fit`` takes it.
        devices: How many devices are thought of; None: those of the trainer.
        per_node: How many of them a machine has; None: 8, or those of the trainer's machine.
        memory: Of each device, in bytes or as ``"80GiB"``; None: that of ``gpu``, else of the devices
            here. On a CPU it is what is free, divided by the ranks.
        gpu: A device by name, as ``"H100"``: its memory, bandwidths and peak; None: the one here.
        assume: Values of the model of the time, in place of the device's: ``peak``, ``attainable``,
            ``bandwidth``, ``bandwidth_attainable``, ``link``, ``network``, ``host_link``,
            ``host_bandwidth``, ``latency``, ``launch``, ``overlap``; in FLOP and bytes per second,
            seconds, and parts of 1.

    Returns:
        The strategies as ``rows``, which of them fit, and which is recommended and why; ``str`` of it
        is a table, ``draw(path)`` a picture.

    Raises:
        PacelineError: for wrong arguments, under manual optimization, and for a step that reads values.

    Example:
        >>> from paceline.tools import estimate
        >>> found = estimate(trainer, Net(), train_loader, devices=8, gpu="H100")
        >>> found.recommended in found.fits, found.row(found.recommended).time.mfu < 1
        (True, True)
    """
    wanted = Wanted(devices, per_node, memory, gpu, dict(assume or {}))
    return estimate_run(trainer, module, batch, datamodule, wanted)
