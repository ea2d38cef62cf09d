"""Writes docs/api/README.md: everything public in one line each, and the arguments of what users construct.

Those of ``Trainer`` are described in trainer/config/arguments.py; its docstring is written from there.

python docs/make_api.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import paceline
import paceline.callbacks
import paceline.config
import paceline.mixing
import paceline.optimizers
import paceline.parameter_groups
import paceline.schedules
import paceline.strategies
import paceline.testing
from paceline.trainer.config.arguments import TrainerArguments

PACKAGES = (
    paceline,
    paceline.callbacks,
    paceline.strategies,
    paceline.schedules,
    paceline.parameter_groups,
    paceline.optimizers,
    paceline.mixing,
    paceline.config,
    paceline.testing,
)
"""Everything public is in the ``__all__`` of one of them."""
TRAINER = Path(inspect.getfile(paceline.Trainer))
PAGE = Path(__file__).parent / "api" / "README.md"
# The methods a user calls; hooks are in docs/extending/loop.md.
METHODS = {
    "Trainer": (
        "fit validate test predict replay check_invariance find_learning_rate find_batch_size "
        "save_checkpoint export log stop barrier broadcast main_process_first"
    ),
    "TrainModule": (
        "of log log_dict print all_gather optimizers lr_schedulers manual_backward load_from_checkpoint"
    ),
    "Run": "load",
    "RunConfig": "make_trainer",
    "Experiment": "fit evaluate",
}
_TITLE = """# API index

Everything public, from the docstrings. `python docs/make_api.py` writes this page, and a test checks that
it is up to date. Examples are in the [guide](../guides/training.md), [several devices](../guides/devices.md)
and [checkpoints](../guides/checkpoints.md); hooks are in [the loop](../extending/loop.md).
"""


def page() -> str:
    """The text of docs/api/README.md."""
    return "\n".join([_TITLE, *(line for package in PACKAGES for line in _package(package))])


def trainer_file() -> str:
    """The text of trainer/trainer.py, with the arguments in the docstring as their fields describe them."""
    fields = TrainerArguments.model_fields.items()
    lines = []
    for meaning, named in groupby(fields, lambda item: item[1].description):
        text = f"{', '.join(name for name, _ in named)}: {meaning}"
        lines += textwrap.wrap(
            text, 108, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
        )
    before, _, rest = TRAINER.read_text().partition("    Args:\n")
    return "\n".join([before + "    Args:", *lines, "\n" + rest.partition("\n\n")[2]])


def _package(package: Any) -> Iterator[str]:
    """A table of the package's names, then the arguments of each class and function that documents some."""
    found = {name: getattr(package, name) for name in package.__all__ if name != "__version__"}
    yield f"## {package.__name__}\n"
    yield "| name | what it is |\n|---|---|"
    for name, value in found.items():
        shown = f"{name}({_signature(value)})" if inspect.isfunction(value) else name
        yield f"| `{shown}` | {_about(value)} |"
    yield ""
    for name, value in found.items():
        documented = _meanings(value) if callable(value) else {}
        methods = METHODS.get(name, "") if package is paceline else ""
        if documented or methods:
            yield f"### {name}\n"
        if documented:
            yield "| argument | default | meaning |\n|---|---|---|"
            yield from (_row(parameter, documented) for parameter in _parameters(value))
            yield ""
        if methods:
            yield "| method | what it does |\n|---|---|"
            for method in methods.split():
                called = getattr(value, method)
                yield f"| `{method}({_signature(called)})` | {_about(called)} |"
            yield ""


def _parameters(found: Any) -> list[inspect.Parameter]:
    """Its parameters, but for those that only collect unknown names in order to report them."""
    hidden = {"self", "args", "kwargs", "unknown", "more"}
    return [p for p in inspect.signature(found).parameters.values() if p.name not in hidden]


def _signature(found: Any) -> str:
    shown: list[str] = []
    for p in _parameters(found):
        if p.kind is p.KEYWORD_ONLY and not any(name.startswith("*") for name in shown):
            shown.append("*")
        shown.append(_name(p) if p.default is p.empty else f"{p.name}={_default(p)}")
    return ", ".join(shown)


def _row(parameter: inspect.Parameter, meanings: dict[str, str]) -> str:
    """The argument's name, its default, and what the docstring says about it."""
    default = "required" if parameter.default is parameter.empty else f"`{_default(parameter)}`"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        default = ""
    return f"| `{_name(parameter)}` | {default} | {meanings.get(parameter.name, '')} |"


def _meanings(documented: Any) -> dict[str, str]:
    """By argument, its entry under ``Args:``; entries of several names belong to each of them."""
    if documented is paceline.Trainer:
        return {n: _markdown(f.description or "") for n, f in TrainerArguments.model_fields.items()}
    text = (inspect.getdoc(documented) or "") + "\n"
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text, re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.split(r"^    (?=\*{0,2}\w)", section[1], flags=re.MULTILINE) if section else []:
        names, _, meaning = entry.partition(":")
        for name in names.split(","):
            found[name.strip(" *")] = _markdown(meaning)
    return found


def _about(found: Any) -> str:
    """The first paragraph of its docstring; of a tuple, its values."""
    if isinstance(found, tuple):
        return ", ".join(f"`{value}`" for value in found)
    return _markdown((inspect.getdoc(found) or "").split("\n\n")[0])


def _markdown(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("``", "`").replace("|", "\\|")


def _name(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def _default(parameter: inspect.Parameter) -> str:
    shown = '"' + parameter.default + '"' if isinstance(parameter.default, str) else repr(parameter.default)
    return "..." if " object at 0x" in shown else shown.replace("|", "\\|")


if __name__ == "__main__":
    TRAINER.write_text(trainer_file())
    PAGE.write_text(page())
