"""Configuration of a recipe: preset, then a YAML file, then ``key=value``, checked with places."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...errors import PacelineError, nearest, report, short_tracebacks, shown
from .validation import find_problems
from .yaml_reader import YamlText, read_yaml, read_yaml_file

C = TypeVar("C", bound=BaseModel)
_TRAINER = "trainer"


@short_tracebacks()
def load_config(
    model: type[C], presets: dict[str, dict[str, Any]], file: Path | None, overrides: Iterable[str]
) -> C:
    """The validated configuration.

    Args:
        model: A pydantic model; its field ``trainer``, if it has one, holds arguments of ``Trainer``.
        presets: Values by the names that ``preset=...`` takes.
        file: A YAML file of values, which may name a ``preset``; None reads none.
        overrides: ``key=value``; dots go into nested keys, values are YAML.

    Raises:
        PacelineError: one report of everything that is not right, each with its key path and place.
    """
    given = [_read_override(text) for text in overrides]
    chosen = [value for key, value in given if key == "preset"]
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    if file is not None:
        content, places = _read_file(file)
        chosen = chosen or ([content.pop("preset")] if "preset" in content else [])
        _merge(values, content)
    for name in chosen[-1:]:
        if isinstance(name, (list, dict)):
            raise PacelineError("preset is a name", where=places.get("preset"), got=name)
        if name not in presets:
            known = ["default", *presets]
            if name != "default":
                raise PacelineError(
                    f"preset={name}: there is no such preset",
                    where=places.get("preset"),
                    allowed=", ".join(known),
                    meant=nearest(str(name), known),
                )
        values = _merge(_merge({}, presets.get(name, {})), values)
    for key, value in given:
        if key != "preset":
            _put(values, key, value)
            places[key] = "the command line"
    return _validated(model, values, places)


def _read_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise PacelineError(f"{text!r} is no setting", allowed="key=value, for instance epochs=5")
    try:
        return key.strip(), read_yaml(value, f"the value of {key.strip()}").content
    except PacelineError:
        if value.lstrip()[:1] in ("[", "{"):
            raise
        return key.strip(), value


def _read_file(file: Path) -> YamlText:
    found = read_yaml_file(file)
    if not isinstance(found.content, dict):
        raise PacelineError("a config file holds key: value lines", where=str(file))
    return found


def _merge(into: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _merge({}, value) if isinstance(value, dict) else value
    return into


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise PacelineError(f"{path}: {parent} holds a value, not further keys")
    values[last] = value


def _validated(model: type[C], values: dict[str, Any], places: dict[str, str]) -> C:
    problems: list[tuple[str, str]] = []
    config: C | None = None
    try:
        config = model(**values)
    except ValidationError as error:
        for one in error.errors():
            problems.append(_problem(model, one))
    arguments = values.get(_TRAINER) or {}
    for name, text in find_problems(arguments).problems if isinstance(arguments, dict) else ():
        problems.append((f"{_TRAINER}.{name}", text))
    if problems or config is None:
        raise report(
            "config",
            [
                f"{path} ({places[path]}): {text}" if path in places else f"{path}: {text}"
                for path, text in problems
            ],
        )
    return config


def _problem(model: type[BaseModel], error: Any) -> tuple[str, str]:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        meant = nearest(path, ["preset", *model.model_fields])
        return path, "no such key" + (f"; did you mean {meant}?" if meant else "")
    message = error["msg"].replace("Input should be", "allowed:")
    return path, f"got {shown(error['input'])}; {message}"
