"""Plain data to JSON and back, exactly: tuples, tensors, arrays, bytes and non-string keys included."""

from __future__ import annotations

import base64
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import PacelineError, shown
from .format import CheckpointError

_KIND = "__kind__"
_DEEPEST = 100


class NotPlainError(PacelineError):
    """Something that files without pickles cannot hold."""

    code = "not-plain-data"

    def __init__(self, where: str, kind: str) -> None:
        self.where, self.kind = where, kind
        super().__init__(
            "a checkpoint holds plain data only: numbers, strings, lists, dicts, tensors",
            where=where,
            got=kind,
            fix="leave it out of state_dict, or turn it into plain data there",
        )


def encode(value: Any, where: str = "state", apart: dict[str, Tensor] | None = None) -> Any:
    """``value`` as JSON can hold it.

    Args:
        value: Plain data, tensors and numpy arrays, nested in dicts, lists and tuples.
        where: Its place, for messages.
        apart: Takes the tensors by new names, to be kept elsewhere; None keeps them in the JSON.

    Raises:
        NotPlainError: for anything that is no plain data.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        plain = value.item()
        if isinstance(plain, np.generic):  # a longdouble has no type of Python's
            raise NotPlainError(where, type(value).__name__)
        return encode(plain, where)
    if isinstance(value, Counter):
        return {_KIND: "counter", "items": [[encode(k, where), n] for k, n in value.items()]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, apart)
    if isinstance(value, Namespace):  # what a parser of command lines gives
        return {_KIND: "namespace", "items": _encode_mapping(vars(value), where, apart)}
    if isinstance(value, list):
        return _encode_items(value, where, apart)
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": _encode_items(value, where, apart)}
    if isinstance(value, bytes):
        return {_KIND: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Tensor) and apart is not None:
        apart[str(len(apart))] = value
        return {_KIND: "apart", "name": str(len(apart) - 1)}
    if isinstance(value, Tensor):
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        raw = plain.view(torch.uint8).numpy().tobytes()
        dtype = str(value.dtype).removeprefix("torch.")
        data = base64.b64encode(raw).decode()
        return {_KIND: "tensor", "dtype": dtype, "shape": list(value.shape), "data": data}
    raise NotPlainError(where, type(value).__name__)


def _encode_items(
    values: list[Any] | tuple[Any, ...], where: str, apart: dict[str, Tensor] | None
) -> list[Any]:
    """Without a call for each number: the state of a generator has some hundred."""
    return [
        item if type(item) in (int, float) else encode(item, f"{where}[{i}]", apart)
        for i, item in enumerate(values)
    ]


def _encode_mapping(value: Mapping[Any, Any], where: str, apart: dict[str, Tensor] | None) -> Any:
    if all(isinstance(key, str) for key in value) and _KIND not in value:
        return {key: encode(item, f"{where}.{key}", apart) for key, item in value.items()}
    items = [[encode(k, where), encode(item, f"{where}[{k!r}]", apart)] for k, item in value.items()]
    return {_KIND: "dict", "items": items}


def decode(value: Any, apart: Any = None, where: str = "") -> Any:
    """What ``encode`` was given.

    Args:
        value: Plain JSON data.
        apart: ``apart[name]`` gives the tensors that were kept elsewhere.
        where: The file, for messages; the key path is added.

    Raises:
        CheckpointError: naming the file and the key, for what ``encode`` does not write and for more than
            100 levels.
    """
    return _Decoder(apart).decode(value, where, 0)


class _Decoder:
    def __init__(self, apart: Any) -> None:
        self._apart = apart

    def decode(self, value: Any, where: str, level: int) -> Any:
        """A value at a key path, so many levels deep.

        Raises:
            CheckpointError: as ``decode`` describes.
        """
        if not isinstance(value, (list, dict)):
            return value
        if level > _DEEPEST:
            raise CheckpointError(
                f"the data is nested more than {_DEEPEST} levels deep",
                code="checkpoint-damaged",
                where=where,
            )
        if isinstance(value, list):
            return [self.decode(item, f"{where}[{i}]", level + 1) for i, item in enumerate(value)]
        kind = value.get(_KIND)
        if kind is None:
            dot = "" if where.endswith(" ") else "."
            return {key: self.decode(item, f"{where}{dot}{key}", level + 1) for key, item in value.items()}
        try:
            return self._decode_kind(kind, value, where, level)
        except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            if isinstance(error, PacelineError):
                raise
            raise CheckpointError(
                f"a value of the kind {shown(kind, 40)} cannot be decoded",
                code="checkpoint-damaged",
                where=where,
                got=f"{type(error).__name__}: {error}",
            ) from None

    def _decode_kind(self, kind: Any, value: dict[str, Any], where: str, level: int) -> Any:
        if kind == "apart":
            return self._apart[value["name"]]
        if kind == "namespace":
            return Namespace(**self.decode(dict(value["items"]), where, level + 1))
        if kind in ("tuple", "counter", "dict"):
            items = self.decode(list(value["items"]), where, level + 1)
            if kind == "tuple":
                return tuple(items)
            pairs = {key: item for key, item in items}  # noqa: C416
            return Counter(pairs) if kind == "counter" else pairs
        if kind not in ("bytes", "array", "tensor"):
            raise ValueError("there is no such kind")
        data = base64.b64decode(value["data"], validate=True)
        if kind == "bytes":
            return data
        if kind == "array":
            return np.frombuffer(data, dtype=_array_type(value["dtype"])).reshape(value["shape"]).copy()
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
        return flat.view(_tensor_type(value["dtype"])).reshape(value["shape"])


def _array_type(name: Any) -> Any:
    found = np.dtype(str(name))
    if found.kind not in "biuf" or found.shape:
        raise ValueError(f"no numbers: {found}")
    return found


def _tensor_type(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"no dtype: {name}")
    return found


def is_plain(value: Any) -> bool:
    """Whether ``encode`` takes it."""
    try:
        encode(value)
    except PacelineError:
        return False
    return True
