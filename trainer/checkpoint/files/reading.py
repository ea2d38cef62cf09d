"""What a checkpoint holds as plain data: parsed, decoded and checked, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import PacelineError
from . import format as files
from .json_codec import decode

_NOT_TAKEN = (
    LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, AssertionError
)  # fmt: skip


class MalformedStateError(files.CheckpointError):
    """A state that an object of the run does not take, though the checkpoint is as it was written."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked against itself and for its form.

    Raises:
        CheckpointError: when it is missing, cut, changed, or of another form.
        NewerFormatError: when it is of a newer format.
        UnreadableError: when the file system does not give it.
    """
    from .schema import check_manifest  # imports pydantic

    manifest = files.read_manifest(folder)
    check_manifest(folder, manifest)
    return manifest


def data_ranks_of(manifest: dict[str, Any]) -> int:
    """How many ranks had samples and states of their own; those that split each layer count once."""
    world = manifest["world"]
    return int(world["size"]) // int(world.get("tensor", 1))


def read_state(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The decoded content of state.json.

    Raises:
        CheckpointError: naming the key that cannot be decoded, or is of another form.
        UnreadableError: when the file system does not give it.
    """
    from .schema import check_state

    state = decode(files.read_state(folder, manifest), where=f"{folder / files.STATE}, key ")
    check_state(folder, state, manifest["weights_only"])
    found: dict[str, Any] = state
    return found


def hparams_of(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The constructor arguments that were recorded.

    Raises:
        CheckpointError: naming the one that cannot be decoded.
    """
    place = f"{folder / files.MANIFEST}, key module.hparams"
    recorded = manifest["module"]["hparams"]
    return {name: decode(value, where=f"{place}.{name}") for name, value in recorded.items()}


@contextmanager
def loading(folder: Path, key: str) -> Iterator[None]:
    """Name the part of state.json that an object of the run did not take.

    Raises:
        MalformedStateError: for what is raised inside, which stays its cause.
    """
    try:
        yield
    except PacelineError:
        raise
    except _NOT_TAKEN as error:
        raise MalformedStateError(
            "a state in the checkpoint could not be loaded",
            code="state-not-loadable",
            where=f"{folder / files.STATE}, key {key}",
            got=f"{type(error).__name__}: {error}",
        ) from error
