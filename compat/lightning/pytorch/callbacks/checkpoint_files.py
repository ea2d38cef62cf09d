"""Checkpoints under Lightning's names: files beside the folders that ours are."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...translation.checkpoint_content import CheckpointContent
from ...translation.checkpoint_file import folder_of, write_by
from ...translation.saved import Loaded

_FIELD = re.compile(r"\{([^{}:]*)(:[^{}]*)?\}")


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
    """The files of one ``ModelCheckpoint``.

    Args:
        template: Of their names; None: ``"{epoch}-{step}"``.
        path: Returns the path for values, a template, and a number where that path is taken.
        counts: Whether a name that is taken gets ``-v1``; else its file is replaced.
        last: Returns the template of the newest one's; None: it has none.
        links_last: Whether the newest one's is a link to the other file of that checkpoint.
        values: Returns what names are made of, beside the epoch.

    Attributes:
        directory: Where they are; None until a fit begins.
        paths: The file of each checkpoint, by our name for it.
        last_path: The newest one's; "" before the first.
        only_last: Whether there is the newest one's file alone.
        removes: Whether ``update`` deletes files; False: their owner does.
        problem: Why a file could not be written; None: all are.
        plugin: A ``CheckpointIO`` of the user, which writes and removes files; None: this package does.
    """

    plugin: Any = None
    problem: str | None = None
    removes = True
    only_last = False
    _earlier_last = ""

    def __init__(
        self,
        template: str | None,
        path: Callable[[Mapping[str, Any], str, int | None], str],
        counts: bool,
        last: Callable[[], str | None],
        links_last: bool,
        values: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._template, self._path, self._counts = template, path, counts
        self._last, self._links_last, self._values = last, links_last, values
        self.directory: str | None = None
        self.paths: dict[str, str] = {}
        self.last_path = ""
        self._by_plugin: dict[str, Path] = {}

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
            self._earlier_last = self.last_path
            self.paths[checkpoint], self.last_path = ranks.on_rank_zero(
                lambda: self._named(epoch, replaced)
            )

    def _named(self, epoch: int, replaced: str | None) -> tuple[str, str]:
        values = {**self._values(), "epoch": epoch}
        path = self._free(self._template or "{epoch}-{step}", values, self.paths.get(replaced or "", ""))
        last = self._last()
        return path, "" if last is None else self._free(last, values, self.last_path)

    def _free(self, template: str, values: Mapping[str, Any], replaced: str = "") -> str:
        path, number = self._path(values, template, None), 0
        while self._counts and (path in self.paths.values() or os.path.lexists(path)):
            if path == replaced:
                break
            number += 1
            path = self._path(values, template, number)
        return path

    def named(self, checkpoints: Iterable[str]) -> list[str]:
        """Those of our names that have a path: Lightning would have written them too."""
        return [name for name in checkpoints if name in self.paths]

    def path_of(self, checkpoint: str) -> str:
        """The path of a checkpoint, whose file exists when it is written; "" where it has none."""
        return "" if self.problem or self.only_last else self.paths.get(checkpoint, "")

    def update(
        self, folder: Path, kept: Collection[str], newest: str, content: CheckpointContent | None
    ) -> None:
        """Let there be the files of these checkpoints, and no others of this run's. On rank 0.

        Args:
            folder: Where the checkpoints are.
            kept: Our names of those that Lightning would keep.
            newest: The newest one's.
            content: What its file holds; None: what the checkpoint itself says.
        """
        try:
            self._update(folder, kept, newest, content)
            self.problem = None
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter
            if self.plugin is not None:
                raise
            self.problem = f"{newest} has no file under Lightning's name: {' '.join(str(error).split())}"

    def _update(
        self, folder: Path, kept: Collection[str], newest: str, content: CheckpointContent | None
    ) -> None:
        shown = () if self.only_last else kept
        wanted = {path: checkpoint for checkpoint, path in self.paths.items() if checkpoint in shown}
        for path, checkpoint in wanted.items():
            is_other = self.plugin is None and folder_of(path) != folder / checkpoint
            if checkpoint == newest or is_other:
                self._write(path, folder / checkpoint, content if checkpoint == newest else None)
        self._remove(self.superfluous(kept) if self.removes else set())
        if self.last_path and newest in kept:
            self._write_last(wanted, folder / newest, content)
        if self._earlier_last not in ("", self.last_path):  # its name has values in it
            self._remove({self._earlier_last})

    def _remove(self, paths: set[str]) -> None:
        for path in sorted(paths):
            if self.plugin is not None:
                if self._by_plugin.pop(path, None) is not None or os.path.lexists(path):
                    self.plugin.remove_checkpoint(path)
            elif folder_of(path, exists=False) is not None:
                os.unlink(path)

    def superfluous(self, kept: Collection[str]) -> set[str]:
        """The paths of this run's that are of none of these checkpoints."""
        wanted = {path for checkpoint, path in self.paths.items() if checkpoint in kept}
        return {*self.paths.values()} - wanted

    def _write_last(
        self, wanted: Mapping[str, str], newest: Path, content: CheckpointContent | None
    ) -> None:
        same = next((path for path, checkpoint in wanted.items() if checkpoint == newest.name), None)
        if same is None or (self.plugin is not None and not self._links_last):
            self._write(self.last_path, newest, content)
            return
        with suppress(FileNotFoundError):
            os.unlink(self.last_path)
        if self._links_last:
            os.symlink(os.path.relpath(same, os.path.dirname(self.last_path)), self.last_path)
            return
        try:
            os.link(same, self.last_path)
        except OSError:  # a file system without links
            shutil.copyfile(same, self.last_path)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of them."""
        return {"paths": self.paths, "last": self.last_path}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.paths, self.last_path = dict(state["paths"]), str(state["last"])

    def _write(self, path: str, folder: Path, content: CheckpointContent | None) -> None:
        if self.plugin is not None and self._by_plugin.get(path) == folder:
            return  # the end of a fit writes the last one again
        values = Loaded(folder).whole() if content is None else content.values
        self._by_plugin[path] = folder
        write_by(self.plugin, path, values, folder)
