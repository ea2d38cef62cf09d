"""One set of parameters, buffers and submodules for two modules.

What is trained is the user's own module, by the names it has: no prefix in checkpoints, which other
programs read. An ``nn.Module`` keeps its parts in three dictionaries and a set that have no public name;
``tests/compat/lightning/test_namespace.py`` fails by name where a torch keeps them elsewhere.
"""

from __future__ import annotations

from torch import nn

PARTS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def share(source: nn.Module, target: nn.Module) -> None:
    """Let ``target`` have the parts of ``source``, those assigned later included."""
    for name in PARTS:
        vars(target)[name] = vars(source)[name]
