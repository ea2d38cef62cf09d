"""``save_hyperparameters`` and ``hparams``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ....trainer.hparams import bound_arguments
from ....trainer.recorded import HParams, Recorded


class HyperparametersMixin(Recorded):
    """What modules and data modules have: the constructor's arguments are recorded by themselves."""

    _arguments: dict[str, Any]
    _left_out: frozenset[str]
    _log_hyperparams = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments of the outermost constructor."""
        made = super().__new__(cls)
        object.__setattr__(made, "_arguments", bound_arguments(cls, made, args, kwargs))
        object.__setattr__(made, "_hparams", HParams())
        object.__setattr__(made, "_left_out", frozenset())
        return made

    def save_hyperparameters(
        self, *args: Any, ignore: str | Sequence[str] | None = None, frame: Any = None, logger: bool = True
    ) -> None:
        """Put the constructor's arguments into ``hparams``.

        Args:
            *args: Names of those to take, or one mapping or namespace in their place; all without any.
            ignore: Names to leave out.
            frame: Accepted as Lightning has it; nothing is read from it.
            logger: Whether loggers get them; the run's configuration has them always.
        """
        left_out = {ignore} if isinstance(ignore, str) else set(ignore or ())
        if args and not isinstance(args[0], str):
            given = args[0] if isinstance(args[0], Mapping) else vars(args[0])
            found = dict(given)
        else:
            found = {name: self._arguments[name] for name in (args or self._arguments)}
        self._log_hyperparams = logger
        object.__setattr__(self, "_left_out", self._left_out | left_out)
        self.hparams.update({name: value for name, value in found.items() if name not in left_out})
        object.__setattr__(self, "_hparams_initial", copy.copy(self.hparams))

    @property
    def recorded_arguments(self) -> dict[str, Any]:
        """The constructor's arguments that a checkpoint records: all but those that were left out."""
        return {name: value for name, value in self._arguments.items() if name not in self._left_out}

    @property
    def hparams_initial(self) -> HParams:
        """``hparams`` as they were recorded."""
        return HParams(vars(self).get("_hparams_initial", {}))
