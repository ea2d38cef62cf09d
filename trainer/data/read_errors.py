"""What happens when data cannot be read: the sample is named, read again, or skipped."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from ...errors import PacelineError, listed
from .workers.file_descriptors import explain_too_many_files

_RETRIES, _SKIPS = 3, 10
_DEAD = re.compile(r"DataLoader worker \(pid")
_RAGGED = re.compile(r"stack expects each tensor to be equal size|list of batch should be of equal size")
_READING = re.compile(r"^while reading .*$", re.MULTILINE)


class Delivered(NamedTuple):
    """A batch as a worker sends it where samples may be skipped.

    Args:
        batch: None where no sample is left.
        skipped: For each sample that is not in it, its dataset index and why.
    """

    batch: Any
    skipped: list[tuple[Any, str]]


class Samples(list[Any]):
    """What was read of a batch, and what was skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[tuple[Any, str]] = []


class Collate:
    """The user's collate function, in a loader whose samples may be skipped."""

    def __init__(self, users: Callable[[Any], Any]) -> None:
        self._users = users

    def __call__(self, samples: Any) -> Delivered:
        skipped = getattr(samples, "skipped", [])
        return Delivered(self._users(list(samples)) if len(samples) else None, skipped)


class DataErrors:
    """Counts reads that failed, under ``on_data_error``.

    Args:
        policy: ``"raise"``, ``"retry:3"`` or ``"skip:10"``; the numbers are optional.
        log_line: Takes lines for the log.

    Attributes:
        retries: How many consecutive times one read may be repeated.
        skipped: How many samples this rank has skipped.
        repeated: How many reads this rank has repeated.
    """

    def __init__(self, policy: str, log_line: Callable[[str], None]) -> None:
        kind, _, number = policy.partition(":")
        self.skips = kind == "skip"
        self.retries = int(number or _RETRIES) if kind == "retry" else (_RETRIES if self.skips else 0)
        self._most = int(number or _SKIPS) if self.skips else 0
        self._log_line = log_line
        self.skipped = self.repeated = 0

    def repeats(self, error: Exception, tries: int, worker_died: bool) -> bool:
        """Whether a read that failed is to be done again."""
        if tries >= self.retries or (self.skips and not worker_died):
            return False
        self.repeated += 1
        notes = "; ".join(getattr(error, "__notes__", []))
        first = (str(error).splitlines() or [""])[0]
        self._log_line(
            f"data loading failed, retry {tries + 1}/{self.retries}: "
            f"{type(error).__name__}: {first}; {notes}"
        )
        return True

    def unpack(self, delivered: Delivered) -> tuple[Any, int]:
        """The batch, and how many of its samples were skipped.

        Raises:
            PacelineError: when they are too many, or none is left.
        """
        batch, skipped = delivered
        if not skipped:
            return batch, 0
        self.skipped += len(skipped)
        reasons = "; ".join(f"dataset index {index}: {why}" for index, why in skipped[:4])
        if self.skipped > self._most or batch is None:
            raise PacelineError(
                "no sample of a batch can be read"
                if batch is None
                else f"{self.skipped} samples could not be read, and at most {self._most} may be skipped",
                code="samples-unreadable",
                got=reasons,
                fix='repair them, or allow more: on_data_error="skip:100"',
            )
        self._log_line(f"skipped samples, {self.skipped} of at most {self._most}: {reasons}")
        return batch, len(skipped)

    def state_dict(self) -> dict[str, Any]:
        """The counts; empty where nothing failed."""
        if not self.skipped and not self.repeated:
            return {}
        return {"left_out": self.skipped, "repeated": self.repeated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.skipped, self.repeated = state.get("left_out", 0), state.get("repeated", 0)


def explain_samples(error: Exception, loader: Any, batch: Sequence[Any]) -> None:
    """Add to an error of reading what is wrong with the sampler, or with samples that are no batch.

    Args:
        error: What the loader raised.
        loader: The user's.
        batch: The indices that were read, or batches of them.
    """
    indices = [one for item in batch for one in (item if isinstance(item, (list, tuple)) else [item])]
    try:
        there = len(loader.dataset)
    except Exception:  # a dataset may have no length
        return
    beyond = [one for one in indices if isinstance(one, Integral) and int(one) >= there]
    if beyond and isinstance(error, LookupError):
        batches = loader.batch_sampler
        sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
        error.add_note(
            f"the sampler, {type(sampler).__name__}, gives index {beyond[0]}, and the dataset, "
            f"{type(loader.dataset).__name__}, has {there} samples\nfix: make the sampler of this dataset"
        )
    elif _RAGGED.search(str(error)):
        error.add_note(
            f"while collating dataset indices {listed([str(one) for one in indices])}\n"
            "fix: DataLoader(collate_fn=...) makes a batch of samples of several sizes: cut them, or fill "
            "them up with torch.nn.utils.rnn.pad_sequence"
        )


def name_sample(error: Exception, ended: Sequence[tuple[int, int]], place_of: Callable[[int], str]) -> bool:
    """Add to an error of reading which worker it came from, and what that was reading.

    Args:
        error: What the loader raised; the place is added as a note.
        ended: Number and exit code of the loader's workers that had ended when it was raised.
        place_of: The sample that a worker, by its number, was at.

    Returns:
        Whether a worker has died.
    """
    explain_too_many_files(error)
    # What a dead worker has in the queue already is fetched from its process, which is not there.
    if ended and (_DEAD.search(str(error)) or isinstance(error, (OSError, EOFError))):
        for number, code in ended:
            error.add_note(f"worker {number} {_how(code)}, {place_of(number)}")
        return True
    found = _READING.findall(str(error))
    if found:
        worker_number = re.search(r"worker process (\d+)", str(error))
        error.add_note(f"worker {worker_number[1] if worker_number else '?'}, {found[-1]}")
    return False


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
