"""The errors that Lightning code catches."""

from __future__ import annotations

from ..... import PacelineError

MisconfigurationException = PacelineError
