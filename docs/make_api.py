"""Writes docs/api: an index of everything public, and a page for each package from its docstrings.

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
FOLDER = Path(__file__).parent / "api"
_INDEX = """# API reference

Everything public, from the docstrings. `python docs/make_api.py` writes these pages, and a test checks that
they are up to date. Their examples are run by `tests/test_docstrings.py`, which defines what they share: a
small module `Net`, a `trainer`, loaders. Guides begin with [training](../guides/training.md); the hooks are
in [the loop](../extending/loop.md).
"""
_HOOKS = set(dir(paceline.callbacks.Callback)) - {"state_dict", "load_state_dict"}
"""Described where they are called: docs/extending/loop.md."""


def pages() -> dict[Path, str]:
    """The text of each page of docs/api."""
    written = {FOLDER / "README.md": "\n".join([_INDEX, *(line for p in PACKAGES for line in _table(p))])}
    for package in PACKAGES:
        lines = (line for name, value in _public(package).items() for line in _entry(name, value))
        about = _prose(inspect.getdoc(package) or "")
        written[FOLDER / _page_of(package)] = "\n".join([f"# {package.__name__}\n", *about, *lines])
    return written


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


def _public(package: Any) -> dict[str, Any]:
    return {name: getattr(package, name) for name in package.__all__ if name != "__version__"}


def _page_of(package: Any) -> str:
    return f"{package.__name__.rpartition('.')[2]}.md"


def _table(package: Any) -> Iterator[str]:
    """One line for each name of a package, with a link to its entry."""
    yield f"## {package.__name__}\n"
    yield "| name | what it is |\n|---|---|"
    for name, value in _public(package).items():
        yield f"| [`{name}`]({_page_of(package)}#{name.lower()}) | {_about(value)} |"
    yield ""


def _entry(name: str, value: Any) -> Iterator[str]:
    """A class with its methods, a function, or a value."""
    yield f"## {name}\n"
    if not callable(value):
        yield _about(value) + "\n"
        return
    yield f"```py\n{name}({_signature(value)})\n```\n"
    yield from _documentation(value)
    if inspect.isclass(value):
        for method, function in _methods(value):
            yield f"### {name}.{method}\n"
            if not isinstance(function, property):
                yield f"```py\n{method}({_signature(getattr(value, method))})\n```\n"
            yield from _documentation(function)


def _methods(documented: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that it documents, hooks aside, in the order of the file."""
    own = [base for base in documented.__mro__ if base.__module__.startswith("paceline")]
    if not issubclass(documented, paceline.TrainModule | paceline.Trainer):
        own = own[:1]
    found: dict[str, Any] = {}
    for base in reversed(own):
        for name, value in vars(base).items():
            public = not name.startswith("_") and name not in _HOOKS
            function = getattr(value, "__func__", value)
            if (
                public
                and (inspect.isfunction(function) or isinstance(value, property))
                and function.__doc__
            ):
                found[name] = function
    yield from found.items()


def _documentation(documented: Any) -> Iterator[str]:
    """The docstring in Markdown: prose, a table of the arguments, then the other sections."""
    parts = re.split(r"^(\w+):\n", inspect.getdoc(documented) or "", flags=re.MULTILINE)
    yield from _prose(parts[0])
    for title, text in _titled(parts[1:]):
        text = textwrap.dedent(text).strip("\n")
        if title == "Args":
            meanings = _meanings(documented)
            yield "| argument | default | meaning |\n|---|---|---|"
            yield from (_row(parameter, meanings) for parameter in _parameters(documented))
            yield ""
        elif title == "Example":
            yield f"```pycon\n{text}\n```\n"
        elif title == "Attributes":
            yield "| attribute | meaning |\n|---|---|"
            yield from (f"| `{name}` | {meaning} |" for name, meaning in _named(text).items())
            yield ""
        else:
            yield f"**{title}**: {_markdown(text)}\n"


def _titled(parts: list[str]) -> Iterator[tuple[str, str]]:
    """Titles and texts, which follow each other."""
    yield from zip(parts[::2], parts[1::2], strict=True)


def _prose(text: str) -> list[str]:
    return [text.strip().replace("``", "`") + "\n"] if text.strip() else []


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
    return _named(textwrap.dedent(section[1])) if section else {}


def _named(section: str) -> dict[str, str]:
    """By name, its entry in a section; entries of several names belong to each of them."""
    found: dict[str, str] = {}
    for entry in re.split(r"^(?=\*{0,2}\w)", section, flags=re.MULTILINE):
        names, _, meaning = entry.partition(":")
        for name in names.split(","):
            if name.strip():
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
    for path, text in pages().items():
        path.write_text(text)
