"""Plain data to JSON and back, exactly: tuples, tensors, arrays, bytes and non-string keys included."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import PacelineError

_KIND = "__kind__"


class NotPlainError(PacelineError):
    """Something that files without pickles cannot hold."""

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
    if isinstance(value, list):
        return [encode(item, f"{where}[{i}]", apart) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        items = [encode(item, f"{where}[{i}]", apart) for i, item in enumerate(value)]
        return {_KIND: "tuple", "items": items}
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


def _encode_mapping(value: Mapping[Any, Any], where: str, apart: dict[str, Tensor] | None) -> Any:
    if all(isinstance(key, str) for key in value) and _KIND not in value:
        return {key: encode(item, f"{where}.{key}", apart) for key, item in value.items()}
    items = [[encode(k, where), encode(item, f"{where}[{k!r}]", apart)] for k, item in value.items()]
    return {_KIND: "dict", "items": items}


def decode(value: Any, apart: Any = None) -> Any:
    """What ``encode`` was given; ``apart[name]`` gives the tensors that were kept elsewhere."""
    if isinstance(value, list):
        return [decode(item, apart) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: decode(item, apart) for key, item in value.items()}
    if kind == "apart":
        return apart[value["name"]]
    if kind == "tuple":
        return tuple(decode(item, apart) for item in value["items"])
    if kind == "counter":
        return Counter({decode(key): number for key, number in value["items"]})
    if kind == "dict":
        return {decode(key): decode(item, apart) for key, item in value["items"]}
    data = base64.b64decode(value["data"])
    if kind == "bytes":
        return data
    if kind == "array":
        return np.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    return flat.view(getattr(torch, value["dtype"])).reshape(value["shape"])


def is_plain(value: Any) -> bool:
    """Whether ``encode`` takes it."""
    try:
        encode(value)
    except PacelineError:
        return False
    return True
