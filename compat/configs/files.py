"""A YAML or JSON file with the line of each key."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import PacelineError
from ...trainer.config.yaml_reader import YamlText, read_yaml, read_yaml_file


def read_places(file: Path) -> YamlText:
    """The content of a file, and the line of each of its keys.

    Args:
        file: YAML, or JSON where it is named so.

    Raises:
        PacelineError: for a file that cannot be read, with the line of what is wrong in it.
    """
    if file.suffix.lower() != ".json":
        return read_yaml_file(file)
    try:
        found = read_yaml_file(file)
    except PacelineError:
        text = _checked(file)
        if "\t" not in text:
            raise
        return read_yaml(text.replace("\t", " "), str(file))  # which JSON has between values alone
    _checked(file)  # YAML takes more than JSON
    return found


def _checked(file: Path) -> str:
    """The text of a JSON file; empty where it is not to be read as text."""
    try:
        text = file.expanduser().read_bytes()[: 1 << 20].decode()
        if text.strip():
            json.loads(text)
    except json.JSONDecodeError as error:
        raise PacelineError(
            "this is no JSON", code="config-unreadable", where=f"{file}:{error.lineno}", got=error.msg
        ) from None
    except (OSError, ValueError, RecursionError):
        return ""
    return text
