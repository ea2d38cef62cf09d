"""``.ckpt`` files as Lightning writes them, each of which names the folder that holds all of a checkpoint.

A file has the weights, the hyperparameters and what hooks have added, which programs read with
``torch.load``. Its archive has one more record, which ``torch.load`` does not look at: where the checkpoint
is. A run resumes from that folder. A file that a program writes again with ``torch.save`` has no such
record: it may hold other weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....common.checksums import crc32
from ....errors import PacelineError
from ....strategies import Weights
from ....trainer.checkpoint.files import format as files
from ....trainer.checkpoint.weights import model_shapes, stored_names, stored_shapes
from ....trainer.plain_names import plain_name

_RECORD = "paceline.json"
_PART = ".part"


class FromFolder:
    """In a content, the place of a weight whose value is that of the checkpoint's folder."""


FROM_FOLDER = FromFolder()


def write(path: str, content: Mapping[str, Any], folder: Path, resumes: bool = True) -> None:
    """Write a file, in the place of one that exists. On rank 0.

    Args:
        path: Where.
        content: All of it; weights may be ``FROM_FOLDER``.
        folder: The checkpoint, which is complete.
        resumes: Whether the file is to name the folder.

    Raises:
        OSError: where it cannot be written.
    """
    if any(value is FROM_FOLDER for value in content.get("state_dict", {}).values()):
        content = with_weights(content, weights_in(folder))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder")
    part = path + _PART
    try:
        torch.save(dict(content), part)
        if resumes:
            _name_folder(part, path, folder)
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def write_by(
    plugin: Any,
    path: str,
    content: Mapping[str, Any],
    folder: Path,
    resumes: bool = True,
    options: Any = None,
) -> None:
    """Let a ``CheckpointIO`` of the user write a file; an archive of torch's names the folder.

    Args:
        plugin: The user's; None: ``write``.
        path: Where.
        content: All of it; weights may be ``FROM_FOLDER``.
        folder: The checkpoint, which is complete.
        resumes: Whether the file is to name the folder.
        options: Given to the plugin as ``storage_options``.
    """
    if plugin is None:
        write(path, content, folder, resumes)
        return
    if any(value is FROM_FOLDER for value in content.get("state_dict", {}).values()):
        content = with_weights(content, weights_in(folder))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    plugin.save_checkpoint(dict(content), path, storage_options=options)
    if resumes and os.path.isfile(path) and zipfile.is_zipfile(path):
        _name_folder(path, path, folder)


def weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, by their names in the module."""
    manifest = files.read_manifest(folder)
    of_model = [path for path in files.tensor_files(folder, manifest) if path.name.startswith("model-")]
    if len(of_model) == 1 and not manifest.get("evaluation_weights"):  # many times as fast
        from safetensors.torch import load_file

        return {name.removeprefix("model."): value for name, value in load_file(of_model[0]).items()}
    shapes = stored_shapes(folder, manifest)
    names = stored_names(model_shapes(shapes), shapes, manifest)
    loaded = Weights().load_tensors(files.tensor_files(folder, manifest), names.values())
    return {name: loaded[stored] for name, stored in names.items()}


def with_weights(content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """A content with these weights, by their names in the module, for those that a folder would have."""
    given = content.get("state_dict", {})
    taken = {n: weights.get(plain_name(n)) if v is FROM_FOLDER else v for n, v in given.items()}
    return {**content, "state_dict": taken}


def has_weights(folder: Path, weights: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint has these weights."""
    stored = weights_in(folder)
    return stored.keys() == weights.keys() and all(
        torch.equal(weights[name].detach().cpu(), value) for name, value in stored.items()
    )


def saved_folder(run: Path | None, target: Path) -> Path:
    """Where the checkpoint is that ``save_checkpoint`` writes for a file: one place for each path."""
    if run is None:
        return target.with_name(f"{target.name}.state")
    return run / "saved" / f"{target.stem}-{crc32(os.path.realpath(target).encode()):08x}"


def _name_folder(archive: str, path: str, folder: Path) -> None:
    record = {
        "folder": os.path.realpath(folder),
        "from_here": os.path.relpath(os.path.realpath(folder), os.path.dirname(os.path.realpath(path))),
        "manifest": _digest(folder),
    }
    with zipfile.ZipFile(archive, "a") as records:
        inside = records.namelist()[0].partition("/")[0]
        records.writestr(f"{inside}/{_RECORD}", json.dumps(record))


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / files.MANIFEST).read_bytes()).hexdigest()


def _record(path: Any) -> dict[str, Any] | None:
    """What a file says of its folder; None for a file that says nothing."""
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as records:
            name = next((one for one in records.namelist() if one.endswith(f"/{_RECORD}")), None)
            found = None if name is None else json.loads(records.read(name))
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    return found if isinstance(found, dict) else None


def folder_of(path: Any, exists: bool = True) -> Path | None:
    """The checkpoint that a file is of; None for others' files.

    Args:
        path: Of the file.
        exists: None, too, where it does not exist any more.
    """
    record = _record(path)
    if record is None:
        return None
    if not exists:
        return Path(str(record.get("folder")))
    here = Path(os.path.dirname(os.path.realpath(path)), str(record.get("from_here")))
    for folder in (Path(str(record.get("folder"))), here):
        with suppress(OSError):
            if _digest(folder) == record.get("manifest"):
                return folder
    return None


def checkpoint_at(path: Any, resume: bool = False) -> Any:
    """The checkpoint that a path is of: the folder of a file, while that exists; else the path as it is.

    Args:
        path: Of a file, a folder, or a word.
        resume: Whether only a folder will do.

    Raises:
        PacelineError: with ``resume`` for a file that names none, or none that exists.
    """
    folder = folder_of(path)
    if folder is not None:
        return folder
    if resume and isinstance(path, (str, os.PathLike)) and os.path.isfile(path):
        record, way = _record(path), "Module.load_from_checkpoint(path), then fit without ckpt_path"
        if record is None:
            raise PacelineError(
                "a run cannot resume from this file: it has weights, but no optimizer or place in the data",
                code="cannot-resume",
                where=str(path),
                fix=way,
            )
        raise PacelineError(
            "a run cannot resume from this file: the folder with its optimizer and its place in the data "
            "does not exist any more, or was written again",
            code="cannot-resume",
            where=str(path),
            got=str(record.get("folder")),
            fix=f"bring that folder back; or load the weights alone: {way}",
        )
    return path
