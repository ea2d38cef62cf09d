"""The ``forward`` of a trained module as a program that needs neither this package nor its source."""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import PacelineError, listed, users_line
from ..trainer.utils.nested import describe, map_tensors, tensors_of
from ..trainer.utils.paths import writing

Form = Literal["onnx", "torch"]
_FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_TRACED, _OTHERS = 4, (7, 1)  # samples in a batch: that it is traced with, and that it is checked with
_LONGEST = 240  # characters of a reason
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
_CALL = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ExportedProgram:
    """A program that was written.

    Attributes:
        file: Where.
        part: The dotted name of the part of the module that it computes; "" for the module.
        inputs: What it takes, in a line.
        sizes: The batch sizes with which it was compared with the module.
        difference: The largest one between their outputs.
        fixed: Why the batch size is fixed; "" where it is free.
    """

    file: Path
    part: str
    inputs: str
    sizes: Sequence[int]
    difference: float
    fixed: str = ""


def find_call(
    module: nn.Module, submodule: str | None, evaluate: Callable[[], object]
) -> tuple[str, _CALL]:
    """The part of a module that is to be exported, and what it is called with.

    Args:
        module: What was trained.
        submodule: The part by its dotted name; None: the module itself where it has a ``forward``, else the
            only part that its step calls.
        evaluate: Calls a step of the module on a batch.

    Returns:
        The name of the part, and the arguments of its first call.

    Raises:
        PacelineError: where the step calls no such part, or several.
    """
    parts = {submodule: dict(module.named_modules()).get(submodule)} if submodule else {"": module}
    if submodule is None and type(module).forward is nn.Module.forward:
        parts = dict(module.named_children())
    calls: dict[str, _CALL] = {}
    with _recorded(parts, calls):
        evaluate()
    if len(calls) == 1:
        return next(iter(calls.items()))
    raise PacelineError(
        f"the step of {type(module).__name__} calls {'several parts' if calls else 'no such part'}, "
        "and one is exported",
        code="part-not-found",
        got=submodule,
        allowed=listed([f"--submodule {name}" for name in calls or parts if name]) or None,
        fix=None if calls else "the step must call the part as a function, self.model(x), not its methods",
    )


@contextmanager
def _recorded(parts: dict[str, Any], calls: dict[str, _CALL]) -> Iterator[None]:
    """Keep the arguments of the first call of each part, by its name."""

    def keep(name: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(name, _copied((args, kwargs)))

        return hook

    handles = [
        part.register_forward_pre_hook(keep(name), with_kwargs=True)
        for name, part in parts.items()
        if part is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copied(call: Any) -> Any:
    return map_tensors(
        call, lambda one: one.detach().to("cpu", copy=True) if isinstance(one, Tensor) else one
    )


def export_program(
    module: nn.Module, part: str, call: tuple[tuple[Any, ...], dict[str, Any]], folder: Path, form: Form
) -> ExportedProgram:
    """Write a part of a module as a program, and compare it with the module.

    Args:
        module: With its trained weights; its part is put into eval mode.
        part: The dotted name of the part; "" for the module.
        call: The arguments of ``forward``, as ``find_call`` gives them.
        folder: Where the file goes: ``model.onnx`` or ``model.pt2``.
        form: Which of them.

    Raises:
        PacelineError: where the part cannot be exported, and where the program computes other values;
            nothing is written then.
    """
    if form == "onnx":
        _require_onnx()
    target = module.get_submodule(part).eval().requires_grad_(False)
    tensors = tensors_of(call)
    if not tensors:
        raise PacelineError(
            f"{part or 'forward'} takes no tensor", code="export-not-possible", got=describe(call)
        )
    size = tensors[0].shape[0] if tensors[0].ndim else 0
    free = [_resized(call, size, count) for count in (_TRACED, *_OTHERS)] if size else []
    fixed, program = "there is no batch dimension", None
    if free:
        try:
            program, fixed = _traced(target, free[0], batch=_TRACED), ""
        except Exception as error:
            fixed = _why(error)
    if program is None:
        free = [call]
        try:
            program = _traced(target, call)
        except Exception as error:
            raise _not_exported(target, part, error) from None
    with writing("the program", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".") as staged:
        file = Path(staged, _FILES[form])
        run = _write_onnx(program, file) if form == "onnx" else _write_torch(program, file)
        difference = max(_compared(target, run, one) for one in free)
        for written in sorted(Path(staged).iterdir()):
            os.replace(written, folder / written.name)
    sizes = [_size(one) for one in free]
    return ExportedProgram(
        folder / _FILES[form], part, _described(call, bool(fixed)), sizes, difference, fixed
    )


def _size(call: Any) -> int:
    first = tensors_of(call)[0]
    return first.shape[0] if first.ndim else 1


def _described(call: _CALL, fixed: bool) -> str:
    def one(tensor: Tensor) -> str:
        first = [str(n) for n in tensor.shape]
        if not fixed and first and tensor.shape[0] == _size(call):
            first[0] = "batch"
        return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(first)}]"

    return ", ".join(map(one, tensors_of(call)))


def _resized(call: Any, size: int, count: int) -> Any:
    """The call with so many samples in its batch: the first ones, and again from the first one."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim or value.shape[0] != size:
            return value
        return value[torch.arange(count) % size].clone()

    return map_tensors(call, one)


def _traced(target: nn.Module, call: _CALL, batch: int | None = None) -> torch.export.ExportedProgram:
    """The program; with ``batch`` the first dimension of tensors of so many samples is free."""
    shapes: Any = None
    if batch is not None:
        shapes = torch.export.ShapesCollection()
        dimension = torch.export.Dim("batch")
        for tensor in tensors_of(call):
            if tensor.ndim and tensor.shape[0] == batch:
                shapes[tensor] = {0: dimension}
    with torch.no_grad(), _quiet("torch.fx"):
        return torch.export.export(target, *call, dynamic_shapes=shapes)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without what torch prints of packages that it lacks, and pages of what it cannot trace."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


def _write_torch(program: torch.export.ExportedProgram, file: Path) -> Callable[[_CALL], Any]:
    torch.export.save(program, file)
    loaded = torch.export.load(file).module()
    return lambda call: loaded(*call[0], **call[1])


def _write_onnx(program: torch.export.ExportedProgram, file: Path) -> Callable[[_CALL], Any]:
    import onnxruntime

    try:
        with _quiet("torch.onnx"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own
            written = torch.onnx.export(program, verbose=False)
    except Exception as error:
        raise PacelineError(
            "torch.onnx cannot translate the program",
            code="export-not-possible",
            got=_why(error),
            fix="--format torch",
        ) from None
    assert written is not None
    written.save(file)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(call: _CALL) -> Any:
        given = dict(zip(names, (one.numpy() for one in tensors_of(call)), strict=True))
        return [torch.from_numpy(one) for one in session.run(None, given)]

    return run


def _compared(target: nn.Module, run: Callable[[_CALL], Any], call: _CALL) -> float:
    """The largest difference between the outputs of the program and of the module."""
    with torch.no_grad():
        expected = tensors_of(target(*_copied(call)[0], **_copied(call)[1]))
    try:
        found = tensors_of(run(call))
    except Exception as error:
        raise PacelineError(
            f"the program does not take a batch of {_size(call)} samples",
            code="export-not-possible",
            got=_why(error),
        ) from None
    shapes = [[list(one.shape) for one in outputs] for outputs in (expected, found)]
    if shapes[0] != shapes[1]:
        raise PacelineError(
            "the program has other outputs than the module",
            code="export-not-possible",
            got=f"shapes {shapes[1]}, not {shapes[0]}",
        )
    worst = 0.0
    for mine, other in zip(expected, found, strict=True):
        a, b = mine.double(), other.double()
        if not torch.allclose(b, a, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True):
            raise PacelineError(
                f"the program computes other values than the module, for {_size(call)} samples",
                code="export-not-possible",
                got=f"a difference of {float((a - b).abs().max()):.3g}",
                allowed=f"{_ABSOLUTE:g} + {_RELATIVE:g} of the value",
                fix="look in forward for random numbers, for values that are kept between calls, and for "
                "what depends on the batch size",
            )
        gaps = (a - b).abs()[torch.isfinite(a)]
        worst = max(worst, float(gaps.max()) if gaps.numel() else 0.0)
    return worst if math.isfinite(worst) else 0.0


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PacelineError(
            f"--format onnx needs {error.name}", code="package-missing", fix="pip install 'paceline[onnx]'"
        ) from None


def _not_exported(target: nn.Module, part: str, error: Exception) -> PacelineError:
    """An error of ``torch.export``, which is pages long, as one message with the line of the user's."""
    what, fix = "", None
    text = str(error)
    if "data-dependent" in text or "Dynamic control flow" in text:
        what = ": what it computes depends on the values of a tensor"
        fix = "torch.where or torch.cond in place of a Python `if` or loop over values of tensors"
    return PacelineError(
        f"{part or type(target).__name__} cannot be exported{what}",
        code="export-not-possible",
        where=users_line(error),
        got=_why(error),
        fix=fix,
    )


def _why(error: Exception) -> str:
    """What an error of torch says: its first line, and the first reason where it lists some."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line.removeprefix("- ") for line in lines[1:] if line.startswith("- ")]
    first = (reasons or lines or [type(error).__name__])[0]
    if "specialized it to be a constant" in first:
        return (
            "forward takes the number of samples as a constant, as len(x) and a loop over x do; "
            "x.shape[0] stays free"
        )
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."
