"""Writes docs/reference/json: the JSON Schema of what each command prints with ``--json``.

python tests/make_schemas.py
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from json_results import NARROWER, RESULTS
from make_api import named
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

import paceline

FOLDER = Path(paceline.__file__).parent / "docs" / "reference" / "json"
_WIDTH = 140


class _Generator(GenerateJsonSchema):
    """Describes fields as the docstrings of their classes do, and allows no others."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _described(schema["cls"], super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return _described(schema["cls"], super().typed_dict_schema(schema))

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value


def schema_files() -> dict[Path, str]:
    """The text of each schema."""
    return {
        FOLDER / f"{command.replace(' ', '-')}.json": f"{_text(schema_of(command))}\n"
        for command in RESULTS
    }


def schema_of(command: str) -> dict[str, Any]:
    """The schema of a command's result."""
    result, about = RESULTS[command]
    schema = TypeAdapter(result).json_schema(mode="serialization", schema_generator=_Generator)
    defined = schema.pop("$defs", {})
    for one in (schema, *defined.values()):
        one["description"] = _prose(one.get("description", "").split("\n\n")[0])
    first = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"paceline {command} --json",
        "description": _prose(about) or schema["description"],
    }
    return {**first, **schema, **first} | ({"$defs": defined} if defined else {})


def _described(kind: type, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class, with what the docstrings of it and its bases say about its fields."""
    meanings: dict[str, str] = {}
    for base in kind.__mro__:
        for text in re.split(r"(?m)^(?:Args|Attributes):\n", inspect.cleandoc(base.__doc__ or ""))[1:]:
            meanings = named(inspect.cleandoc(text.split("\n\n")[0])) | meanings
    fields = {
        name: {"description": _prose(meanings[name])} | one | NARROWER.get(f"{kind.__name__}.{name}", {})
        for name, one in schema.get("properties", {}).items()
    }
    return {"title": "", "description": ""} | schema | {"properties": fields, "additionalProperties": False}


def _prose(docstring: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(docstring.replace("`" * 2, "`").split()))


def _text(value: Any, before: str = "") -> str:
    """JSON, with as much on a line as it has room for."""
    text = json.dumps(value)
    if len(before + text) <= _WIDTH or not isinstance(value, (dict, list)):
        return text
    inner = f"{before} "
    if isinstance(value, list):
        (first, last), parts = "[]", [_text(one, inner) for one in value]
    else:
        (first, last), parts = "{}", [f'"{key}": {_text(one, inner)}' for key, one in value.items()]
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{before}{last}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in schema_files().items():
        path.write_text(text)
