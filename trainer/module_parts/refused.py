"""Methods of other trainers' modules that a module here does not have, and that say so."""

from __future__ import annotations

from typing import Any, NoReturn

from ...errors import PacelineError


class Refused:
    """In the place of a method that modules do not have: the error of a call says why.

    Args:
        what: What is wrong with a call.
        fix: What to do instead.

    Example:
        >>> Refused("save_hyperparameters is not needed here", "delete the call")()
        Traceback (most recent call last):
        paceline.errors.PacelineError: save_hyperparameters is not needed here
          fix: delete the call
          more: paceline explain not-offered
    """

    def __init__(self, what: str, fix: str) -> None:
        self._what, self._fix = what, fix

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        """Refuse the call, whatever its arguments."""
        raise PacelineError(self._what, code="not-offered", fix=self._fix)
