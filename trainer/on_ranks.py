"""The decorator of the Trainer's verbs: where ranks are to be forked for a notebook, it forks them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def on_ranks(verb: F) -> F:
    """Call a verb of the Trainer in ranks that are forked for it, where its ranks are to be forked.

    The process that forks them waits. Then its trainer and its module are as rank 0's were at the end, and
    it returns what rank 0 returned.
    """

    @wraps(verb)
    def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if not trainer.strategy.environment.forks:
            return verb(trainer, *args, **kwargs)
        from .forked import run_on_forked_ranks

        return run_on_forked_ranks(verb, trainer, args, kwargs)

    return cast(F, call)
