"""The precisions by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...errors import PacelineError, nearest
from .float8 import Float8
from .precision import AutocastBF16, AutocastFP16, Full, Precision

_BUILDERS: dict[str, Callable[[], Precision]] = {
    "32": Precision,
    "bf16": AutocastBF16,
    "fp16": AutocastFP16,
    **{name: partial(Full, name) for name in ("64", "bf16-true", "fp16-true")},
    "fp8": Float8,
}
_READ_TOO = {
    "32-true": "32",
    "fp32": "32",
    "float32": "32",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16-true",
    "no": "32",
    "64-true": "64",
    "fp64": "64",
    "float64": "64",
    "double": "64",
    "bfloat16": "bf16",
    "float16": "fp16",
}
_BLACKWELL = ("mxfp8", "mxfp4", "nvfp4", "fp4")
PRECISIONS = tuple(_BUILDERS)


def make_precision(precision: str | int | Precision) -> Precision:
    """The plugin of that name; an object of ``Precision`` is taken as it is.

    Args:
        precision: A name of ``PRECISIONS``, one of its usual synonyms (``16``, ``"bf16-mixed"``), or an
            object.

    Returns:
        The object, not yet attached to a device.

    Raises:
        PacelineError: for a name that is none.

    Example:
        >>> make_precision(16).name
        'fp16'
    """
    if isinstance(precision, Precision):
        return precision
    name = str(precision)
    build = _BUILDERS.get(_READ_TOO.get(name, name))
    if name.lower() in _BLACKWELL:
        raise PacelineError(
            f"precision: {name!r} needs NVIDIA Blackwell, and training with it is a prototype in torchao",
            code="unknown-precision",
            got=precision,
            fix='precision="fp8" is float8 with a scale for each tensor or row, for Hopper too',
        )
    if build is None:
        raise PacelineError(
            f"precision: there is no {name!r}",
            code="unknown-precision",
            got=precision,
            allowed=", ".join(PRECISIONS) + ", or an object of paceline.strategies.Precision",
            meant=nearest(name, [*PRECISIONS, *_READ_TOO]),
        )
    return build()
