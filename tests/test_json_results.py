"""What commands print with ``--json`` is one document, and what its schema in docs/reference/json says."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import pytest
import typer
from helpers.ranks import run_ranks
from helpers.sessions import JOB
from json_results import RESULTS
from jsonschema import Draft202012Validator
from make_schemas import FOLDER, schema_files

from paceline.__main__ import app

PAGE = FOLDER.with_suffix(".md")
SHORT = "epochs=1 trainer.limit_train_batches=2 trainer.limit_val_batches=1"
PRINTED = {
    "check digits epochs=1": 0,
    "checkpoint ls": 0,
    "checkpoint show runs/digits/1": 0,
    "checkpoint verify runs": 1,  # one is damaged
    "config check digits": 0,
    "config check digits epoch=3": 1,
    "config init new.yaml --from accelerate.yaml": 0,
    "config init other.yaml --from tpu.yaml": 1,
    "config show digits": 0,
    "diff runs/digits/1 runs/digits/2": 3,
    "doctor --accelerator tpu --strategy ddp": 1,
    "env": 0,
    "estimate digits --devices 2 --gpu H100": 0,
    "explain": 0,
    "explain no-data": 0,
    "migrate .": 2,  # one cannot be read
    "plugins": 0,
    "recipes list": 0,
    "recipes show digits": 0,
    "replay runs/digits/1 --step 2": 0,
    "report runs": 0,
    "skills": 0,
    "skills port-a-program": 0,
    "test runs/digits/1": 0,
    "validate runs/digits/1": 0,
}
"""Commands, each with its exit code."""
REFUSED = {
    "checkpoint show nothing": "there is no checkpoint at this path",
    "config show digits epoch=3": "did you mean epochs?",
    "diff runs/digits/1 nothing": "there is no run at this path",
    "replay runs/digits/1 --step 9": "the run ends before step 9",
    "report nothing": "there is no run at this path",
    "validate digitz": "did you mean: digits?",
}
"""Commands that fail, each with what is said on standard error."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """By command, how it ended and what it printed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    (folder / "tpu.yaml").write_text("distributed_type: XLA\nnum_processes: 2\n")
    (folder / "old.py").write_text("import lightning as L\n\nL.Trainer(max_epochs=1, accelerator='tpu')\n")
    (folder / "broken.py").write_text("import lightning as L\n\nL.Trainer(\n")
    own = folder / "own-1.0.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (own / "entry_points.txt").write_text("[paceline.callbacks]\nwatch = own:Watch\n")
    session(folder, [f"fit digits {SHORT} trainer.seed={seed}" for seed in range(2)])
    shutil.copytree(folder / "runs" / "digits" / "2", folder / "runs" / "digits" / "3")
    (damaged,) = folder.glob("runs/digits/3/checkpoints/step-*/manifest.json")
    damaged.write_text("{")
    return session(folder, [f"{command} --json" for command in (*PRINTED, *REFUSED)])


def session(folder, commands):
    words = json.dumps([shlex.split(command) for command in commands])
    options = {"seconds": 200, "launches": True, "environment": {"PYTHONPATH": str(folder)}}
    done = run_ranks(JOB, 1, "pipe", words, folder=folder, **options)
    return dict(zip(commands, json.loads(done.stdout), strict=True))


def command_of(line):
    return next(name for name in RESULTS if line == name or line.startswith(f"{name} "))


@pytest.mark.parametrize("line", PRINTED)
def test_a_document_is_what_its_schema_says(line, printed):
    done = printed[f"{line} --json"]
    assert done["code"] == PRINTED[line], done
    schema = json.loads((FOLDER / f"{command_of(line).replace(' ', '-')}.json").read_text())
    found = json.loads(done["out"], parse_constant=pytest.fail)
    Draft202012Validator(schema).validate(found)
    assert found  # an empty list has nothing that could be wrong


@pytest.mark.parametrize("line", REFUSED)
def test_an_error_leaves_standard_output_empty(line, printed):
    done = printed[f"{line} --json"]
    assert (done["code"], done["out"]) == (1, "")
    assert REFUSED[line] in done["err"]


def commands(group=None, above=""):
    """The commands that have ``--json``."""
    for name, one in (group or typer.main.get_command(app)).commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{name} ")
        elif any("--json" in parameter.opts for parameter in one.params):
            yield f"{above}{name}"


def test_every_command_with_json_has_a_schema_a_line_of_the_page_and_a_test():
    assert set(commands()) == set(RESULTS) == {command_of(line) for line in PRINTED}
    rows = re.findall(r"^\| `([a-z ]+)` \|.*\(json/([a-z-]+)\.json\)", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {name: name.replace(" ", "-") for name in RESULTS}


def test_the_schemas_are_those_of_the_types():
    """`python tests/make_schemas.py` writes them."""
    assert {path: path.read_text() for path in FOLDER.iterdir()} == schema_files()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_is_one_and_describes_all_properties(path):
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    for one in (schema, *schema.get("$defs", {}).values()):
        for name, about in one.get("properties", {}).items():
            assert about["description"], name
        assert ("properties" in one) == (one.get("additionalProperties") is False)
