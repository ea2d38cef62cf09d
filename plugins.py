"""Callbacks, loggers, strategies and checks of other packages, by entry point; imported when named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import PacelineError, nearest, shown

GROUPS = {
    "callbacks": "paceline.callbacks",
    "loggers": "paceline.loggers",
    "strategy": "paceline.strategies",
    "checks": "paceline.checks",
}
"""The group of entry points for each argument of the Trainer, and for ``Checks(add=...)``."""
# Stated here again for the command line, which has no torch and so no strategies.
BUILT_IN_STRATEGIES = (
    "auto",
    "single",
    "ddp",
    "fsdp",
    "hsdp",
    "deepspeed",
    *(f"deepspeed_stage_{stage}" for stage in range(4)),
    *(f"deepspeed_stage_{stage}_offload" for stage in range(1, 4)),
    "streamed",
)
BUILT_IN_CALLBACKS = frozenset(
    (
        *("batchsizescheduler", "checkpoint", "checks", "confusionmatrix", "csv", "csvlogger"),
        *("curves", "devicemonitor", "earlystopping", "ema", "evaluator"),
        *("freeze", "gradientaccumulationscheduler", "json", "jsonl", "jsonlogger"),
        *("kubeflow", "kubeflowstatus"),
        *("lambdacallback", "learningratemonitor", "lookahead", "lossspikes", "mlflow", "modelsummary"),
        *(
            "norms",
            "optunapruning",
            "predictionwriter",
            "profiler",
            "progress",
            "ray",
            "rayreport",
            "replicacheck",
        ),
        *("sampleimages", "steprecord", "stragglers", "swa", "tensorboard"),
        *("throughput", "timer", "trackio", "wandb", "weightaverage"),
    )
)
"""Names of callbacks and loggers, as ``folded`` writes them."""


def folded(name: str) -> str:
    """A name as it is compared: ``early-stopping`` and ``EarlyStopping`` are one.

    Example:
        >>> folded("early-stopping"), folded("EarlyStopping")
        ('earlystopping', 'earlystopping')
    """
    return name.lower().replace("-", "").replace("_", "")


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed distribution.

    Args:
        group: The group, such as ``paceline.callbacks``.
        name: What the user passes to the Trainer.
        distribution: The name of the distribution that has it.
        version: The distribution's version.
        object: Where the object is: ``module:name``.
        shadowed: Whether something built in has this name, so that this one is never used.
        ambiguous: Whether several distributions have this name in the group.
    """

    group: str
    name: str
    distribution: str
    version: str
    object: str
    shadowed: bool
    ambiguous: bool

    @property
    def note(self) -> str:
        """Why it cannot be used; "" where it can."""
        if self.shadowed:
            return "shadowed by what is built in"
        return "ambiguous: several packages have this name" if self.ambiguous else ""


def installed() -> list[Plugin]:
    """All plugins, by group and name; none is imported."""
    found = [point for group in GROUPS.values() for point in entry_points(group=group)]
    count = Counter((point.group, point.name) for point in found)
    plugins = [
        Plugin(
            point.group,
            point.name,
            *_distribution(point),
            point.value,
            shadowed=_is_built_in(point),
            ambiguous=count[point.group, point.name] > 1,
        )
        for point in found
    ]
    return sorted(plugins, key=lambda plugin: (plugin.group, plugin.name, plugin.distribution))


def _is_built_in(point: EntryPoint) -> bool:
    if point.group == GROUPS["strategy"]:
        return point.name in BUILT_IN_STRATEGIES
    return folded(point.name) in BUILT_IN_CALLBACKS


def table(plugins: Iterable[Plugin]) -> list[str]:
    """The lines of a table of plugins, with a head."""
    rows = [("group", "name", "distribution", "object", "")]
    rows += [(p.group, p.name, f"{p.distribution} {p.version}", p.object, p.note) for p in plugins]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def names(argument: str) -> list[str]:
    """The names that are installed for an argument of the Trainer, sorted."""
    return sorted(set(entry_points(group=GROUPS[argument]).names))


def load(argument: str, name: str, base: type[Any], built_in: Iterable[str] = ()) -> Any:
    """The object of an entry point: as it is, or what its class or function returns without arguments.

    Args:
        argument: The argument of the Trainer that has the name, a key of ``GROUPS``.
        name: The entry point's name.
        base: What it must be.
        built_in: Names of classes of ``paceline.callbacks``, for people who pass one of those.

    Raises:
        PacelineError: where none or several have the name, where it cannot be imported or called, and
            where it is no ``base``.
    """
    found = list(entry_points(group=GROUPS[argument], name=name))
    if not found:
        raise _unknown(argument, name, base, list(built_in))
    if len(found) > 1:
        raise PacelineError(
            f"{argument}: {name!r} is the name of several entry points",
            code="plugin-not-usable",
            got=", ".join(sorted(map(_origin, found))),
            fix="import one of them and pass the object, or uninstall one of the packages",
        )
    point = found[0]
    who = f"{argument}: the entry point {name!r} of {_origin(point)}"
    try:
        loaded = point.load()
        if not isinstance(loaded, base) and callable(loaded):
            loaded = loaded()
    except Exception as error:
        raise PacelineError(
            f"{who} cannot be loaded",
            code="plugin-not-usable",
            got=f"{type(error).__name__}: {error}",
            fix="update or uninstall the package, or import the class and pass an object of it",
        ) from error
    if not isinstance(loaded, base):
        raise PacelineError(
            f"{who} gives no {base.__name__}",
            code="plugin-not-usable",
            got=f"an object of {type(loaded).__name__}: {shown(loaded, 60)}",
            fix="report it to the author of the package",
        )
    return loaded


def _unknown(argument: str, name: str, base: type[Any], built_in: list[str]) -> PacelineError:
    group, known = GROUPS[argument], names(argument)
    meant = nearest(name, [*built_in, *known])
    fix = "install the package that has it, or pass an object; `paceline plugins` lists what is installed"
    if meant in built_in:
        fix = f"from paceline.callbacks import {meant}, and {argument}=[{meant}(...)]"
    return PacelineError(
        f"{argument}: no installed package has {name!r}",
        code="plugin-not-usable",
        got=name,
        allowed=f"objects of {'.'.join(base.__module__.split('.')[:2])}.{base.__name__}"
        + (
            f", or an installed name: {', '.join(known)}"
            if known
            else f"; nothing is installed in the group {group}"
        ),
        meant=meant,
        fix=fix,
    )


def _origin(point: EntryPoint) -> str:
    return f"{' '.join(_distribution(point))} ({point.value})"


def _distribution(point: EntryPoint) -> tuple[str, str]:
    found = point.dist
    return ("unknown", "?") if found is None else (str(found.name), str(found.version))
