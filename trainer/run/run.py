"""A finished or running run, read from its folder."""

from __future__ import annotations

import json
import sys
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ...callbacks.loggers.series import POSITION, read_rows, read_series
from ...callbacks.monitors.step_record import read_record
from ...errors import PacelineError, nearest
from ..checkpoint.files import format as files
from ..checkpoint.files.locate import find_checkpoint
from ..checkpoint.files.pointers import read_pointer
from ..checkpoint.files.reading import read_manifest
from ..checkpoint.files.remote_run import local_path
from ..module import TrainModule
from .facts import read_facts


class Series(NamedTuple):
    """One value over a run."""

    steps: list[int]
    values: list[float]


class Run:
    """What ``fit`` returns, and ``paceline.Run(folder)`` opens.

    Args:
        folder: ``runs/<name>/<n>``; None for a run that wrote nothing.

    Raises:
        PacelineError: when there is no run in the folder.

    Example:
        >>> run = Run("runs/net/1")
        >>> run.metrics["val/loss"].steps
        [4]
        >>> run.latest.name
        'step-00000004'
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else local_path(folder, "Run")
        if self._folder is not None and not (self._folder / "config.yaml").is_file():
            raise PacelineError(
                "there is no run in this folder", code="run-not-found", where=str(self._folder)
            )

    def __repr__(self) -> str:
        return f"Run({None if self._folder is None else str(self._folder)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of facts and values, and curves."""
        from .notebook import run_as_html

        if self._folder is None:
            return "<p>a run that wrote nothing</p>"
        rows = self.rows
        facts = read_facts(self.folder, *described(self), rows)
        return run_as_html(facts, read_series(rows))

    @property
    def folder(self) -> Path:
        """The run folder.

        Raises:
            PacelineError: for a run that wrote nothing.
        """
        if self._folder is None:
            raise PacelineError(
                "this run wrote nothing, so there is nothing to read",
                code="not-in-run",
                fix="train without fast_dev_run, and with a run_dir",
            )
        return self._folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml.

        Raises:
            PacelineError: when the file is damaged.
        """
        path = self.folder / "config.yaml"
        try:
            return _mapping(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (*_WRONG, yaml.YAMLError) as error:
            raise PacelineError(
                "the run's config.yaml is damaged", code="run-damaged", where=str(path), got=str(error)
            ) from None

    @cached_property
    def environment(self) -> dict[str, Any]:
        """env.json: versions, the host, when the run started; empty where the file is missing.

        Raises:
            PacelineError: when the file is damaged.
        """
        path = self.folder / "env.json"
        if not path.is_file():
            return {}
        try:
            return _mapping(json.loads(path.read_text(encoding="utf-8")))
        except _WRONG as error:
            raise PacelineError(
                "the run's env.json is damaged", code="run-damaged", where=str(path), got=str(error)
            ) from None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl, line by line; ``"nan"`` is NaN again."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        rows = read_rows(path)
        return [{k: float(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]

    @property
    def metrics(self) -> Metrics:
        """Each value over the run: ``run.metrics["val/accuracy"].values[-1]``."""
        series = Metrics()
        for row in self.rows:
            for name, value in row.items():
                if name not in POSITION:
                    one = series.setdefault(name, Series([], []))
                    one.steps.append(int(row["step"]))
                    one.values.append(value)
        return series

    @property
    def step_record(self) -> np.ndarray[Any, Any]:
        """What ``callbacks.StepRecord`` kept of each step: a structured array of shape (steps,).

        Raises:
            PacelineError: when the run has no record.

        Example:
            >>> run = Run("runs/net/1")
            >>> run.step_record["step"], run.step_record["loss"].shape
            (array([1, 2, 3, 4], dtype=uint64), (4,))
        """
        return read_record(self.folder)

    @property
    def checkpoints(self) -> list[Path]:
        """The finished checkpoints a run can resume from, oldest first."""
        if self._folder is None:
            return []
        return files.finished(self.folder / "checkpoints")

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def best(self) -> Path | None:
        """The best checkpoint, where a Checkpoint callback monitored a value."""
        if self._folder is None:
            return None
        return read_pointer(self.folder / "checkpoints" / "best")

    def load(
        self, module_class: type[TrainModule] | None = None, *, which: str = "best", **arguments: Any
    ) -> Any:
        """The trained module, built and loaded from the best (else the latest) checkpoint.

        Args:
            module_class: Its class; None takes the one that the checkpoint names, where this process has
                imported it already. Nothing is imported because a file asks for it.
            which: ``"best"`` or ``"latest"``.
            **arguments: Constructor arguments that a checkpoint does not keep.

        Returns:
            The module, on the CPU.

        Raises:
            PacelineError: when there is no checkpoint, or the module's class is not imported.

        Example:
            >>> module = run.load(Net, which="latest")
            >>> type(run.load()) is Net  # the class is imported here
            True
        """
        if which not in ("best", "latest"):
            raise PacelineError("Run.load: which is 'best' or 'latest'", code="unknown-choice", got=which)
        if module_class is not None and not _is_train_module(module_class):
            raise PacelineError(
                "Run.load takes a subclass of TrainModule",
                code="wrong-object",
                got=module_class,
                fix="run.load(Net, which='latest')",
            )
        if which == "best":
            folder = find_checkpoint(self.folder, weights=True)
        elif self.latest is not None:
            folder = self.latest
        else:
            raise PacelineError(
                "the run has no checkpoint", code="checkpoint-not-found", where=str(self.folder)
            )
        found = module_class or _imported(read_manifest(folder)["module"]["class"])
        return found.load_from_checkpoint(folder, **arguments)


_WRONG = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What the readers of JSON and YAML raise for a text that is none: ``!!timestamp x`` an AttributeError."""


def _mapping(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    return found


def described(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.yaml and env.json, for what has more of the run to show: one that is damaged is empty.

    Args:
        run: The run. A file that is damaged is warned of.
    """
    found: list[dict[str, Any]] = []
    for name in ("config", "environment"):
        try:
            found.append(getattr(run, name))
        except PacelineError as error:
            warnings.warn(" ".join(str(error).split()), stacklevel=3)
            found.append({})
    return found[0], found[1]


def _imported(name: str) -> type[TrainModule]:
    """The class that a checkpoint names, ``module:qualified.name``, if this process has it."""
    where, _, qualified = name.partition(":")
    found: Any = sys.modules.get(where)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not _is_train_module(found):
        short = qualified.rpartition(".")[2] or "Net"
        raise PacelineError(
            "the class of the run's module is not imported in this process",
            code="import-path-wrong",
            got=name,
            fix=f"import it, or pass it: run.load({short})",
        )
    loaded: type[TrainModule] = found
    return loaded


def _is_train_module(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, TrainModule)


class Metrics(dict[str, Series]):
    """Series by full name; a wrong name is answered with the nearest one."""

    def __missing__(self, name: str) -> Series:
        raise PacelineError(
            f"the run has no value {name!r}",
            code="not-in-run",
            allowed=", ".join(self) or "nothing was logged",
            meant=nearest(name, self),
        )
