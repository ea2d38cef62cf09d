"""``save_hyperparameters`` and ``hparams``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ....trainer.hparams import bound_arguments
from ....trainer.module_parts.recorded import HParams, Recorded

_given: ContextVar[dict[str, Any] | None] = ContextVar("given hyperparameters", default=None)


@contextmanager
def given_hyperparameters(values: dict[str, Any]) -> Iterator[None]:
    """Let the next object record these in the place of its constructor's arguments."""
    token = _given.set(values)
    try:
        yield
    finally:
        _given.reset(token)


class HyperparametersMixin(Recorded):
    """What modules and data modules have: the constructor's arguments are recorded by themselves."""

    _paceline_arguments: dict[str, Any]
    _paceline_given: bool
    _paceline_left_out: frozenset[str]
    _log_hyperparams: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments of the outermost constructor."""
        made, given = super().__new__(cls), _given.get()
        object.__setattr__(made, "_paceline_given", given is not None)
        if given is None:
            given = bound_arguments(cls, made, args, kwargs)
        else:
            _given.set(None)  # parts that the constructor makes record their own
        object.__setattr__(made, "_paceline_arguments", given)
        object.__setattr__(made, "_hparams", HParams())
        object.__setattr__(made, "_paceline_left_out", frozenset())
        return made

    def save_hyperparameters(
        self, *args: Any, ignore: str | Sequence[str] | None = None, frame: Any = None, logger: bool = True
    ) -> None:
        """Put the constructor's arguments into ``hparams``.

        Args:
            *args: Names of those to take, or one mapping or namespace in their place; all without any.
            ignore: Names to leave out.
            frame: The frame of a constructor to begin at; the caller's unless given.
            logger: Whether ``hparams.yaml`` and trackers get them; the run's configuration always has them.
        """
        left_out = {ignore} if isinstance(ignore, str) else set(ignore or ())
        given = self._paceline_arguments
        if not self._paceline_given:
            given = _constructor_arguments(self, frame or inspect.currentframe())
        if args and not isinstance(args[0], str):
            found = dict(args[0]) if isinstance(args[0], Mapping) else dict(vars(args[0]))
        else:
            found = {name: given[name] for name in (args or given)}
        object.__setattr__(self, "_paceline_left_out", self._paceline_left_out | left_out)
        self.hparams.update(found)
        for name in left_out:  # of what the constructor of a base has saved, too
            self.hparams.pop(name, None)
        object.__setattr__(self, "_log_hyperparams", logger)
        object.__setattr__(self, "_hparams_initial", copy.copy(self.hparams))

    @property
    def recorded_arguments(self) -> dict[str, Any]:
        """The constructor's arguments that a checkpoint records, as ``hparams`` has them now."""
        kept = self._paceline_arguments.items()
        found = {n: self.hparams.get(n, value) for n, value in kept if n not in self._paceline_left_out}
        return found | ({"_saved": sorted(self.hparams)} if self._paceline_given else {})

    @property
    def hparams_initial(self) -> HParams:
        """``hparams`` as they were recorded."""
        return HParams(vars(self).get("_hparams_initial", {}))


def _constructor_arguments(made: Any, frame: Any) -> dict[str, Any]:
    """The arguments of the constructors that run for an object, of all its classes, as they are now."""
    found: dict[str, Any] = {}
    while frame is not None:
        code = frame.f_code
        is_constructor = code.co_name == "__init__" and code.co_argcount > 0
        if is_constructor and frame.f_locals.get(code.co_varnames[0]) is made:
            found |= arguments_of(frame)
        frame = frame.f_back
    return found


def arguments_of(frame: Any) -> dict[str, Any]:
    """The arguments of a method whose frame this is, but the object; ``**kwargs`` one by one."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    found = {name: values[name] for name in code.co_varnames[1:count]}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        found |= values[code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]]
    return found
