"""Lightning's ``boring_classes`` has no counterpart: importing from here says what to use."""

from __future__ import annotations

from . import __getattr__

__all__ = ["__getattr__"]
