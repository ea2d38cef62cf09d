"""Writes docs/api: an index of everything public, and pages for each package from its docstrings.

Those of ``Trainer`` are described in trainer/config/arguments.py; its docstring is written from there.

python tests/make_api.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Container, Iterator
from functools import cached_property
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
import paceline.tools
from paceline.strategies.ranks.collectives import Collectives
from paceline.trainer.config.arguments import TrainerArguments
from paceline.trainer.counters import RunCounters
from paceline.trainer.loop_controls import LoopControls

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
    paceline.tools,
)
"""Everything public is in the ``__all__`` of one of them."""
_IN_HOOKS = "Trainer in hooks"
"""What ``callbacks.TrainerView`` has, and ``module.trainer`` therefore: the other half of ``Trainer``."""
SUBJECTS: dict[Any, dict[str, tuple[str, ...]]] = {
    paceline: {
        "trainer": ("Trainer",),
        "trainer_in_hooks": (_IN_HOOKS,),
        "module": ("TrainModule",),
        "data": ("DataModule", "CombinedLoader", "Mixture", "order_seed", "seed_everything", "fetch"),
        "runs": ("Run", "Predictions", "PacelineError"),
    },
    paceline.callbacks: {
        "callbacks": (
            *("Checkpoint", "EarlyStopping", "EMA", "SWA", "WeightAverage", "Lookahead", "Freeze"),
            *("BatchSizeScheduler", "GradientAccumulationScheduler", "LossSpikes", "Evaluator"),
            "OptunaPruning",
        ),
        "callbacks_own": (
            *(
                "Callback",
                "Hooks",
                "TrainerView",
                "RanksView",
                "CountersView",
                "LoopView",
                "LambdaCallback",
            ),
        ),
        "callbacks_watching": (
            *("Progress", "ModelSummary", "LearningRateMonitor", "Norms", "DeviceMonitor", "Throughput"),
            *("Timer", "Profiler", "Stragglers", "ReplicaCheck", "StepRecord", "Checks"),
        ),
        "callbacks_output": (
            *("Logger", "JSONLogger", "CSVLogger", "TensorBoard", "Trackio", "WandB", "MLflow"),
            *("KubeflowStatus", "RayReport", "Curves", "ConfusionMatrix", "SampleImages"),
            *("PredictionWriter", "Image", "Histogram", "Table", "Text"),
        ),
    },
    paceline.strategies: {
        "strategies": (
            *("Single", "DDP", "FSDP", "HSDP", "DeepSpeed", "STRATEGIES", "make_strategy"),
            *("Precision", "Full", "AutocastBF16", "AutocastFP16", "Float8", "PRECISIONS"),
            "make_precision",
        ),
        "strategies_own": (
            *("Strategy", "Distributed", "Collectives", "GroupCollectives", "Weights", "ShardedWeights"),
            *("Description", "StrategySettings", "find_units"),
        ),
        "strategies_launch": ("Environment", "find_environment", "launch", "start_ranks"),
        "strategies_memory": (
            *("choose_strategy", "states_per_rank", "ModelBytes", "Moment", "RankBytes", "Streamed"),
            *("Layout", "Collective"),
        ),
    },
}
"""Packages whose names are on several pages: those of each, by the page's name."""
TRAINER = Path(inspect.getfile(paceline.Trainer))
FOLDER = Path(paceline.__file__).parent / "docs" / "api"
_INDEX = """# API reference

Everything public, from the docstrings. `python tests/make_api.py` writes these pages, and a test checks
that they are up to date. Their examples are run by `tests/test_docstrings.py`, which defines what they
share: a small module `Net`, a `trainer`, loaders. Guides begin with [training](../guides/training.md); the
hooks are in [the loop](../extending/loop.md).
"""
_HOOKS = {name for name in dir(paceline.callbacks.Callback) if name.startswith("on_")}
"""Described where they are called: docs/extending/loop.md."""
_VIEW = {name for base in paceline.callbacks.TrainerView.__mro__ for name in vars(base)}
_PARTS = {
    "ranks": (Collectives, paceline.callbacks.RanksView),
    "counters": (RunCounters, paceline.callbacks.CountersView),
    "loop": (LoopControls, paceline.callbacks.LoopView),
}
"""The parts of a Trainer, and what hooks and modules are promised of them, on the same page."""
_FIRST = {"Trainer": ("fit", "validate", "test", "predict")}
_WITH_BASES = (paceline.Trainer, paceline.TrainModule, paceline.DataModule)
"""Classes whose methods are in bases that are not public."""
_OWN_SIGNATURE = re.compile(r"``\(self(?:, )?(.*?)\)``: ")
"""How a docstring begins where a method takes any arguments, and says which it is called with."""


def pages() -> dict[Path, str]:
    """The text of each page of docs/api."""
    written = {FOLDER / "README.md": "\n".join([_INDEX, *(line for p in PACKAGES for line in _table(p))])}
    for package in PACKAGES:
        about = _prose(inspect.getdoc(package) or "")
        for page, names in _subjects(package).items():
            lines = (line for name in names for line in _entry(name, _value(package, name)))
            title = package.__name__ if len(_subjects(package)) == 1 else _title(package, page)
            written[FOLDER / f"{page}.md"] = "\n".join([f"# {title}\n", *about, *lines])
            about = []
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


def _subjects(package: Any) -> dict[str, tuple[str, ...]]:
    """The names on each page of a package; a name that is on none, or is not public, is an error."""
    found = SUBJECTS.get(package) or {package.__name__.rpartition(".")[2]: tuple(_public(package))}
    named = sorted(name for names in found.values() for name in names if name != _IN_HOOKS)
    assert named == sorted(_public(package)), f"SUBJECTS[{package.__name__}] has {named}"
    return found


def _title(package: Any, page: str) -> str:
    """``paceline.callbacks: watching``."""
    subject = page.removeprefix(package.__name__.rpartition(".")[2]).strip("_").replace("_", " ")
    return f"{package.__name__}: {subject}" if subject else package.__name__


def _value(package: Any, name: str) -> Any:
    return package.Trainer if name == _IN_HOOKS else getattr(package, name)


def _table(package: Any) -> Iterator[str]:
    """One line for each name of a package, with a link to its entry."""
    yield f"## {package.__name__}\n"
    yield "| name | what it is |\n|---|---|"
    pages = {name: page for page, names in _subjects(package).items() for name in names}
    for name, value in _public(package).items():
        yield f"| [`{name}`]({pages[name]}.md#{name.lower()}) | {_about(value)} |"
    if _IN_HOOKS in pages:
        text = "The other half of `Trainer`: what callbacks and modules read and call during a run."
        yield f"| [{_IN_HOOKS}]({pages[_IN_HOOKS]}.md) | {text} |"
    yield ""


def _entry(name: str, value: Any) -> Iterator[str]:
    """A class with its methods, a function, or a value."""
    yield f"## {name}\n"
    if not callable(value):
        yield _about(value) + "\n"
        return
    in_hooks = name == _IN_HOOKS
    if in_hooks:
        yield "Callbacks and modules have these during a run; [others](trainer.md) begin one.\n"
    else:
        yield f"```py\n{name}({_signature(value)})\n```\n"
        yield from _documentation(value)
    if value is paceline.Trainer and not in_hooks:
        yield "What is read and called during a run is on [another page](trainer_in_hooks.md).\n"
    if inspect.isclass(value):
        elsewhere = _VIEW if value is paceline.Trainer and not in_hooks else ()
        yield from _members(value.__name__, value, _VIEW if in_hooks else None, elsewhere)
    if in_hooks:
        for part, (kind, promised) in _PARTS.items():
            yield f"## trainer.{part}\n"
            yield _prose(_about(kind))[0]
            yield from _members(f"trainer.{part}", kind, vars(promised))


def _members(
    owner: str, kind: type, only: Container[str] | None = None, but: Container[str] = ()
) -> Iterator[str]:
    """The methods and properties of a class: all, or those that are named."""
    for method, function in _methods(kind):
        if method in but or (only is not None and method not in only):
            continue
        yield f"### {owner}.{method}\n"
        if inspect.isfunction(function):
            yield f"```py\n{method}({_signature(function)})\n```\n"
        yield from _documentation(function)


def _methods(documented: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that it documents, hooks aside, in the order of the file."""
    bases = documented.__mro__ if issubclass(documented, _WITH_BASES) else (documented,)
    found: dict[str, Any] = {}
    for base in bases:
        if base.__module__.startswith("paceline"):
            found |= vars(base) | found  # a class before its bases
    first = _FIRST.get(documented.__name__, ())
    for name in [*first, *(name for name in found if name not in first)]:
        value = getattr(found[name], "__func__", found[name])
        if not name.startswith("_") and name not in _HOOKS and _is_documented(value):
            yield name, value


def _is_documented(value: Any) -> bool:
    if isinstance(value, property):
        return bool(value.fget and value.__doc__)
    if inspect.isfunction(value):  # pydantic adds methods with its own texts
        return bool(value.__doc__) and "paceline" in value.__module__
    return isinstance(value, cached_property) and bool(value.__doc__)


def _documentation(documented: Any) -> Iterator[str]:
    """The docstring in Markdown: prose, a table of the arguments, then the other sections."""
    text = _OWN_SIGNATURE.sub("", inspect.getdoc(documented) or "")
    parts = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    yield from _prose(parts[0][:1].upper() + parts[0][1:])
    for title, text in _titled(parts[1:]):
        text = textwrap.dedent(text).strip("\n")
        if title == "Args":
            meanings = named(text)
            yield "| argument | default | meaning |\n|---|---|---|"
            yield from (_row(parameter, meanings) for parameter in _parameters(documented))
            yield ""
        elif title == "Example":
            yield f"```pycon\n{text}\n```\n"
        elif title == "Attributes":
            yield "| attribute | meaning |\n|---|---|"
            yield from (f"| `{name}` | {meaning} |" for name, meaning in named(text).items())
            yield ""
        else:
            yield f"**{title}**: {_markdown(text)}\n"


def _titled(parts: list[str]) -> Iterator[tuple[str, str]]:
    """Titles and texts, which follow each other."""
    yield from zip(parts[::2], parts[1::2], strict=True)


def _prose(text: str) -> list[str]:
    return [_linked(text.strip().replace("``", "`")) + "\n"] if text.strip() else []


def _linked(text: str) -> str:
    """Pages of docs/ that a docstring names, as links from docs/api."""
    return re.sub(r"`?\bdocs/([\w/-]+\.md)`?", r"[docs/\1](../\1)", text)


def _parameters(found: Any) -> list[inspect.Parameter]:
    """Its parameters, but for those that only collect unknown names in order to report them."""
    hidden = {"self", "cls", "args", "kwargs", "unknown", "more"}
    if inspect.isclass(found):  # its __new__ takes anything where it checks arguments
        ours = [vars(base) for base in found.__mro__ if base.__module__.startswith("paceline")]
        found = next((names["__init__"] for names in ours if "__init__" in names), found)
        hidden.add("options")
    return [p for p in inspect.signature(found).parameters.values() if p.name not in hidden]


def _signature(found: Any) -> str:
    written = _OWN_SIGNATURE.match(inspect.getdoc(found) or "")
    if written and inspect.isfunction(found):
        return written[1]
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


def named(section: str) -> dict[str, str]:
    """By name, its entry in a section; entries of several names belong to each of them."""
    found: dict[str, str] = {}
    for entry in re.split(r"^(?=\*{0,2}\w)", section, flags=re.MULTILINE):
        names, _, meaning = entry.partition(":")
        for name in names.split(","):
            if name.strip():
                found[name.strip(" *")] = _markdown(meaning)
    return found


def _about(found: Any) -> str:
    """The first paragraph of its docstring; of a tuple or a dict, its values or keys."""
    if isinstance(found, tuple | dict):
        return ", ".join(f"`{value}`" for value in found)
    return _markdown((inspect.getdoc(found) or "").split("\n\n")[0])


def _markdown(text: str) -> str:
    return _linked(re.sub(r"\s+", " ", text).strip().replace("``", "`").replace("|", "\\|"))


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
