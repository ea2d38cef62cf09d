"""In the place of modules that are private to Lightning: importing from here says so."""

from __future__ import annotations

from typing import Any

from .refusals import refuse_import


def __getattr__(name: str) -> Any:
    return refuse_import(
        "lightning", name, {name: "what Trainer shows in its place: this name is private to Lightning"}
    )
