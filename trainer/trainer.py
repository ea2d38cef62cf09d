"""The Trainer: owns a run; ``loops/training_loop.py`` has the algorithm, the strategy the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from ..common.argument_checks import by_name
from ..common.faultpoints import faultpoint
from ..common.lazy_names import uncollected_imports
from ..strategies.launch.job_notes import uncaught_errors_shortened
from .on_ranks import on_ranks
from .runtime.garbage_collection import older_objects_frozen
from .view import RunView

if TYPE_CHECKING:
    from ..callbacks import Callback, Logger, Profiler
    from ..strategies import Precision, Strategy
    from .data.feed import Feed
    from .loops.context import StageContext
    from .loops.evaluation_loop import EvaluationLoop
    from .loops.predictions import Predictions
    from .module import TrainModule
    from .run.run import Run


class Trainer(RunView):
    """Trains a ``TrainModule``.

    Args:
        strategy: A name of ``paceline.strategies.STRATEGIES`` or of an installed entry point, or a
            ``Strategy`` object. ``"auto"`` is the simplest one for the devices, or one that shards where
            the model's states do not fit them.
        precision: ``"32"``, ``"bf16"``, ``"fp16"``, ``"64"``, ``"bf16-true"``, ``"fp16-true"``, ``"fp8"``,
            or a ``Precision`` object.
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"`` or a device type ``torch.accelerator`` knows.
        devices: A count, -1, a list of ids, ``"0,1"`` or ``"auto"``: all accelerators, one CPU process, or
            the world a launcher made. ``fit`` starts a rank for each; the script is run in all of them, a
            notebook is forked.
        num_nodes: Machines that take part; each starts ``devices`` ranks.
        numa_affinity: While a run lasts, pin each rank to CPUs: those of its accelerator's NUMA node, or on
            the CPU its own part of the machine's.
        max_epochs, max_steps: The first limit reached ends the run. Without any: one epoch.
        min_epochs, min_steps: A stop that a callback asks for, such as early stopping, waits until both are
            reached; signals do not.
        max_time: As ``max_epochs``, in time: ``"30min"``, ``"2h"``, a timedelta.
        global_batch_size: Samples in an optimizer step; else batch size x ranks x ``accumulate``.
        accumulate: Micro-batches in a step.
        batch_size: ``"auto"``: the samples of a step stay those of the loader's batch size, the ranks and
            ``accumulate``, and each rank takes its part in micro-batches of the largest size that its
            memory holds. It is found before step 1, by an estimate and trials; where memory runs out in a
            later step, that step is repeated in halves. None: batches of the loader's size.
        clip_grad_norm: The largest norm of a step's gradients; larger ones are scaled. None: any.
        clip_grad_value: The largest absolute value in a gradient; larger ones are cut. None: any.
        validate_every: A duration; None never validates.
        log_every: A duration between two log points, 50 steps unless given; step 1 is logged too.
        sanity_val_batches: Validation batches read before training, -1 for all; nothing of them is logged.
        reload_dataloaders_every_n_epochs: Call ``train_dataloader()`` and ``val_dataloader()`` of the
            DataModule or the module again before every so many epochs; 0 calls them once.
        limit_train_batches, limit_val_batches, limit_test_batches, limit_predict_batches: A count (int) or
            a part (float) of the loader's batches, over all ranks; in training without
            ``global_batch_size`` each rank has so many.
        fast_dev_run: An epoch of one step (a number: so many), ended like any other, with as many
            validation batches; nothing is written.
        overfit_batches: Train (and validate) on the same few batches of the training data every epoch.
        callbacks: Added to the default ones; one of the same class (or a subclass) replaces it. A string is
            the name of an installed entry point, as in ``loggers``.
        progress: A progress bar on a terminal, plain lines elsewhere; False: neither.
        checkpoint: Checkpoints each epoch and at the end, where ``callbacks`` has no ``Checkpoint``; False:
            none.
        record: Keep 48 bytes of each step in ``steps.bin`` of the run folder, for ``paceline diff``.
        loggers: Added to the default ones, as ``callbacks`` are: ``metrics.jsonl``, TensorBoard and
            ``curves.png``; one of the same class replaces it, and ``"-jsonl"``, ``"-tensorboard"`` or
            ``"-curves"`` in the list leaves one out. False: none at all.
        nonfinite: For a loss or gradient that is NaN or infinite, on any rank: ``"raise"`` before weights
            change, skip that update (``"skip"``, 10 times at most, ``"skip:100"``), or ``"ignore"``. On an
            accelerator looking at them waits for the device once a step (``"skip"``: once a micro-batch),
            except under ``"raise"`` with a fused optimizer; ``"ignore"`` never waits.
        on_data_error: For a sample that cannot be read and a loader worker that dies: ``"raise"``, naming
            them; read again with new workers (``"retry"``, three consecutive times, ``"retry:5"``); or skip
            samples (``"skip"``, 10 of a rank at most, ``"skip:100"``), which costs a reduction of one word
            a step on several ranks. For DataLoaders of samples; streams are not read again.
        max_restarts: How often all ranks are started again when one of them has failed; they resume from
            the run's newest checkpoint. A ``PacelineError`` is not tried again.
        timeouts: The longest time without progress, as a duration or by phase (``"start"``,
            ``"first_step"``, ``"step"``, ``"validation"``: a batch of one, ``"save"``). Then every rank's
            stacks are written, the late rank is named, and all are ended. None: 30 minutes on several
            ranks, none on one device; False: never.
        debug: Check before each of our collectives that all ranks call the same one, and name those that do
            not. Costs one more collective each.
        sync_batchnorm: Batch norms take their statistics over the samples of all ranks.
        profile: Profile steps 7 to 9 of a fit: traces, and the operations that take longest. A
            ``paceline.callbacks.Profiler`` chooses the steps.
        seed: Seeds torch, ``random`` and numpy when ``fit`` begins, and every epoch's order. None: the seed
            of the last ``seed_everything`` before the Trainer was made, else 0; a resumed run keeps its
            own.
        deterministic: Torch's deterministic algorithms, while it runs: what has none is an error.
        fp32_precision: How products and convolutions of float32 are computed inside, while it runs, as
            ``torch.backends.fp32_precision`` has it: ``"ieee"`` is exact float32, ``"tf32"`` faster on
            NVIDIA, ``"bf16"`` on some CPUs. None: as torch is set.
        channels_last: Weights of convolutions and 4-D and 5-D tensors of batches get this memory format, in
            which convolutions in 16 bits are faster on NVIDIA.
        compile: True, a mode of ``torch.compile``, or a dict of its arguments: compile the parts that a
            step calls, for the time of a run. ``"blocks"``: the blocks that the model repeats.
        run_dir, name: Runs go to ``run_dir/name/<n>``; the name is the module's class unless given. With
            ``run_dir=None`` nothing is written.

    Raises:
        PacelineError: one report of all arguments that are not right.

    Example:
        >>> trainer = Trainer(max_epochs=2, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> sorted(trainer.validate(trainer.module, val_loader))
        ['val/loss']
        >>> len(trainer.predict(trainer.module, val_loader))  # the output for each batch
        4
    """

    @uncaught_errors_shortened()
    @by_name("Trainer", "Trainer(max_epochs=...)")
    def __init__(
        self,
        *,
        strategy: str | Strategy = "auto",
        precision: str | int | Precision = "32",
        accelerator: str = "auto",
        devices: int | str | Sequence[int] = "auto",
        num_nodes: int = 1,
        numa_affinity: bool = False,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        min_epochs: int | None = None,
        min_steps: int | None = None,
        max_time: str | timedelta | None = None,
        global_batch_size: int | None = None,
        accumulate: int = 1,
        batch_size: str | None = None,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        validate_every: int | str | timedelta | None = "1ep",
        log_every: int | str | timedelta | None = None,
        sanity_val_batches: int = 2,
        reload_dataloaders_every_n_epochs: int = 0,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        fast_dev_run: bool | int = False,
        overfit_batches: int | float = 0,
        callbacks: str | Callback | Sequence[str | Callback] = (),
        progress: bool = True,
        checkpoint: bool = True,
        record: bool = True,
        loggers: bool | str | Logger | Sequence[str | Logger] = True,
        nonfinite: str = "raise",
        on_data_error: str = "raise",
        max_restarts: int = 0,
        timeouts: str | timedelta | dict[str, Any] | bool | None = None,
        debug: bool = False,
        sync_batchnorm: bool = False,
        profile: bool | Profiler = False,
        seed: int | None = None,
        deterministic: bool = False,
        fp32_precision: str | None = None,
        channels_last: bool = False,
        compile: bool | str | dict[str, Any] = False,
        run_dir: str | Path | None = "runs",
        name: str | None = None,
        **unknown: Never,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "unknown", "__class__")} | unknown
        with uncollected_imports():
            from ..callbacks.defaults import with_defaults
            from ..strategies import find_environment, make_precision, make_strategy
            from .config.validation import validate_arguments
            from .loops.context import RunContext
            from .loops.lifecycle import attach

            args = validate_arguments(given)
        environment = find_environment(
            args.accelerator, args.devices, args.num_nodes, args.max_restarts > 0
        )
        strategy = make_strategy(args.strategy, environment.world_size)
        attach(strategy, args, environment, make_precision(args.precision))
        callbacks = with_defaults(
            args.callbacks,
            args.progress,
            args.loggers,
            args.checkpoint,
            int(args.fast_dev_run),
            args.profile,
            args.record,
        )
        super().__init__(RunContext.begin(args, strategy, callbacks))

    @uncaught_errors_shortened()
    @on_ranks
    @older_objects_frozen()
    def fit(
        self,
        module: TrainModule | None = None,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        datamodule: Any = None,
        resume: str | Path | None = None,
        allow: str | Sequence[str] = (),
        decay: int | str | None = None,
        **unknown: Never,
    ) -> Run:
        """Train ``module`` until the first limit is reached or the run is stopped.

        Args:
            module: The module to train, in place.
            train_dataloader: A DataLoader, or any object with ``__iter__`` over batches.
            val_dataloader: One, or a list or dict of several.
            datamodule: A ``DataModule`` with the dataloaders that are not given here.
            resume: ``"auto"``, ``"latest"``, ``"best"`` or the path of a checkpoint or run.
            allow: What may differ from that checkpoint: ``"data"``; ``"optimizer"`` takes the learning rate
                and other settings that ``configure_optimizers`` gives now, which are else the checkpoint's.
            decay: With ``resume``: end the run after so many more steps (a duration, or a part of the steps
                that are done, ``"10%"``), over which a ``WSD`` schedule decays.
            **unknown: No others are taken; the error names the right argument.

        Raises:
            PacelineError: for mistakes, before anything is computed where that is possible.
        """
        from .checkpoint.compatibility import check_allowed
        from .config.call_arguments import refuse_arguments
        from .data.sources import as_datamodule
        from .loops.context import RunContext, fits
        from .loops.lifecycle import end_as_signalled, report_interrupt
        from .loops.setup import fit_setup
        from .loops.setup.fit_data import FitData, Resumption
        from .loops.setup.module_check import check_module
        from .loops.setup.monitored_values import sanity_check
        from .loops.training_loop import TrainLoop
        from .run.run import Run
        from .runtime.torch_settings import torch_settings

        refuse_arguments("fit", unknown)
        self.strategy.check_training()
        fit_number = self._run.fit_number if self._run.quiet else next(fits)
        self._fit = None
        self._run = RunContext.begin(
            self.settings, self.strategy, self.callbacks, fit_number, self._run.quiet
        )
        train_dataloader, datamodule = as_datamodule(train_dataloader, datamodule)
        data = FitData(train_dataloader, val_dataloader, datamodule)
        find_micro_batch = self._find_micro_batch if self.settings.batch_size else None
        with torch_settings(self.settings), self._begin("fit", module, datamodule) as begun:
            check_module(begun.module)
            self.strategy.precision.attach(self.strategy.device)
            self._fit = context = fit_setup.prepare(
                begun, data, Resumption(resume, check_allowed(allow), decay), find_micro_batch
            )
            loop, stop, hooks = TrainLoop(context), context.stop, context.hooks
            first_step = self.global_step
            stop.agree()  # a callback may have asked for a stop when its state was restored
            faultpoint("start.ready")
            if stop.done and not stop.interrupted:
                self.log_line(f"nothing to do: the run is at its limit already ({stop.reason})")
            else:
                hooks.call("on_fit_start", self)
                sanity_check(context)
                context.clock.start()
                with context.watchdog.during("step"):
                    loop.run()
                faultpoint("end.fit")
                with context.watchdog.during("save"):
                    context.logger.publish_at_the_end(hooks["on_fit_end"], self)
                    stop.agree()  # hooks may have asked for a stop
        report_interrupt(self, stop.signal)
        end_as_signalled(context, self.global_step > first_step)
        return Run(self.folder)

    def _find_micro_batch(self, context: StageContext, feed: Feed) -> int:
        from .tuning.micro_batch_search import search_micro_batch  # loads torch's tracing: a second

        return search_micro_batch(self, context, feed)

    @uncaught_errors_shortened()
    @on_ranks
    def validate(
        self, module: TrainModule | None = None, dataloader: Any = None, weights: Any = None, **more: Any
    ) -> dict[str, float]:
        """One pass over validation data; the values by full name.

        Args:
            module: The module to evaluate; None: that of the last run, which is the one just trained.
            dataloader: One, or a list or dict of several; else the DataModule's or module's own. Without a
                module, a DataModule of the last run is used again.
            weights: ``"best"``, ``"latest"`` of the last fit, a checkpoint's or run's path; None: as it is.
            **more: ``datamodule``; no others are taken.
        """
        from .loops.setup.evaluation_setup import collect as run

        values: dict[str, float] = self._evaluate("validate", module, dataloader, weights, more, run)
        return values

    @uncaught_errors_shortened()
    @on_ranks
    def test(
        self, module: TrainModule | None = None, dataloader: Any = None, weights: Any = None, **more: Any
    ) -> dict[str, float]:
        """As ``validate``, with ``test_step`` and test data.

        Example:
            >>> sorted(trainer.test(trainer.module, val_loader))
            ['test/loss']
        """
        from .loops.setup.evaluation_setup import collect as run

        values: dict[str, float] = self._evaluate("test", module, dataloader, weights, more, run)
        return values

    @uncaught_errors_shortened()
    @on_ranks
    def predict(
        self,
        module: TrainModule | None = None,
        dataloader: Any = None,
        weights: Any = None,
        out: str | Path | None = None,
        only_rank_zero: bool = False,
        keep: bool = True,
        **more: Any,
    ) -> list[Any] | Predictions:
        """The output of ``predict_step`` for each batch, on the CPU, in the data's order, on every rank.

        Args:
            module: The module to predict with; None as in ``validate``.
            dataloader: As ``validate`` takes it.
            weights: As ``validate`` takes them.
            out: A new folder to write them to, for more than memory holds; ``Predictions`` is returned.
            only_rank_zero: Rank 0 alone keeps the list; the others return an empty one.
            keep: False keeps nothing and returns an empty list: ``on_predict_step_end`` sees each output.
            **more: ``datamodule``; no others are taken.
        """
        from .loops.setup import evaluation_setup

        run = evaluation_setup.gather(only_rank_zero, keep) if out is None else evaluation_setup.write(out)
        outputs: list[Any] | Predictions = self._evaluate("predict", module, dataloader, weights, more, run)
        return outputs

    def _evaluate(
        self,
        name: str,
        module: Any,
        dataloader: Any,
        weights: Any,
        more: dict[str, Any],
        run: Callable[[EvaluationLoop], Any],
    ) -> Any:
        from .config.call_arguments import refuse_arguments
        from .data.sources import as_datamodule
        from .loops.lifecycle import end_as_signalled
        from .loops.setup import evaluation_setup
        from .runtime.torch_settings import torch_settings

        dataloader, datamodule = as_datamodule(dataloader, more.pop("datamodule", None))
        refuse_arguments(name, more)
        if module is None:
            module = self._module
            if dataloader is None and datamodule is None:
                datamodule = self._datamodule
        with torch_settings(self.settings), self._begin(name, module, datamodule) as context:
            result = run(evaluation_setup.prepare(context, dataloader, datamodule, weights))
            context.stop.agree()
        end_as_signalled(context)
        return result

    @contextmanager
    def _begin(self, name: str, module: Any, datamodule: Any) -> Iterator[StageContext]:
        """One stage: its ranks are there, errors are reported, and all is closed at its end."""
        from .loops.lifecycle import check_stage, stage, start_or_join_ranks
        from .loops.setup.step_arguments import check_methods

        check_stage(name, module, self.stage)
        check_methods(name, module, datamodule, self.callbacks)
        strategy, why = start_or_join_ranks(self.strategy, self.settings, module)
        if strategy is not self.strategy:
            self._compute_with(strategy)
            self.log_line(str(why))
        self._module, self._datamodule, self._stage = module, datamodule, name
        try:
            with stage(self._run, self, name, module, datamodule) as context:
                yield context
        finally:
            self._stage = ""

    def _compute_with(self, strategy: Strategy, quiet: bool = False) -> None:
        """Compute with this strategy from now on, in a new run."""
        from .loops.context import RunContext

        run = self._run
        self._run = RunContext.begin(run.settings, strategy, run.callbacks, run.fit_number, quiet)
