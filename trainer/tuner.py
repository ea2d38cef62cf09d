"""What a Trainer does before a run, to choose its learning rate and its batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..strategies.launch.job_notes import uncaught_errors_shortened
from .diagnosis import Diagnosis
from .on_ranks import on_ranks

if TYPE_CHECKING:
    from .estimate.result import Estimate
    from .module import TrainModule
    from .tuning.batch_size_search import BatchSizeSearch
    from .tuning.learning_rate_search import LearningRateSearch


class Tuner(Diagnosis):
    """Trains copies of a module for some steps, and leaves the module and the trainer as they are."""

    @uncaught_errors_shortened()
    @on_ranks
    def find_learning_rate(
        self,
        module: TrainModule,
        train_dataloader: Any = None,
        datamodule: Any = None,
        *,
        lowest: float = 1e-7,
        highest: float = 1.0,
        steps: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        stop_factor: float | None = 4.0,
    ) -> LearningRateSearch:
        """Train a copy of ``module`` while the learning rate rises; suggest the rate of steepest descent.

        The copy is trained on all ranks, with this trainer's strategy, precision, clipping, batch sizes and
        seed, without the schedules of ``configure_optimizers``. Weights, random generators and data with a
        ``state_dict`` stay as they are; ``set_epoch`` of the data is called. Nothing is written.
        (L. N. Smith, 2017, arXiv:1506.01186.)

        Args:
            module: Stays as it is.
            train_dataloader: The training data, as ``fit`` takes it.
            datamodule: A ``DataModule``, as ``fit`` takes it.
            lowest: The rate of the first step.
            highest: The rate of the last step.
            steps: Optimizer steps at most, over as many epochs as they need.
            mode: Whether the rate rises by a factor or by an amount in each step. Parameter groups keep
                the ratio of their rates.
            stop_factor: End when the smoothed loss is above so many times its lowest value, where that is
                above 0; None does not. A loss that is not finite always ends the search.

        Returns:
            The rates and losses; ``suggestion``, or None with a ``reason``; ``plot(path)`` draws them.

        Raises:
            PacelineError: for wrong arguments, under manual optimization, and whatever ``fit`` raises.

        Example:
            >>> search = trainer.find_learning_rate(Net(), train_loader, steps=30)
            >>> len(search.rates), search.rates[0]
            (30, 1e-07)
            >>> search.plot("learning-rate.png")
        """
        from .data.sources import as_datamodule
        from .tuning import learning_rate_search

        data = as_datamodule(train_dataloader, datamodule)
        return learning_rate_search.find_learning_rate(
            self, module, data, lowest, highest, steps, mode, stop_factor
        )

    @uncaught_errors_shortened()
    def estimate(
        self,
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
        generators and this trainer stay as they are. ``docs/guides/estimate.md``: formulas, limits.

        Args:
            module: Its parameters may be on the meta device.
            batch: One micro-batch, or a DataLoader, whose first batch is taken; None: the training data of
                the DataModule or the module.
            datamodule: A ``DataModule``, as ``fit`` takes it.
            devices: How many devices are thought of; None: those of this trainer.
            per_node: How many of them a machine has; None: 8, or those of this trainer's machine.
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
            >>> found = trainer.estimate(Net(), train_loader, devices=8, gpu="H100")
            >>> found.recommended in found.fits, found.row(found.recommended).time.mfu < 1
            (True, True)
        """
        from .estimate.estimate import Wanted, estimate_run  # loads torch's tracing: a second

        wanted = Wanted(devices, per_node, memory, gpu, dict(assume or {}))
        return estimate_run(self, module, batch, datamodule, wanted)

    @uncaught_errors_shortened()
    @on_ranks
    def find_batch_size(
        self,
        module: TrainModule,
        train_dataloader: Any = None,
        datamodule: Any = None,
        *,
        start: int | None = None,
        most: int = 65536,
        steps: int = 3,
        headroom: float = 0.0,
    ) -> BatchSizeSearch:
        """Train copies of ``module`` with larger and larger batches; find the largest that fits the memory.

        The batch size is doubled until one does not fit; then the interval between is halved. It decides
        the samples in a step, and so the numbers, unless ``global_batch_size`` is set: set that too.
        Weights, random generators and data with a ``state_dict`` stay as they are. Nothing is written.

        On several ranks each searches by itself on its device, and what fits all of them counts: a rank
        that runs out of memory in a common step would leave the others waiting. What the strategy needs or
        saves there is not measured: leave ``headroom`` for it where the model is replicated, and take the
        result as a lower bound where it is sharded.

        Args:
            module: Stays as it is.
            train_dataloader: A DataLoader with a ``batch_size``.
            datamodule: A ``DataModule``, as ``fit`` takes it.
            start: The first batch size to try; None: the loader's own.
            most: The largest to try; no more than the dataset has, and one rank's part of
                ``global_batch_size``. On a CPU set it: too large a batch may end the process.
            steps: Optimizer steps of each trial; of two micro-batches where this trainer has several.
            headroom: The part of the largest batch size that fits by which the suggestion is smaller.

        Returns:
            What was tried, with memory and speed; ``suggestion``; ``plot(path)`` draws it.

        Raises:
            PacelineError: for wrong arguments and for data whose batch size cannot be changed.

        Example:
            >>> search = trainer.find_batch_size(Net(), train_loader)
            >>> [trial.batch_size for trial in search.tried], search.suggestion
            ([4, 8, 16], 16)
        """
        from .data.sources import as_datamodule
        from .tuning import batch_size_search

        data = as_datamodule(train_dataloader, datamodule)
        return batch_size_search.find_batch_size(self, module, data, start, most, steps, headroom)
