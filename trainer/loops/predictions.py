"""Predictions: gathered over the ranks in the data's order, or written in shards as they come.

out/
  manifest.json                      batches, samples, every file's size and checksum
  part-<rank>-<number>.safetensors   tensors; one is the JSON of what else the outputs hold
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import PacelineError
from ...strategies.ranks.collectives import Collectives
from ..checkpoint.files import commit
from ..checkpoint.files import format as files
from ..checkpoint.files.integrity import verify_part
from ..checkpoint.files.json_codec import NotPlainError, decode, encode
from ..utils.nested import map_tensors
from ..utils.paths import as_path

_OUTPUTS = "outputs"
_PART_BYTES = 64 << 20
_ENTRY = 100  # bytes that name a tensor in its file
_ROUND = 64  # batches a rank keeps to itself before the ranks exchange theirs


class PredictionSink(Protocol):
    """Takes what ``predict_step`` returns, batch by batch, on every rank."""

    def take(self, output: Any, size: int) -> None:
        """The output of this rank's next batch; of ``size`` 0 where it had none."""

    def close(self) -> Any:
        """What ``Trainer.predict`` returns."""


class GatheredPredictions:
    """Brings each batch's output to all ranks, or to rank 0 alone, in the data's order."""

    def __init__(self, ranks: Collectives, only_rank_zero: bool) -> None:
        self._ranks = ranks
        self._keeps = ranks.is_global_zero or not only_rank_zero
        self._mine: list[list[Any]] = []
        self._all: list[Any] = []

    def take(self, output: Any, size: int) -> None:
        """Keep the output of this rank's next batch; of ``size`` 0 where it had none."""
        self._mine.append([map_tensors(output, lambda t: t.to("cpu"))] if size else [])
        if len(self._mine) == _ROUND:
            self._gather_round()

    def _gather_round(self) -> None:
        turns = zip(*self._ranks.gather_data(self._mine), strict=True)
        self._mine = []
        if self._keeps:
            self._all += [output for turn in turns for found in turn for output in found]

    def close(self) -> list[Any]:
        """The outputs; none on ranks that do not keep them."""
        self._gather_round()
        return self._all


class NoPredictions:
    """Keeps nothing: callbacks see each output in ``on_predict_step_end``."""

    def take(self, output: Any, size: int) -> None:
        """Drop it."""

    def close(self) -> list[Any]:
        """An empty list."""
        return []


class PredictionWriter:
    """Writes each batch's output as it comes: memory holds 64 MiB of them, whatever the data's size.

    Args:
        folder: Made by this; it appears when all is written.
        stopped: Whether the run was asked to stop before the end.

    Raises:
        PacelineError: when the folder is there already.
    """

    def __init__(self, ranks: Collectives, folder: Path, stopped: Callable[[], bool]) -> None:
        self._ranks, self._folder, self._stopped = ranks, folder, stopped
        self._staging = commit.staging_of(self._folder)
        self._turn = self._batches = self._samples = self._parts = self._bytes = 0
        self._tensors: dict[str, Tensor] = {}
        self._outputs: list[str] = []  # JSON, one for each batch
        ranks.on_rank_zero(self._begin)

    def _begin(self) -> None:
        if self._folder.exists():
            raise PacelineError(
                "predictions are never overwritten",
                code="file-exists",
                where=str(self._folder),
                fix="give another out=, or delete this one",
            )
        commit.begin(self._folder)

    def take(self, output: Any, size: int) -> None:
        """Write the output of this rank's next batch; of ``size`` 0 where it had none."""
        self._turn += 1
        if not size or self._ranks.tensor_rank:  # another rank has the same samples
            return
        self._batches, self._samples = self._batches + 1, self._samples + size
        tensors: dict[str, Tensor] = {}
        try:
            where = f"the output of batch {self._turn - 1}"
            structure = encode(output, where, tensors)
            for tensor in tensors.values():
                if (
                    tensor.layout is not torch.strided
                    or tensor.is_quantized
                    or tensor.dtype is torch.complex128
                ):
                    kind = "quantized" if tensor.is_quantized else f"{tensor.layout}, {tensor.dtype}"
                    raise NotPlainError(where, f"a tensor that safetensors does not take ({kind})")
        except NotPlainError as error:
            raise PacelineError(
                "predictions that are written to files are tensors and plain data",
                code="predictions-not-writable",
                where=error.where,
                got=error.kind,
                fix="return those from predict_step, or predict without out=",
            ) from None
        self._outputs.append(json.dumps([self._turn, structure]))
        for name, tensor in tensors.items():
            # Copied: safetensors takes no two tensors that share memory.
            self._tensors[f"{self._turn}.{name}"] = tensor.detach().to("cpu", copy=True).contiguous()
        self._bytes += len(self._outputs[-1]) + sum(_ENTRY + t.nbytes for t in tensors.values())
        if self._bytes >= _PART_BYTES:
            self._write_part()

    def _write_part(self) -> None:
        path = self._staging / f"part-{self._ranks.rank:05d}-{self._parts:05d}.safetensors"
        # A tensor, not metadata: a file's header is limited to 100 MB.
        outputs = f"[{','.join(self._outputs)}]".encode()
        text = torch.frombuffer(bytearray(outputs), dtype=torch.uint8)
        commit.save_tensors(self._tensors | {_OUTPUTS: text}, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._tensors, self._outputs, self._bytes = {}, [], 0
        self._parts += 1

    def close(self) -> Predictions | None:
        """The predictions, to be read back on any rank; None where a signal came before the end."""
        if self._outputs:
            self._write_part()
        mine = (self._batches, self._samples, int(self._stopped()))
        counts = self._ranks.all_gather(mine)
        batches, samples, stopped = (sum(numbers) for numbers in zip(*counts, strict=True))
        if stopped:  # a part of them is never taken for all
            self.drop()
            return None
        manifest = {"kind": "predictions", "batches": batches, "samples": samples}
        self._ranks.on_rank_zero(lambda: commit.commit(self._folder, manifest))
        return Predictions(self._folder)

    def drop(self) -> None:
        """Leave nothing of a prediction that failed."""
        shutil.rmtree(self._staging, ignore_errors=True)


class Predictions:
    """What ``Trainer.predict(out=...)`` wrote: iterate for the output of each batch, in the data's order.

    Each file is read, and its checksum looked at, when it is its turn.

    Args:
        folder: As given to ``out``.

    Raises:
        PacelineError: when there are no predictions in the folder.

    Example:
        >>> written = trainer.predict(Net(), val_loader, out="predictions")
        >>> [tuple(output.shape) for output in Predictions("predictions")]
        [(4, 1), (4, 1), (4, 1), (4, 1)]
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._at = as_path(folder, "Predictions")  # the process may change its folder
        if not (self._at / files.MANIFEST).is_file():
            raise PacelineError(
                "there are no predictions in this folder", code="file-not-found", where=str(folder)
            )
        self._manifest = files.read_manifest(self._at)
        if self._manifest.get("kind") != "predictions":
            raise PacelineError(
                "this folder holds something else than predictions",
                code="file-not-found",
                where=str(folder),
            )

    def __repr__(self) -> str:
        return f"Predictions({str(self.folder)!r})"

    def __len__(self) -> int:
        return int(self._manifest["batches"])

    @property
    def samples(self) -> int:
        """The samples in all batches."""
        return int(self._manifest["samples"])

    def __iter__(self) -> Iterator[Any]:
        names = sorted(self._manifest["files"])
        of_ranks = [list(group) for _, group in groupby(names, key=lambda name: name.split("-")[1])]
        ranks = [self._of_rank(rank, parts) for rank, parts in enumerate(of_ranks)]
        for _, output in heapq.merge(*ranks, key=lambda found: found[0]):
            yield output

    def _of_rank(self, rank: int, parts: list[str]) -> Iterator[tuple[tuple[int, int], Any]]:
        from safetensors import safe_open

        for part in parts:
            verify_part(self._at, part, self._manifest)
            with safe_open(self._at / part, framework="pt") as content:
                for turn, structure in json.loads(content.get_tensor(_OUTPUTS).numpy().tobytes()):
                    tensors = _Stored(content, turn)
                    yield (turn, rank), decode(structure, tensors)


class _Stored:
    """The tensors of one output, by the names ``encode`` gave them."""

    def __init__(self, content: Any, turn: int) -> None:
        self._content, self._turn = content, turn

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._content.get_tensor(f"{self._turn}.{name}")
        return found
