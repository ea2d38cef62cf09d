"""A folder in an object store: files of it are listed, sent, fetched and deleted, several at a time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...errors import PacelineError
from ..utils.secrets import masked

T = TypeVar("T")
PAUSES = (0.5, 2.0, 8.0)
"""Seconds before each further attempt, after those that the store's own client makes."""
_THREADS = 8
_VERSION = ("size", "ETag", "etag", "md5Hash", "content_md5", "blob_id", "LastModified", "mtime", "created")
"""What file systems say about a file, of which each says a part."""
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, TypeError, ImportError)
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")
_EXTRAS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
}


class RemoteError(PacelineError):
    """An object store that did not do what it was asked for."""


class Remote:
    """A folder at an address that fsspec knows: ``s3://``, ``gs://``, ``hf://``, ``memory://`` and others.

    Each operation is tried up to four times over about ten seconds, and each attempt by the store's client
    several times again. Credentials are those that the client finds by itself.

    Args:
        url: The folder; it need not exist.

    Raises:
        PacelineError: for an address that fsspec does not know, naming the package it needs.
    """

    def __init__(self, url: str) -> None:
        import fsspec.core

        self.url = url.rstrip("/")
        scheme = url.partition("://")[0]
        try:
            self._files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            package = _EXTRAS.get(scheme)
            raise PacelineError(
                f"nothing here reads addresses with {scheme}://",
                code="invalid-path",
                got=url,
                fix=f"pip install {package}" if package else f"an address that fsspec knows ({error})",
            ) from None
        self._root = str(root).rstrip("/")

    def names(self, below: str = "") -> dict[str, int]:
        """The files below a folder of this one, with their sizes in bytes; none where it does not exist."""
        found = self._found(self._path(below) if below else self._root)
        return {
            path[len(self._root) :].lstrip("/"): int(about["size"] or 0) for path, about in found.items()
        }

    def versions(self) -> dict[str, str]:
        """What tells the versions of each file apart, by name; that of this address itself is ""."""
        return {
            path[len(self._root) :].lstrip("/"): " ".join(
                str(about[key]) for key in _VERSION if about.get(key) is not None
            )
            for path, about in self._found(self._root).items()
        }

    def _found(self, root: str) -> dict[str, Any]:
        def find() -> dict[str, Any]:
            try:
                found = dict(self._files.find(root, detail=True))
            except FileNotFoundError:
                return {}
            # Some tools mark a folder by an object whose name ends in a slash, or is the folder's.
            is_one = len(found) == 1
            return {p: a for p, a in found.items() if not p.endswith("/") and (is_one or p != self._root)}

        found = self._tried("listing", find)
        for path in found:
            if ".." in path.split("/"):
                raise RemoteError(
                    "a name in the object store leads out of its folder", code="remote-failed", where=path
                )
        return found

    def folders(self) -> list[str]:
        """The names of the folders in this one; none where it does not exist."""

        def listed() -> list[dict[str, Any]]:
            try:
                return list(self._files.ls(self._root, detail=True))
            except FileNotFoundError:
                return []

        found = self._tried("listing", listed)
        return sorted(
            os.path.basename(one["name"].rstrip("/")) for one in found if one["type"] == "directory"
        )

    def write(self, name: str, content: bytes, *, only_new: bool = False) -> bool:
        """Write a file as a whole.

        Args:
            name: Its path below this folder.
            content: What it is to hold.
            only_new: Leave one that exists as it is.

        Returns:
            Whether it was written.
        """
        mode = {"mode": "create"} if only_new else {}
        is_repeated = False

        def put() -> bool:
            nonlocal is_repeated
            try:
                self._files.pipe_file(self._path(name), content, **mode)
            except FileExistsError:
                # An attempt whose answer was lost may have written it.
                return is_repeated and self._files.cat_file(self._path(name)) == content
            except BaseException:
                is_repeated = True
                raise
            return True

        return self._tried("writing", put, name)

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: where there is none.
        """
        return bytes(self._tried("reading", partial(self._files.cat_file, self._path(name)), name))

    def send(self, files: Mapping[str, Path], *, may_vanish: bool = False) -> None:
        """Send local files, several at a time.

        Args:
            files: Local paths by the path below this folder.
            may_vanish: One that no longer exists is passed over.
        """

        def put(item: tuple[str, Path]) -> None:
            name, path = item
            if may_vanish and not path.exists():
                return
            self._tried("sending", partial(self._files.put_file, str(path), self._path(name)), name)

        _each(put, files.items())

    def fetch(self, files: Mapping[str, Path]) -> None:
        """Fetch files, several at a time; a local one appears when it is whole.

        Args:
            files: Local paths by the path below this folder.

        Raises:
            FileNotFoundError: where one does not exist.
        """

        def get(item: tuple[str, Path]) -> None:
            name, path = item
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                self._tried("fetching", partial(self._files.get_file, self._path(name), str(part)), name)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)

        _each(get, files.items())

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that do not exist are none."""

        def remove(name: str) -> None:
            def once() -> None:
                with suppress(FileNotFoundError):
                    self._files.rm_file(self._path(name))

            self._tried("deleting", once, name)

        _each(remove, names)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _tried(self, doing: str, operation: Callable[[], T], name: str = "") -> T:
        for pause in (*PAUSES, None):
            try:
                return operation()
            except _FINAL as error:
                if isinstance(error, FileNotFoundError) and doing in ("reading", "fetching"):
                    raise
                problem: Exception = error
                break
            except Exception as error:  # the clients of stores raise many kinds
                problem = error
            if pause is not None:
                time.sleep(pause)
        where = f"{self.url}/{name}" if name else self.url
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        text = _QUERY.sub(r"\1?***", str(masked(text)))  # a signed address is a credential
        raise RemoteError(
            f"{doing} failed in the object store",
            code="remote-failed",
            where=where,
            got=text,
            fix="see to the address, the network, and the credentials in the environment",
        ) from None


def _each(call: Callable[[T], None], items: Iterable[T]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="remote") as pool:
        for _ in pool.map(call, items):
            pass
