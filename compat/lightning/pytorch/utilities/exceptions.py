"""The errors that Lightning code catches."""

from __future__ import annotations

from paceline import PacelineError

MisconfigurationException = PacelineError
