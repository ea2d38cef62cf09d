"""Runs programs written for Lightning under a package and writes what happened in them as JSON.

``python recorder.py PACKAGE OUT.json PROGRAM...
[--option name=json] [--folder F] [--resume CKPT] [--bare]``

A program is the function ``main`` of a file, or another one: ``FILE:FUNCTION``. The package takes
Lightning's place in the lines that import it, as ``sed`` would do it, and nowhere else.
Then every hook and override point that the program's own classes define is wrapped: each call is noted with
a short description of its arguments. A program that fails is noted with its traceback; the rest goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from helpers.arithmetic import made_with

LIGHTNING = "lightning"
RULES = (
    (r"^(\s*)(import|from)(\s+)pytorch_lightning\b", r"\1\2\3{package}.pytorch"),
    (r"^(\s*)(import|from)(\s+)lightning\b", r"\1\2\3{package}"),
)
PHASES = ("train", "validation", "test", "predict")
BOTH = {
    *(f"on_{phase}_{when}" for phase in PHASES for when in ("start", "end", "epoch_start", "epoch_end")),
    *(f"on_{phase}_batch_{when}" for phase in PHASES for when in ("start", "end")),
    *("setup", "teardown", "on_fit_start", "on_fit_end", "on_save_checkpoint", "on_load_checkpoint"),
    *("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
}
TRANSFERS = {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"}
LOADERS = {"prepare_data", *(f"{phase}_dataloader" for phase in ("train", "val", "test", "predict"))}
MODULE = {
    *(BOTH | TRANSFERS | LOADERS),
    *("training_step", "validation_step", "test_step", "predict_step"),
    *(f"on_{phase}_model_{mode}" for phase in PHASES[1:] for mode in ("eval", "train", "zero_grad")),
    *("configure_model", "configure_optimizers", "configure_callbacks", "configure_gradient_clipping"),
    *("optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step"),
}
STATES = {"state_dict", "load_state_dict", "on_exception"}
CALLBACK = BOTH | STATES | {"on_sanity_check_start", "on_sanity_check_end"}
DATA = TRANSFERS | LOADERS | STATES | {"setup", "teardown"}
HOOKS = {"LightningModule": MODULE, "Callback": CALLBACK, "LightningDataModule": DATA}


def with_package(source: str, package: str) -> tuple[str, int]:
    """The source with ``package`` in the place of Lightning, and the number of lines that differ."""
    changed = source
    for pattern, replacement in RULES:
        changed = re.sub(pattern, replacement.format(package=package), changed, flags=re.MULTILINE)
    lines = zip(source.splitlines(), changed.splitlines(), strict=True)
    return changed, sum(one != other for one, other in lines)


# -- descriptions --------------------------------------------------------------------------------


def describe(value: Any, package: Any, depth: int = 2) -> Any:
    """What a value is, in words that do not depend on the package or its version."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return str(getattr(value, "value", value))  # a stage may be a member of an enum of strings
    if isinstance(value, torch.Tensor):
        return f"tensor{list(value.shape)} {value.detach().double().sum().item()!r}"
    if isinstance(value, (dict, list, tuple)):
        if not depth:
            return "..."
        if isinstance(value, dict):
            return {str(key): describe(one, package, depth - 1) for key, one in value.items()}
        return [describe(one, package, depth - 1) for one in value]
    return _object(value, package)


def _object(value: Any, package: Any) -> str:
    for name in ("Trainer", "LightningDataModule", "LightningModule", "Callback"):
        if isinstance(value, getattr(package, name)):
            return name.removeprefix("Lightning").lower()
    if isinstance(value, (torch.nn.Module, torch.device)):
        return "module" if isinstance(value, torch.nn.Module) else value.type
    if hasattr(value, "param_groups"):
        return "optimizer"
    if hasattr(value, "step") and hasattr(value, "optimizer"):
        return "scheduler"
    return "function" if callable(value) else type(value).__name__


def _checkpoint(value: Any) -> str:
    """Of a whole checkpoint only what programs read from it: the rest belongs to the package."""
    return f"checkpoint epoch={value.get('epoch')} step={value.get('global_step')}"


def digest(state: dict[str, Any]) -> str:
    """SHA-256 of the tensors in the order of their names."""
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, torch.Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _exact(value: Any) -> str:
    return float(value.detach() if isinstance(value, torch.Tensor) else value).hex()


def numbers(metrics: Any) -> dict[str, str]:
    """The values, exact, in the order of their names."""
    return {str(name): _exact(value) for name, value in sorted(dict(metrics).items())}


# -- recording -----------------------------------------------------------------------------------


class Record:
    """What is noted of one program."""

    def __init__(self, package: Any) -> None:
        self.package = package
        self.calls: list[Any] = []
        self.logged: list[Any] = []
        self.during: list[Any] = []
        self.seconds = {"seconds": 0.0, "processor_seconds": 0.0}
        self._logging = False

    def wrap_hooks(self, program: types.ModuleType) -> None:
        """Wrap the hooks that the program's own classes define."""
        for value in list(vars(program).values()):
            if not isinstance(value, type) or value.__module__ != program.__name__:
                continue
            for base, names in HOOKS.items():
                if issubclass(value, getattr(self.package, base)):
                    for name in names & set(vars(value)):
                        if isinstance(vars(value)[name], types.FunctionType):
                            setattr(value, name, self._noting(value.__name__, name, vars(value)[name]))

    def _noting(self, owner: str, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(hook)
        whole = name in ("on_save_checkpoint", "on_load_checkpoint")

        @functools.wraps(hook)  # both packages look through it, for overriding and for arguments
        def noting(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = [
                _checkpoint(value) if whole and isinstance(value, dict) else describe(value, self.package)
                for value in list(bound.arguments.values())[1:]
            ]
            call = [owner, name, given]
            self.calls.append(call)
            returned = hook(*args, **kwargs)
            if name == "on_train_batch_start":
                call.append(describe(returned, self.package))
            return returned

        return noting

    def log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``log`` or ``log_dict`` that notes the values; the one that the other calls notes nothing."""

        @functools.wraps(original)
        def log(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._logging:
                return original(module, *args, **kwargs)
            bound = inspect.signature(original).bind(module, *args, **kwargs).arguments
            values = bound.get("dictionary", {bound.get("name"): bound.get("value")})
            if isinstance(values, torch.nn.Module):  # a MetricCollection, whose items() has effects
                values = {type(values).__name__: values}
            for name, value in values.items():
                metric = isinstance(value, torch.nn.Module)
                self.logged.append([name, "metric" if metric else _exact(value)])
            self._logging = True
            try:
                return original(module, *args, **kwargs)
            finally:
                self._logging = False

        return log

    def trainer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``Trainer.__init__`` with one more callback, which notes the metrics."""
        record = self

        class Probe(self.package.Callback):  # type: ignore[name-defined, misc]
            def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
                if not trainer.sanity_checking:
                    record.during.append(["on_validation_end", numbers(trainer.callback_metrics)])

            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                record.during.append(["on_train_epoch_end", numbers(trainer.callback_metrics)])

        @functools.wraps(original)
        def init(trainer: Any, *args: Any, **kwargs: Any) -> None:
            given = kwargs.get("callbacks") or []
            given = given if isinstance(given, (list, tuple)) else [given]
            original(trainer, *args, **kwargs | {"callbacks": [*given, Probe()]})

        return init

    def method(self, original: Callable[..., Any], resume: str | None, bare: bool) -> Callable[..., Any]:
        """``fit``, ``validate``, ``test`` or ``predict`` of a Trainer; fit on a clock."""
        name = original.__name__

        @functools.wraps(original)
        def method(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "fit" and resume is not None:
                kwargs.setdefault("ckpt_path", resume)
            begun = time.perf_counter(), time.process_time()
            returned = original(trainer, *args, **kwargs)
            ended = time.perf_counter(), time.process_time()
            if name == "fit":
                for kind, start, end in zip(self.seconds, begun, ended, strict=True):
                    self.seconds[kind] += end - start
            if not bare:
                self.during.append([name, numbers(trainer.callback_metrics)])
            return returned

        return method


def run(
    named: str, package: str, options: dict[str, Any], resume: str | None = None, bare: bool = False
) -> dict[str, Any]:
    """Run a program in this folder; what happened, as JSON has it.

    Args:
        named: The file of the program, and ``:`` with the function where that is not ``main``.
        options: For the program's Trainer.
        bare: Notes neither hooks nor metrics, for timing.
    """
    path, function = place(named)
    source = path.read_text()
    changed, lines = with_package(source, "paceline.compat.lightning" if package == LIGHTNING else package)
    loaded = importlib.import_module(package)
    program = types.ModuleType(path.stem)
    program.__file__ = str(path)
    sys.modules[path.stem] = program
    record = Record(loaded)
    exec(compile(source if package == LIGHTNING else changed, str(path), "exec"), vars(program))
    kinds = {name: getattr(loaded, name) for name in ("Trainer", "LightningModule")}
    with contextlib.ExitStack() as stack:
        for name in ("fit", "validate", "test", "predict"):
            method = record.method(getattr(kinds["Trainer"], name), resume, bare)
            stack.enter_context(mock.patch.object(kinds["Trainer"], name, method))
        if not bare:
            record.wrap_hooks(program)
            init = record.trainer(kinds["Trainer"].__init__)
            stack.enter_context(mock.patch.object(kinds["Trainer"], "__init__", init))
            for name in ("log", "log_dict"):
                log = record.log(getattr(kinds["LightningModule"], name))
                stack.enter_context(mock.patch.object(kinds["LightningModule"], name, log))
        trainer, model = vars(program)[function](**options)
    return {
        "lines": lines,
        "draws": getattr(program, "DRAWS", None),
        "calls": record.calls,
        "logged": record.logged,
        "metrics_during": record.during,
        "metrics": numbers(trainer.callback_metrics),
        "state": digest(model.state_dict()),
        "global_step": trainer.global_step,
        "current_epoch": trainer.current_epoch,
        **record.seconds,
    }


# -- the command ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _apart(folder: Path) -> Iterator[None]:
    """In this folder, and what a program sets for the whole process is set back behind it."""
    where, variables = Path.cwd(), dict(os.environ)
    kind, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(where)
        os.environ.clear()
        os.environ.update(variables)
        torch.set_default_dtype(kind)
        torch.use_deterministic_algorithms(deterministic)


def place(named: str) -> tuple[Path, str]:
    """The file of a program and its function."""
    file, _, function = named.partition(":")
    return Path(file), function or "main"


def name_of(named: str) -> str:
    """What a program is called: its file, and what follows ``main`` in its function."""
    path, function = place(named)
    return path.stem + function.removeprefix("main")


def run_one(named: str, asked: argparse.Namespace) -> dict[str, Any]:
    """What happened in a program, or the traceback with which it failed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        if asked.folder is not None:  # ranks, and runs that continue another, need the same one
            folder = asked.folder / name_of(named)
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with _apart(folder):
                return run(named, asked.package, dict(asked.option), asked.resume, asked.bare)
        except Exception:
            traceback.print_exc()  # of every rank: only the first one's is written
            return {"error": traceback.format_exc()}


def _option(text: str) -> tuple[str, Any]:
    name, value = text.split("=", 1)
    return name, json.loads(value)


def main() -> None:
    """Run the programs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("out", type=lambda text: Path(text).resolve())
    parser.add_argument("programs", nargs="+", type=os.path.abspath)
    parser.add_argument("--option", action="append", default=[], type=_option, help="of Trainer: name=json")
    parser.add_argument("--folder", type=lambda text: Path(text).resolve(), help="for the run folders")
    parser.add_argument("--resume", help="the ckpt_path of every fit that has none")
    parser.add_argument("--bare", action="store_true", help="note neither hooks nor metrics")
    asked = parser.parse_args()
    made = {"made_with": made_with()}
    found = {name_of(named): made | run_one(named, asked) for named in asked.programs}
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        asked.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
