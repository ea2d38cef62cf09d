"""Each key of each example with a value of the wrong type, an empty one, and none at all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline import PacelineError
from paceline.compat.configs.reading import OUTCOMES
from paceline.compat.configs.recognise import read_configuration

from .examples import EXAMPLES, FULL_JSON, REFUSED, Example
from .finetuning_examples import FILES, INFO

VALUES: dict[str, Any] = {
    "a list": [1, "two"],
    "a mapping": {"x": {"y": 1}},
    "a word": "zebra",
    "a long word": "z" * 5000,
    "a number": -3.5,
    "a large number": 10**30,
    "a switch": True,
    "an empty word": "",
    "an empty list": [],
    "an empty mapping": {},
    "null": None,
}
USUAL = ("a list", "an empty word", "null")
EACH = [pytest.param(one, marks=() if one in USUAL else pytest.mark.soak) for one in VALUES]
NEEDED = ("distributed_type", "compute_environment", "parallelism_config_dp_replicate_size")
"""What the other keys of a file contradict where it is missing."""
TEXTS = {
    **EXAMPLES,
    **{n: Example(t, {}, (1, 1)) for n, t in REFUSED.items()},
}


def paths(content, path=()):
    parts = enumerate(content) if isinstance(content, list) else content.items()
    for key, value in parts:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from paths(value, (*path, key))


def replaced(content, path, value):
    changed = copy.deepcopy(content)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def outcome(file: Path) -> str:
    """What became of a file: notes of each key, or an error that fits."""
    try:
        reading = read_configuration(file)
    except PacelineError as error:
        text = str(error)
        assert len(text.splitlines()) <= 12, text
        assert max(map(len, text.splitlines())) <= 500, text
        return "error"
    assert all(note.outcome in OUTCOMES and note.became for note in reading.notes)
    return "read"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", EACH)
def test_accelerate(name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = TEXTS[name]
    content = yaml.safe_load(example.text)
    Path("ds.json").write_text(example.json)
    for path in paths(content):
        Path("default_config.yaml").write_text(yaml.safe_dump(replaced(content, path, VALUES[value])))
        found = outcome(Path("default_config.yaml"))
        if value in ("an empty word", "null") and path[-1] not in NEEDED:
            assert found == "read", path


@pytest.mark.parametrize("value", EACH)
def test_deepspeed(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = json.loads(FULL_JSON.replace("\t", " "))
    for path in paths(content):
        Path("ds.json").write_text(json.dumps(replaced(content, path, VALUES[value]), indent=1))
        outcome(Path("ds.json"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("value", EACH)
def test_finetuning(name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(json.dumps(INFO))
    Path("data/ds_z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    content = yaml.safe_load(FILES[name].text)
    for path in paths(content):
        Path("theirs.yaml").write_text(yaml.safe_dump(replaced(content, path, VALUES[value])))
        found = outcome(Path("theirs.yaml"))
        if value in ("an empty word", "null") and path != ("base_model",) and isinstance(path[-1], str):
            assert found == "read", path


@pytest.mark.parametrize("value", EACH)
def test_a_list_of_datasets(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    text = "model_name_or_path: a/b\ndo_train: true\ndataset: " + ",".join(INFO)
    Path("theirs.yaml").write_text(text)
    for path in paths(INFO):
        Path("data/dataset_info.json").write_text(json.dumps(replaced(INFO, path, VALUES[value])))
        outcome(Path("theirs.yaml"))
