"""torch.distributed.checkpoint's reader of safetensors files, for the files that it is given alone.

Imported at the first load: torch's checkpoint package takes half a second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.checkpoint import HuggingFaceStorageReader, Metadata
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from ...common.retries import retried


class ListedFilesReader(HuggingFaceStorageReader):
    """Reads ``files``, whatever else is in their folder: torch's own opens all that it finds there.

    A read that fails as on a network disk for a moment is tried again.

    Args:
        files: Safetensors files of one folder, one or more.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(str(files[0].parent))
        self.fs = _Listed(files)

    def read_metadata(self) -> Metadata:
        return retried(super().read_metadata)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        read = super().read_data
        return retried(lambda: read(plan, planner))


class _Listed(FileSystem):
    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [str(file) for file in files]

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return self._files
