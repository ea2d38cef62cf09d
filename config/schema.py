"""The JSON Schema of a configuration, for editors and other tools (draft 2020-12)."""

from __future__ import annotations

import re
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from ..plugins import names as installed
from ..strategies import PRECISIONS, STRATEGIES
from ..trainer.config.arguments import OFF, TrainerArguments
from ..trainer.trainer import Trainer
from .classes import Slot
from .importing import PATTERN
from .module_config import MODULE_RECIPE, LoaderConfig
from .names import provided_to, slots
from .recipe import Recipe
from .signatures import parameters_of
from .sources import CLASS

_IMPORT_PATH = {
    "type": "string",
    "pattern": f"^({PATTERN})$",
    "description": "An import path: package.module:Name, package.module.Name, or file.py:Name.",
}
_ANY_CLASS = {
    "type": "object",
    "properties": {CLASS: _IMPORT_PATH},
    "required": [CLASS],
    "description": "A class by its import path, with its arguments.",
}


def schema_of(recipe: Recipe) -> dict[str, Any]:
    """The JSON Schema of the config files of a recipe.

    Args:
        recipe: Its settings; ``MODULE_RECIPE``: those of a config without one.
    """
    schema: dict[str, Any] = recipe.config.model_json_schema()
    properties = schema["properties"]
    trainer = _trainer()
    shared = {name: trainer["properties"][name] for name in ("callbacks", "loggers")}
    references = {name: {"$ref": f"#/$defs/{name}"} for name in shared}
    trainer["properties"] |= references
    properties |= references | {"trainer": trainer}
    if recipe is MODULE_RECIPE:
        properties |= _parts()
    else:
        properties["recipe"] = {"const": recipe.name}
        properties["preset"] = {"enum": ["default", *recipe.presets]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"paceline: {recipe.name or 'a module by import path'}",
        **{key: value for key, value in schema.items() if key != "title"},
        "additionalProperties": False,
        "$defs": schema.get("$defs", {}) | shared,
    }


def _trainer() -> dict[str, Any]:
    parameters, _ = parameters_of(Trainer)
    properties = {}
    for name, field in TrainerArguments.model_fields.items():
        annotation = parameters[name].annotation
        properties[name] = _of_type(annotation) | {"description": field.description}
    known = slots()
    properties["strategy"] |= _either([*STRATEGIES, *installed("strategy")], known["strategy"])
    properties["precision"] |= _either(sorted(PRECISIONS), known["precision"], {"enum": [16, 32, 64]})
    properties["profile"] |= _either([], known["profile"], {"type": "boolean"})
    callback = _either(installed("callbacks"), known["callbacks"])
    logger = _either([*OFF, *installed("loggers")], known["loggers"])
    properties["callbacks"] |= {"anyOf": [callback, {"type": "array", "items": callback}]}
    properties["loggers"] |= {"anyOf": [{"type": "boolean"}, logger, {"type": "array", "items": logger}]}
    return {
        "type": "object",
        "description": "Arguments of the Trainer.",
        "properties": properties,
        "additionalProperties": False,
    }


def _parts() -> dict[str, Any]:
    """What a config without a recipe has."""
    known = slots()
    found = {
        name: _either([], known[name]) for name in ("module", "model", "optimizer", "scheduler", "loss")
    }
    function = _either([], Slot("a function"))
    loader: Any = models_json_schema([(LoaderConfig, "validation")])[1]["$defs"]["LoaderConfig"]
    sets = {name: _either([], known["dataset"]) for name in ("train", "val", "test", "predict")}
    with_arguments = {"type": "object", "properties": {CLASS: {"type": "string"}}, "required": [CLASS]}
    found["loss"] = {"anyOf": [{"type": "string"}, *found["loss"]["anyOf"], with_arguments]}
    found["metrics"] = {"type": "object", "additionalProperties": function}
    found["weight"] = _IMPORT_PATH
    found["data"] = {
        "anyOf": [
            _IMPORT_PATH,
            _ANY_CLASS,
            {"type": "object", "properties": loader["properties"] | sets, "additionalProperties": False},
        ]
    }
    return found


def _either(names: list[str], slot: Slot, *others: dict[str, Any]) -> dict[str, Any]:
    """Names, an import path, or a class with arguments."""
    classes = dict(slot.names)
    for module in slot.modules:
        classes |= {name: getattr(module, name) for name in slot.public(module)}
    spelled = [spelling for name in classes for spelling in spellings(name)]
    known = [{"enum": [*names, *spelled]}] if names or spelled else []
    return {
        "anyOf": [
            *others,
            *known,
            _IMPORT_PATH,
            *(_call(spellings(name), one, provided_to(slot, one)) for name, one in classes.items()),
            _ANY_CLASS,
        ]
    }


def _call(names: list[str], target: Any, provided: int) -> dict[str, Any]:
    parameters, takes_more = parameters_of(target, provided)
    properties = {name: _of_type(one.annotation) for name, one in parameters.items()}
    needed = [name for name, one in parameters.items() if one.default is one.empty]
    return {
        "type": "object",
        "properties": {CLASS: {"enum": names}} | properties,
        "required": [CLASS, *needed],
        "additionalProperties": takes_more,
    }


def spellings(name: str) -> list[str]:
    """The ways to write the name of a class.

    Example:
        >>> spellings("EarlyStopping")
        ['EarlyStopping', 'early-stopping', 'early_stopping']
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return list(dict.fromkeys([name, words, words.replace("-", "_"), words.replace("-", "")]))[:3]


def _of_type(annotation: Any) -> dict[str, Any]:
    """The schema of a type; anything where it has none by itself, or is an object."""
    try:
        schema = TypeAdapter(annotation).json_schema()
    except Exception:
        return {}
    nothing = schema.get("anyOf") == []  # a union of callables alone
    return {} if "$defs" in schema or nothing else schema
