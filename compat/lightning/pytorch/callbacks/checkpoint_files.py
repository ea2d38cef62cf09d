"""Lightning's file names of checkpoints: links to the folders that ours are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

_FIELD = re.compile(r"\{([^{}:]*)(:[^{}]*)?\}")
_EXTENSION = ".ckpt"


def formatted(template: str, values: Mapping[str, Any], with_names: bool = True) -> str:
    """A file name with values in it; 0 for one that there is not.

    Args:
        template: ``"{epoch:02d}-{val_loss:.2f}"``.
        values: By name.
        with_names: Whether each has its name before it.

    Example:
        >>> formatted("{epoch:02d}-{val_loss:.2f}", {"epoch": 3, "val_loss": 0.128})
        'epoch=03-val_loss=0.13'
    """

    def field(found: re.Match[str]) -> str:
        name, form = found[1], (found[2] or ":")[1:]
        text = format(values.get(name, 0), form)
        return f"{name}={text}" if with_names else text

    return _FIELD.sub(field, template)


class CheckpointFiles:
    """The links of one ``ModelCheckpoint``.

    Args:
        template: Of their names; None: ``"{epoch}-{step}"``.
        with_names: Whether values have their names before them.
        counts: Whether a name that is taken gets ``-v1``; else its link is replaced.
        last: The template of the newest one's; None: it has none.
        values: Returns what names are made of, beside the epoch.

    Attributes:
        directory: Where they are; None until a fit begins.
        paths: The link of each checkpoint, by our name for it.
        last_path: The newest one's; "" before the first.
        has_failed: Whether there are no links: the file system has none.
    """

    has_failed = False

    def __init__(
        self,
        template: str | None,
        with_names: bool,
        counts: bool,
        last: str | None,
        values: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._template, self._with_names, self._counts = template, with_names, counts
        self._last, self._values = last, values
        self.directory: str | None = None
        self.paths: dict[str, str] = {}
        self.last_path = ""

    def forget_others(self, checkpoints: Collection[str]) -> None:
        """A fit begins that has these checkpoints: a new run begins without any of another run's."""
        self.paths = {name: path for name, path in self.paths.items() if name in checkpoints}
        self.last_path = self.last_path if self.paths else ""

    def name(self, ranks: Any, checkpoint: str, epoch: int, replaced: str | None = None) -> None:
        """A checkpoint is about to be written: fix its path by the values of now. On all ranks.

        Args:
            ranks: The run's collectives.
            checkpoint: Our name for it.
            epoch: The epoch at whose end or in which it is, from 0.
            replaced: The one that Lightning deletes for it, whose path it may have.
        """
        if self.directory is not None and checkpoint not in self.paths:
            self.paths[checkpoint], self.last_path = ranks.on_rank_zero(
                lambda: self._named(epoch, replaced)
            )

    def _named(self, epoch: int, replaced: str | None) -> tuple[str, str]:
        values = {**self._values(), "epoch": epoch}
        path = self._free(self._template or "{epoch}-{step}", values, self.paths.get(replaced or "", ""))
        if self._last is None:
            return path, ""
        return path, self.last_path or self._free(self._last, values)

    def _free(self, template: str, values: Mapping[str, Any], replaced: str = "") -> str:
        assert self.directory is not None
        stem = os.path.join(self.directory, formatted(template, values, self._with_names))
        path, number = stem + _EXTENSION, 0
        while self._counts and (path in self.paths.values() or os.path.lexists(path)):
            if path == replaced:
                break
            number += 1
            path = f"{stem}-v{number}{_EXTENSION}"
        return path

    def named(self, checkpoints: Iterable[str]) -> list[str]:
        """Those of our names that have a path: Lightning would have written them too."""
        return [name for name in checkpoints if name in self.paths]

    def path_of(self, checkpoint: str) -> str:
        """The path of a checkpoint, whose link exists when it is written; "" where it has none."""
        return "" if self.has_failed else self.paths.get(checkpoint, "")

    def update(self, folder: Path, kept: Collection[str], newest: str) -> None:
        """Let there be the links of these checkpoints, and no others of this run's. On rank 0.

        Args:
            folder: Where the checkpoints are.
            kept: Our names of those that Lightning would keep.
            newest: The newest one's.
        """
        wanted = {path: checkpoint for checkpoint, path in self.paths.items() if checkpoint in kept}
        for path in {*self.paths.values()} - {*wanted}:
            if os.path.islink(path):
                os.unlink(path)
        for path, checkpoint in wanted.items():
            _link(path, folder / checkpoint)
        if self.last_path:
            _link(self.last_path, folder / newest)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of them."""
        return {"paths": self.paths, "last": self.last_path}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.paths, self.last_path = dict(state["paths"]), str(state["last"])


def _link(path: str, target: Path) -> None:
    wanted = os.path.relpath(target, os.path.dirname(path))
    if os.path.islink(path):
        if os.readlink(path) == wanted:
            return
        os.unlink(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(wanted, path, target_is_directory=True)
