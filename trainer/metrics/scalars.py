"""Values that are logged: one number each."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...callbacks.loggers.media import Media
from ...errors import PacelineError


def as_number(name: str, value: Any) -> float:
    """A logged value that is no tensor, as a float.

    Raises:
        PacelineError: for what is not a number.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise not_a_number(name, value) from None


def not_a_number(name: str, value: Any) -> PacelineError:
    """The error for a value that is not a scalar."""
    if isinstance(value, Tensor) or hasattr(value, "shape"):
        got = f"a tensor of shape {tuple(value.shape)}"
        return PacelineError(
            f"log({name!r}): only scalars can be logged",
            code="not-loggable",
            got=got,
            fix=f"self.log({name!r}, value.mean()), or one name per element",
        )
    return PacelineError(
        f"log({name!r}): only scalars can be logged",
        code="not-loggable",
        got=f"{value!r} ({type(value).__name__})"[:200],
        allowed="a scalar, a tensor of one element, a torchmetrics object",
        fix=f"log_{type(value).__name__.lower()} of the module" if isinstance(value, Media) else None,
    )
