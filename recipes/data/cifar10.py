"""CIFAR-10, read from its own files (https://www.cs.toronto.edu/~kriz/cifar.html).

Both published versions are read: the python one (``cifar-10-batches-py``, pickles, through an allow-list)
and the binary one (``cifar-10-batches-bin``).
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline import PacelineError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
# Of the python version's files, as published beside them.
FILE_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_IMAGES = 10_000
_ROW = 3 * 32 * 32
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def load(folder: Path, train: bool) -> tuple[Images, Labels]:
    """Images (n, 3, 32, 32) and labels (n,) of the training or test set.

    Raises:
        PacelineError: when the files are not in ``folder``, or are not as they were published.
    """
    names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    parts = []
    for name in names:
        python, binary = (
            folder / "cifar-10-batches-py" / name,
            folder / "cifar-10-batches-bin" / f"{name}.bin",
        )
        if python.is_file():
            parts.append(_read_python(python))
        elif binary.is_file():
            parts.append(_read_binary(binary))
        else:
            raise PacelineError(
                "CIFAR-10 is not complete",
                code="dataset-not-available",
                where=str(folder),
                got=f"no {name}",
            )
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def is_present(folder: Path) -> bool:
    """Whether both sets can be read from ``folder``."""
    names = FILE_MD5
    python = all((folder / "cifar-10-batches-py" / n).is_file() for n in names)
    return python or all((folder / "cifar-10-batches-bin" / f"{n}.bin").is_file() for n in names)


def download(folder: Path, url: str = URL, md5: str = ARCHIVE_MD5) -> None:
    """Fetch and unpack the python version, resuming where an earlier download broke off.

    Of several processes one does, such as the ranks of a run; the others wait.

    Raises:
        PacelineError: without a network, and when what came is not what was published.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = (folder / ".download.lock").open("w")
    except OSError as error:
        raise PacelineError(
            "CIFAR-10 is not there and could not be downloaded",
            code="dataset-not-available",
            where=str(folder),
            got=str(error),
        ) from None
    with held as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_present(folder):
            _download(folder, url, md5)


def _download(folder: Path, url: str, md5: str) -> None:
    archive = folder / "cifar-10-python.tar.gz"
    if not (archive.is_file() and _md5(archive) == md5):
        partial = archive.with_name(archive.name + ".part")
        try:
            _fetch(url, partial)
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise PacelineError(
                "CIFAR-10 is not there and could not be downloaded",
                code="dataset-not-available",
                where=url,
                got=str(reason),
                fix=f"put cifar-10-batches-py or cifar-10-batches-bin into {folder}, "
                "or take data=auto or data=digits",
            ) from None
        found = _md5(partial)
        if found != md5:
            partial.unlink()
            raise PacelineError(
                "the downloaded archive is damaged; it was removed",
                code="dataset-not-available",
                where=url,
                got=f"md5 {found}",
                allowed=f"md5 {md5}",
                fix="run it again",
            )
        partial.rename(archive)
    name = "cifar-10-batches-py"
    with tarfile.open(archive) as content, tempfile.TemporaryDirectory(dir=folder) as staging:
        content.extractall(staging, filter="data")
        shutil.rmtree(folder / name, ignore_errors=True)
        Path(staging, name).rename(folder / name)  # whole, for those who look without the lock


def _fetch(url: str, partial: Path) -> None:
    from tqdm import tqdm

    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=20)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing follows the bytes on disk: it is complete
            return
        raise
    with answer:
        resumed = answer.status == 206
        total = int(answer.headers.get("Content-Length", 0)) + (have if resumed else 0)
        with (
            partial.open("ab" if resumed else "wb") as file,
            tqdm(
                total=total or None,
                initial=have if resumed else 0,
                unit="B",
                unit_scale=True,
                desc="CIFAR-10",
                disable=not sys.stderr.isatty(),
            ) as bar,
        ):
            while chunk := answer.read(1 << 18):
                file.write(chunk)
                bar.update(len(chunk))


def _read_python(path: Path) -> tuple[Images, Labels]:
    found = _md5(path)
    if found != FILE_MD5[path.name]:
        raise _damaged(path, f"md5 {found}", f"md5 {FILE_MD5[path.name]}")
    with path.open("rb") as file:
        content: Any = _Unpickler(file, encoding="latin1").load()
    images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    return images, np.asarray(content["labels"], dtype=np.int64)


def _read_binary(path: Path) -> tuple[Images, Labels]:
    size = path.stat().st_size
    if size != _IMAGES * (_ROW + 1):
        raise _damaged(path, f"{size} bytes", f"{_IMAGES * (_ROW + 1)} bytes")
    rows = np.fromfile(path, dtype=np.uint8).reshape(_IMAGES, _ROW + 1)
    if rows[:, 0].max() > 9:
        raise _damaged(path, f"a label of {rows[:, 0].max()}", "labels from 0 to 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _damaged(path: Path, got: str, allowed: str) -> PacelineError:
    return PacelineError(
        "a file of CIFAR-10 is not as it was published",
        code="dataset-not-available",
        where=str(path),
        got=got,
        allowed=allowed,
        fix="delete it and download it again",
    )


class _Unpickler(pickle.Unpickler):
    """Loads numpy arrays and plain data; a pickle that names anything else is refused, not run."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise PacelineError(
                "a CIFAR-10 file would run code", code="file-holds-code", got=f"{module}.{name}"
            )
        return super().find_class(module, name)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
