"""The settings of a recipe in words, and the values of a configuration with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from ..trainer.config.arguments import TrainerArguments
from ..trainer.utils.secrets import masked
from .load import Loaded
from .module_config import MODULE_RECIPE
from .sources import Settings


@dataclass(frozen=True)
class Setting:
    """One key of a recipe.

    Attributes:
        key: Its dotted name.
        type: What may be given, in words.
        default: Of the recipe; presets change it.
        meaning: What it is.
    """

    key: str
    type: str
    default: Any
    meaning: str


def settings_of(model: type[BaseModel], above: str = "") -> Iterator[Setting]:
    """The keys of a configuration, without those of the Trainer."""
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if above == "" and name == "trainer":
            continue
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from settings_of(annotation, f"{above}{name}.")
        else:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            meaning = " ".join((field.description or "").replace("``", "").split())
            yield Setting(f"{above}{name}", type_in_words(field), plain(default), meaning)


def type_in_words(field: FieldInfo) -> str:
    """What a field takes, from its JSON schema."""
    try:
        annotated: Any = field.annotation
        for one in field.metadata:
            annotated = Annotated[annotated, one]
        schema = TypeAdapter(annotated).json_schema()
        return _in_words(schema, schema.get("$defs", {}))
    except Exception:  # of types that have no JSON schema
        return getattr(field.annotation, "__name__", str(field.annotation))


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _in_words(schema: Mapping[str, Any], referred: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _in_words(referred[schema["$ref"].rpartition("/")[2]], referred)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_in_words(one, referred) for one in schema["anyOf"]))
    kind = schema.get("format") if schema.get("format") == "path" else schema.get("type", "anything")
    limits = [f"{sign} {schema[name]}" for name, sign in _LIMITS.items() if name in schema]
    names = {"object": "mapping", "array": "list", "null": "null"}
    return " ".join([names.get(str(kind), str(kind)), *limits])


RECIPES_CHOICE = "default, unless the recipe sets it"


@dataclass(frozen=True)
class Shown:
    """A value of a configuration.

    Attributes:
        key: Its dotted name.
        value: Plain data; secrets are masked.
        source: The place that it comes from, or ``default``; ``default, unless the recipe sets it`` for an
            argument of the Trainer that a recipe may set itself when it builds.
    """

    key: str
    value: Any
    source: str


def values_of(loaded: Loaded) -> list[Shown]:
    """All values of a configuration, with where each comes from.

    Args:
        loaded: What was read; it must be right.
    """
    config = loaded.checked()
    values = masked(config.model_dump(mode="json"))
    given = values.pop("trainer")
    found = list(_leaves(values, "", loaded.settings))
    for name, field in TrainerArguments.model_fields.items():
        key = f"trainer.{name}"
        if name in given:
            found += _leaves({name: given[name]}, "trainer.", loaded.settings)
        else:
            source = "default" if loaded.recipe is MODULE_RECIPE else RECIPES_CHOICE
            found.append(Shown(key, plain(field.get_default(call_default_factory=True)), source))
    return found


def _leaves(values: Mapping[str, Any], above: str, settings: Settings) -> Iterator[Shown]:
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.", settings)
        else:
            yield Shown(key, value, settings.place(key) or "default")


def plain(value: Any) -> Any:
    """A default as plain data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if value is None or isinstance(value, (bool, int, float, list, dict)) else str(value)
