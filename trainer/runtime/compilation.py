"""torch.compile for the time of a run: in place, so that no name in the module or a checkpoint changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from ...errors import PacelineError
from ...strategies import find_units
from ...strategies.blocks.repeated_blocks import called_parts
from ...strategies.torch_internals import is_compiled
from .compile_report import CompileReport

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
BLOCKS = "blocks"
_PYTHON = ("log", "log_dict", "print", "manual_backward")


class Compilation:
    """What of a module is compiled, from ``begin`` to ``undo``, and what is reported of it.

    Each part compiles at its first call: the module itself where it has a ``forward``, and the parts that a
    step calls directly; or each of the blocks that repeat, which share what one of them compiled to.

    Args:
        setting: True, a mode of torch.compile, ``"blocks"``, or a mapping of torch.compile's arguments
            (with ``"blocks": True`` for blocks).
        log_line: Takes lines for the log.

    """

    def __init__(self, module: nn.Module, setting: Any, log_line: Callable[[str], None]) -> None:
        self._module, self._setting = module, setting
        self._parts: list[nn.Module] = []
        self._forwards: list[nn.Module] = []
        self._report = CompileReport(log_line)

    def begin(self) -> None:
        """Compile the parts at their first calls from here on.

        Raises:
            PacelineError: for ``"blocks"`` of a module without repeated blocks.
        """
        module, setting = self._module, self._setting
        options, blocks = read_setting(setting)
        parts = find_units(module) if blocks else _called_parts(module)
        if not parts:
            raise PacelineError(
                "compile found no repeated blocks in the module"
                if blocks
                else "compile found no part to compile",
                code="repeated-blocks",
                got=f"{type(module).__name__}, compile={setting!r}",
                fix="def shard_units(self): return self.blocks" if blocks else "assign the layers to self",
            )
        self._parts = [part for part in parts if not is_compiled(part)]  # the user's own stay
        of_torch: dict[Any, Callable[..., Any]] = {}
        for part in self._parts:
            forward = type(part).forward
            if not forward.__module__.startswith("torch.") or "forward" in vars(part):
                part.compile(**options)
                continue
            # Of a Sequential, say, Module.compile compiles nothing: torch's own files are not traced.
            if forward not in of_torch:
                of_torch[forward] = torch.compile(_in_a_frame(forward, type(part).__name__), **options)
            vars(part)["forward"] = partial(of_torch[forward], part)
            self._forwards.append(part)
        for name in _PYTHON:  # traced, they would be compiled again whenever a counter moves
            method = getattr(module, name, None)
            if callable(method):
                vars(module)[name] = torch.compiler.disable(method)
        self._report.begin()

    def report(self, place: str) -> None:
        """Log what was compiled since the last time."""
        self._report.report(place)

    def undo(self) -> None:
        """Leave the module as it was."""
        for part in self._parts:
            vars(part).pop("_compiled_call_impl", None)
        for part in self._forwards:
            vars(part).pop("forward", None)  # with the recomputation around it, if that was not undone yet
        for name in _PYTHON:
            vars(self._module).pop(name, None)
        self._report.end()


def _in_a_frame(forward: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``forward`` in a function that is traced, with its own code: torch keeps graphs by code."""

    def call(*args: Any, **named: Any) -> Any:
        return forward(*args, **named)

    call.__code__ = call.__code__.replace(co_name=f"{name}.forward")
    return call


def uncompiled(compilation: Compilation | None) -> AbstractContextManager[Any]:
    """What is to run as it is written: compiled code does not see hooks that come later."""
    if compilation is None:
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def read_setting(setting: Any) -> tuple[dict[str, Any], bool]:
    """The arguments of torch.compile, and whether blocks are compiled.

    Raises:
        ValueError: for a setting of another kind.
    """
    if setting is True:
        return {}, False
    if setting == BLOCKS:
        return {}, True
    if isinstance(setting, str) and setting in MODES:
        return {"mode": setting}, False
    if isinstance(setting, Mapping) and setting:
        options = dict(setting)
        blocks = options.pop(BLOCKS, False)
        known = ("fullgraph", "dynamic", "backend", "mode", "options")
        if isinstance(blocks, bool) and all(name in known for name in options):
            return options, blocks
    raise ValueError(setting)


def _called_parts(module: nn.Module) -> list[nn.Module]:
    """The module, if it can be called, and the outermost parts of it that can."""
    own = [module] if type(module).forward is not nn.Module.forward else []
    return own + list(called_parts(module))
