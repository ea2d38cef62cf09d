"""steps.bin: 48 bytes for each step, from which ``paceline diff`` finds where two runs part."""

from __future__ import annotations

import errno
import math
import os
from array import array
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...common.argument_checks import SWITCH, check_arguments
from ...common.checksums import crc32
from ...errors import PacelineError
from ..base import Callback
from .scalars import on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..trainer_view import StepFacts, TrainerView

FILE_NAME = "steps.bin"
MAGIC = b"PLSTEP01"
ROW = np.dtype(
    [
        ("step", "<u8"),
        ("samples", "<u4"),  # CRC-32 of the dataset indices over all ranks; 0: not known
        ("random", "<u4"),  # of the states of torch's generators after the step, summed over the ranks
        ("rank", "<i4"),  # the first whose learning rates are not rank 0's; -1: none
        ("ranks", "<u4"),
        ("loss", "<f8"),  # over all ranks and micro-batches, by their weights
        ("gradient_norm", "<f8"),  # NaN: not measured
        ("rate", "<f8"),  # the sum of rank 0's learning rates, over the parameter groups
    ]
)
_EVERY = 100  # steps between two writes
_STATE = slice(8, 64)  # of a CPU generator: where it stands, and its first words


class StepRecord(Callback):
    """Writes down of each step what tells two runs apart, 48 bytes in ``steps.bin`` of the run folder.

    The loss, a checksum of the dataset indices, one of the states of torch's generators, the learning rate,
    and the gradient norm where ``clip_grad_norm`` or ``gradients`` measures it. ``paceline diff`` compares
    them. ``Trainer`` adds one unless ``record=False``. Ranks send each other 100 steps at a time, and
    before a checkpoint.

    The file begins with 8 bytes, ``PLSTEP01``; ``ROW`` describes the rest as numpy reads it.

    Args:
        gradients: Measure the norm of all gradients in each step, before clipping: a pass over them, and
            on sharded ones a reduction. ``Trainer(clip_grad_norm=...)`` measures it anyway, except under
            ZeRO.

    Raises:
        PacelineError: for an argument that is not right.

    Example:
        >>> trainer = Trainer(max_epochs=1, callbacks=StepRecord(gradients=True), progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> run.step_record["step"]
        array([1, 2, 3, 4], dtype=uint64)
    """

    def __init__(self, gradients: bool = False) -> None:
        check_arguments("StepRecord", gradients=(gradients, SWITCH))
        self.gradients = gradients
        self._active = False
        self._file: IO[bytes] | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._norm: Any = None
        if gradients:  # the hook costs something: only then
            self.on_before_optimizer_step = self._measure  # type: ignore[method-assign]

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._rows.clear()
        self._active = trainer.folder is not None
        self._device = trainer.strategy.device
        self._of_device = _device_generator(self._device)
        self._optimizers = trainer.optimizers
        if trainer.folder is not None and trainer.is_global_zero:
            self._file = _opened(trainer.folder / FILE_NAME, trainer.global_step)

    def _measure(self, trainer: TrainerView, optimizer: Any) -> None:
        if self._active:
            norms = list(trainer.strategy.weights.gradient_norms(trainer.module).values())
            self._norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else math.nan

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        if not self._active:
            return
        of_device = None if self._of_device is None else self._of_device(self._device)
        facts, rate = trainer.loop.step_facts(), _rate(self._optimizers)
        self._rows.append((facts, torch.get_rng_state(), of_device, rate, self._norm))
        self._norm = None
        if len(self._rows) == _EVERY:
            self._write(trainer)

    def on_save_checkpoint(self, trainer: TrainerView, state: dict[str, Any]) -> None:
        self._write(trainer)  # a run that resumes from it has the steps before it

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._write(trainer)

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        if trainer.world_size == 1:  # else the others may not come
            self._write(trainer)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._active = False
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, trainer: TrainerView) -> None:
        if not self._rows or not self._active:
            return
        rows, self._rows = self._rows, []
        gathered = trainer.ranks.gather_data(_as_numbers(rows))
        everyone = torch.stack(gathered).numpy()  # (ranks, steps, columns)
        if self._file is not None:  # on rank 0; the others send theirs whatever becomes of it
            try:
                data = _merged(everyone).tobytes()
                if self._file.write(data) < len(data):  # what is cut is no row for a reader
                    raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as error:
                self._file.close()
                self._file = None
                trainer.log_line(f"warning: {FILE_NAME} cannot be written any more: {error}")


def _opened(path: Path, step: int) -> IO[bytes]:
    """The file, with the rows up to a step; a resumed run writes the others again."""
    kept = b""
    if path.is_file():
        try:
            rows = _rows_of(path)
            kept = rows[rows["step"] <= step].tobytes()
        except PacelineError:
            kept = b""
    staging = path.with_suffix(".part")
    staging.write_bytes(MAGIC + kept)
    os.replace(staging, path)
    return path.open("ab", buffering=0)


def _checksum(samples: Sequence[Any]) -> int:
    return crc32(samples if type(samples) is array else repr(list(samples)).encode())


def _device_generator(device: torch.device) -> Callable[[Any], Tensor] | None:
    if device.type == "cpu":
        return None
    return getattr(torch.get_device_module(device), "get_rng_state", None)


def _rate(optimizers: Sequence[Any]) -> Any:
    total = 0.0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            total += group["lr"]
    return total


def _as_numbers(rows: list[tuple[Any, ...]]) -> Tensor:
    """One row per step: step, samples, random, rate, gradient norm, sum of weighted losses, of weights."""
    flat = iter(_on_host([number for facts, *_ in rows for pair in facts.losses for number in pair]))
    measured = iter(_on_host([one for facts, *_, rate, norm in rows for one in (rate, _norm(facts, norm))]))
    numbers = []
    for facts, of_cpu, of_device, *_ in rows:
        random = crc32(of_cpu.numpy()[_STATE])
        if of_device is not None:
            random = crc32(of_device.numpy(), random)
        total = weight = 0.0
        for _ in facts.losses:
            loss, share = next(flat), next(flat)
            total, weight = total + loss * share, weight + share
        samples = _checksum(facts.samples) if facts.samples else 0
        numbers.append((facts.step, samples, random, next(measured), next(measured), total, weight))
    return torch.tensor(numbers, dtype=torch.float64)


def _norm(facts: StepFacts, measured: Any) -> Any:
    if measured is not None:
        return measured
    return math.nan if facts.gradient_norm is None else facts.gradient_norm


def _on_host(numbers: list[Any]) -> list[float]:
    """Numbers and scalars on a device as numbers; one copy brings them all."""
    scalars = [number for number in numbers if isinstance(number, Tensor)]
    if not scalars:
        return numbers
    found = iter(on_host(scalars))
    return [next(found) if isinstance(number, Tensor) else number for number in numbers]


def _merged(everyone: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    first = everyone[0]
    rows = np.zeros(len(first), ROW)
    rows["step"], rows["samples"], rows["rate"], rows["gradient_norm"] = (first[:, c] for c in (0, 1, 3, 4))
    rows["random"] = everyone[:, :, 2].sum(0).astype(np.uint64) & 0xFFFFFFFF
    other = everyone[:, :, 3] != first[:, 3]
    rows["rank"] = np.where(other.any(0), other.argmax(0), -1)
    rows["ranks"] = len(everyone)
    weights = everyone[:, :, 6].sum(0)
    with np.errstate(invalid="ignore"):
        rows["loss"] = np.where(weights == 0, math.nan, everyone[:, :, 5].sum(0) / weights)
    return rows


def read_record(run: str | Path) -> np.ndarray[Any, Any]:
    """The rows of a run's ``steps.bin``, one per step, as a structured array of ``ROW``.

    Args:
        run: The run folder.

    Returns:
        An array of shape (steps,), ascending; of a step that was taken twice, after a roll back, the last.

    Raises:
        PacelineError: when the run has no record.
    """
    path = Path(run) / FILE_NAME
    if not path.is_file():
        raise PacelineError(
            "this run has no record of its steps",
            code="not-in-run",
            where=str(run),
            fix="Trainer(record=True), which is the default, writes one",
        )
    rows = _rows_of(path)
    _, last = np.unique(rows["step"][::-1], return_index=True)
    return rows[::-1][last]


def _rows_of(path: Path) -> np.ndarray[Any, Any]:
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise PacelineError(
            "this is no record of steps, or of another version", code="run-damaged", where=str(path)
        )
    whole = (len(data) - len(MAGIC)) // ROW.itemsize  # a killed run may have left a part of a row
    return np.frombuffer(data, ROW, whole, len(MAGIC))
