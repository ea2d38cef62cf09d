"""The checkpoint that a fit is resumed from, and what the fit takes from it before it is set up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ....errors import PacelineError
from ....schedules import RunLength
from ....strategies.launch.job_notes import note_run
from ...checkpoint.files import format as files
from ...checkpoint.files.reading import MalformedStateError, read_manifest
from ...checkpoint.run_state import RunState
from ...run.config_file import run_config
from ...run.requeued import identity
from ...run.resume import ResumeSearch
from ...state import TrainState
from ..context import StageContext
from .fit_data import Resumption


class Source:
    """The checkpoint that a fit is resumed from, if any.

    Attributes:
        path: None: the run starts fresh.
        in_place: Whether the run continues in the folder of ``path``; else it gets a new one.
        identity: What a restart of the job finds the run by, for env.json.
    """

    def __init__(self, context: StageContext, resume: Resumption) -> None:
        self._resume, self._allow, self._fit = resume.source, resume.allow, context.fit_number
        self._fresh = context.state.state_dict()  # callbacks may have set them in on_setup
        self._newest = isinstance(resume.source, str) and resume.source in ("auto", "latest")
        self._search = ResumeSearch(
            context.ranks,
            context.directory,
            type(context.module).__name__,
        )
        config = run_config(context.directory.name, context.settings, context.strategy, context.module)
        self.identity = identity(self._fit, config, resume.source)
        self.path = self._find()

    def _find(self) -> Path | None:
        found = self._search.find_restart(self._fit, self.identity)
        self.in_place = found is not None or self._newest
        return self._search.find(self._resume) if found is None and self._resume is not None else found

    @property
    def counters(self) -> dict[str, Any]:
        """The counters of the checkpoint; those with which the run begins where there is none."""
        return (
            TrainState().state_dict() | read_manifest(self.path)["counters"] if self.path else self._fresh
        )

    def place(self, state: TrainState) -> None:
        """Let the counters say where in the data the run is."""
        state.epoch, state.position = self.counters["epoch"], self.counters["position"]

    @property
    def _seed(self) -> int | None:
        """The seed of the run that the checkpoint is of; None where there is none."""
        config = read_manifest(self.path)["config"] if self.path else {}
        trainer = config.get("trainer")
        seed = trainer.get("seed") if isinstance(trainer, dict) else None
        return seed if type(seed) is int and 0 <= seed < 2**63 else None

    def with_its_seed(self, context: StageContext) -> StageContext:
        """The context with the seed of the checkpoint, where the Trainer was given none."""
        if self._seed is None or not context.settings.seed_by_default:
            return context
        return replace(context, settings=context.settings.model_copy(update={"seed": self._seed}))

    def other_seed(self, seed: int) -> list[str]:
        """What a seed that is another one than the checkpoint's changes."""
        if self._seed in (None, seed):
            return []
        return [f"the seed is {seed}, in the checkpoint {self._seed}: samples come in another order"]

    def restore(self, run_state: RunState) -> list[str]:
        """Load the checkpoint, or where there is a choice, the newest that is whole. What is not exact."""
        is_choice = self.in_place
        while self.path is not None:
            try:
                inexact = run_state.restore(self.path, self._allow)
                if self.in_place:
                    self._search.catch_up(self.path)
                return inexact
            except files.CheckpointError as damage:
                if not is_choice or isinstance(damage, MalformedStateError):
                    raise
                self._search.pass_over(self.path, damage)
            self.path = self._find()
        return []

    def last_decay(self, context: StageContext, decay: Any) -> tuple[int, int]:
        """Where the decay of ``fit(decay=...)`` starts, and its steps; (-1, 0) without one.

        A run that resumes within a decay continues it, unless it is a branch with another one.

        Raises:
            PacelineError: without a checkpoint to start from.
        """
        saved = self.counters
        start, steps = saved["decay_start"], saved["decay_steps"]
        unfinished = saved["global_step"] < start + steps
        continues = steps and (unfinished if decay is None else self.in_place)
        if not continues:
            if decay is None:
                return -1, 0
            start = saved["global_step"]
            if self.path is None or not start:
                raise PacelineError(
                    "fit(decay=...) decays the learning rate from a checkpoint on, and there is none",
                    code="decay-not-possible",
                    fix='fit(..., resume=path, decay="10%")',
                )
            steps = RunLength(start, context.limits.steps_in(saved["epoch"])).amount(decay, "decay")
            if not steps:
                raise PacelineError(
                    "fit(decay=...) has no step", code="decay-not-possible", got=decay, fix='decay="10%"'
                )
        context.limits.end_after_decay(start, steps)
        context.directory.log_line(f"decays over {steps} steps, from step {start} to {start + steps}")
        return start, steps

    def open_folder(self, context: StageContext, config: dict[str, Any], first_weights: Any) -> None:
        """Continue in the checkpoint's folder, or begin a new one.

        Args:
            context: Of the stage.
            config: The run's arguments, as it writes them.
            first_weights: What the module came with, for env.json.
        """
        split, directory = context.ranks.tensor_parallel_size, context.directory
        about = {"fit": self._fit, "world": context.ranks.world_size, "weights": first_weights}
        about |= {"tensor": split} if split > 1 else {}
        directory.open(self.path, config, about | self.identity, in_place=self.in_place)
        if directory.path is not None:
            note_run(self._fit, directory.path)
