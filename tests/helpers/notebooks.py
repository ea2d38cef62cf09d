"""Runs cells in a real kernel, as Jupyter's own client does, and interrupts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .environment import clean_environment

NotebookClient = pytest.importorskip("nbclient").NotebookClient  # of the extra ``notebook``
nbformat = pytest.importorskip("nbformat")
AsyncKernelManager = pytest.importorskip("jupyter_client").AsyncKernelManager

MARK = "PACELINE_TEST_MARK"
SECONDS = 120  # for a cell on a machine that is busy


class Notebook:
    """A notebook under way: cells are appended and run one after another.

    Attributes:
        content: The notebook as it would be saved now.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, uuid.uuid4().hex
        self.content = nbformat.v4.new_notebook()
        self._client = NotebookClient(
            self.content,
            km=AsyncKernelManager(kernel_name="python3"),
            timeout=SECONDS,
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )

    @contextlib.contextmanager
    def kernel(self, **variables: str) -> Iterator[Notebook]:
        """A kernel runs; none of its processes is left afterwards."""
        environment = clean_environment(threads=None) | {MARK: self._mark} | variables
        with self._client.setup_kernel(env=environment, cleanup_kc=True):
            yield self
        deadline = time.monotonic() + 60
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in left:
            process.kill()
        assert not left, "these outlived the kernel"

    def processes(self) -> list[psutil.Process]:
        """The kernel and what it started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get(MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def is_alone(self) -> bool:
        """Whether nothing is left but the kernel, once pictures are drawn."""
        deadline = time.monotonic() + SECONDS
        while not (alone := len(self.processes()) == 1) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alone

    def run(self, source: str, meanwhile: Callable[[], Any] | None = None) -> Cell:
        """Run a cell to its end; ``meanwhile`` in a thread."""
        cell = nbformat.v4.new_code_cell(source)
        self.content.cells.append(cell)
        thread = threading.Thread(target=meanwhile or (lambda: None))
        thread.start()
        self._client.execute_cell(cell, len(self.content.cells) - 1)
        thread.join()
        return Cell(cell)

    def interrupt_at(self, mark: str, again: str | None = None) -> Callable[[], None]:
        """Press the stop button when this file appears, and once more when the other one does."""

        def interrupt() -> None:
            for name in filter(None, [mark, again]):
                self._wait_for(name)
                asyncio.run(self._client.km.interrupt_kernel())

        return interrupt

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not (self.folder / name).exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def pid(self) -> int:
        """The kernel's process."""
        process = self.run("import os; os.getpid()").result
        return int(process)

    def save(self) -> Path:
        """Write it as Jupyter would, checked against the format's schema."""
        nbformat.validate(self.content)
        path = self.folder / "notebook.ipynb"
        nbformat.write(self.content, path)
        return path


class Cell:
    """A cell that was run."""

    def __init__(self, cell: Any) -> None:
        self.outputs = cell.outputs

    @property
    def printed(self) -> str:
        """Its standard output and standard error."""
        return "".join(o.text for o in self.outputs if o.output_type == "stream")

    @property
    def displays(self) -> list[dict[str, str]]:
        """What is on display, in its last form."""
        return [o.data for o in self.outputs if o.output_type == "display_data"]

    @property
    def result(self) -> str:
        """The value of its last line, as text."""
        return next(o.data["text/plain"] for o in self.outputs if o.output_type == "execute_result")

    @property
    def error(self) -> Any:
        """The error that ended it: ``ename``, ``evalue`` and ``traceback``; None for none."""
        return next((o for o in self.outputs if o.output_type == "error"), None)

    @property
    def all(self) -> str:
        """All of it, for a test that fails."""
        return os.linesep.join(str(o) for o in self.outputs)
