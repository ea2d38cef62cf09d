"""``version_0``, ``version_1``, ...: the folders that loggers with files write to."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from .logger import LightningRows, Logger, plain_hparams, prefixed

_VERSION = re.compile(r"version_(\d+)")


class PrefixedRows(LightningRows):
    """In front of a logger that writes files: names have the prefix of the user's."""

    def write_row(self, row: dict[str, float]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        super().write_row(prefixed(values, self.given.prefix) | {"step": row["step"]})  # type: ignore[attr-defined]


class FolderLogger(Logger):
    """A logger that writes files, to ``<save_dir>/<name>/version_<number>``.

    The folder is made when a stage begins. In it are ``hparams.yaml``, what the logger writes, and ``run``,
    a link to the run folder.

    Args:
        save_dir: Where; None: the trainer's ``default_root_dir``.
        name: The folder of all versions; "" or None: they are in ``save_dir``.
        version: A number, or the folder's own name; None: the next number.
    """

    prefix = ""
    made: Any
    """The logger of ``paceline`` that does the work."""

    def __init__(self, save_dir: Any = None, name: str | None = None, version: Any = None) -> None:
        self._save_dir, self._name, self._version = save_dir, name or "", version
        self._hparams: dict[str, Any] = {}

    def ours(self, trainer: Any) -> Any:
        self.made.given = self
        return self.made

    @property
    def name(self) -> str:
        return self._name

    @property
    def save_dir(self) -> str:
        if self._save_dir is not None:
            return str(self._save_dir)
        return str(Path.cwd()) if self._run is None else str(self._run.default_root_dir)

    @property
    def root_dir(self) -> str:
        return os.path.join(self.save_dir, self._name)

    @property
    def version(self) -> Any:
        """The number of the folder, or its name; the next free number as long as there is none."""
        if self._version is None:
            root = Path(self.root_dir)
            names = [one.name for one in root.iterdir()] if root.is_dir() else []
            taken = [int(found[1]) for name in names if (found := _VERSION.fullmatch(name))]
            self._version = max(taken, default=-1) + 1
        return self._version

    @property
    def log_dir(self) -> str:
        version = self.version
        return os.path.join(self.root_dir, version if isinstance(version, str) else f"version_{version}")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Write values into ``hparams.yaml``, without secrets.

        Args:
            params: A mapping or namespace; what is no plain data is not written.
            *args: Accepted.
            **kwargs: Accepted.
        """
        self._hparams |= plain_hparams(params)
        if self.made.folder is not None and self._run.is_global_zero:
            text = yaml.safe_dump(self._hparams)
            (self.made.folder / "hparams.yaml").write_text(text, "utf-8")

    def begin(self, trainer: Any) -> None:
        """A stage begins: take rank 0's version on all ranks, and make its folder there.

        Args:
            trainer: The ``paceline.Trainer``.
        """
        self._version = trainer.ranks.broadcast(self.version)
        self.made.folder = Path(self.log_dir)
        if trainer.is_global_zero:
            self.made.folder.mkdir(parents=True, exist_ok=True)

    def link(self, trainer: Any, hparams: dict[str, Any]) -> None:
        """The run has its folder: say in the version's folder where it is. On rank 0.

        Args:
            trainer: The ``paceline.Trainer``.
            hparams: The hyperparameters of data module and module.
        """
        folder = self.made.folder
        self.log_hyperparams(hparams)
        run = folder / "run"
        with suppress(OSError):  # the file system has no links
            if run.is_symlink():  # an earlier fit's
                run.unlink()
            run.symlink_to(os.path.relpath(trainer.folder, folder), target_is_directory=True)
