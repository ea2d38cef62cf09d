"""What an object records of its constructor's arguments by itself."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...errors import nearest


class HParams(dict[str, Any]):
    """Arguments by name, also as attributes: ``hparams.lr`` is ``hparams["lr"]``.

    A name that a dict has itself, such as ``items``, is read with brackets. A pickle of it can be read
    without this package, as a dict.

    Example:
        >>> hparams = HParams(lr=0.1)
        >>> hparams.lr, hparams["lr"]
        (0.1, 0.1)
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        near = None if name.startswith("_") else nearest(name, self)
        hint = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"hparams has no {name!r}, only: {', '.join(self) or 'nothing'}{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"hparams has no {name!r}")
        del self[name]

    def __copy__(self) -> HParams:
        return HParams(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> HParams:
        return HParams(copy.deepcopy(dict(self), memo))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self.items())  # which torch.load reads with weights_only

    def copy(self) -> HParams:
        """A shallow copy."""
        return HParams(self)


class Recorded:
    """What has ``hparams``: the arguments of its constructor."""

    @property
    def hparams(self) -> HParams:
        """The constructor's arguments by name, defaults included; attributes too: ``self.hparams.lr``."""
        found = vars(self).get("_hparams", {})
        if not isinstance(found, HParams):  # unpickled
            found = vars(self)["_hparams"] = HParams(found)
        return found


def record(
    cls: type,
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_copied: Callable[[Any], bool],
) -> HParams:
    """The arguments by name, defaults included.

    Args:
        cls: The class whose constructor is called.
        module: The new object.
        args: As the constructor gets them.
        kwargs: As the constructor gets them.
        is_copied: Whether a value is recorded as it is now; others may change.
    """
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        bound = signature.bind(module, *args, **kwargs)
    except TypeError:
        return HParams()  # copying and unpickling call __new__ alone; a wrong call fails in __init__ itself
    bound.apply_defaults()
    found = HParams()
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            # A constructor may take a dict apart; what is recorded is what it was given.
            found[name] = copy.deepcopy(value) if is_copied(value) else value
    return found
