"""Checks for mistakes that raise no error."""

from .checks import Checks
from .finding import Check, Evidence, Finding, check
from .seen import Seen

__all__ = ["Check", "Checks", "Evidence", "Finding", "Seen", "check"]
