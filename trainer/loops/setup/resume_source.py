"""The checkpoint that a fit is resumed from, and what the fit takes from it before it is set up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
        """The counters of the checkpoint; those of a new run where there is none."""
        saved = read_manifest(self.path)["counters"] if self.path else {}
        return TrainState().state_dict() | saved

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
