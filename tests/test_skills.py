"""``paceline skills``: what a coding agent reads."""

import json
import re

import pytest

from paceline import PacelineError
from paceline.__main__ import app
from paceline.commands.pages import SKILLS

FILES = sorted(SKILLS.glob("*.md"))


def run(*arguments):
    app(["skills", *arguments], standalone_mode=False)


def test_they_are_listed_with_what_they_are_for(capsys):
    run("--json")
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == [file.stem for file in FILES]
    run()
    table = capsys.readouterr().out
    assert all(one["description"] in table and len(one["description"]) > 40 for one in listed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_one_is_printed_as_it_is(file, capsys):
    run(file.stem)
    text = capsys.readouterr().out
    assert text == file.read_text()
    name, description = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n# ", text).groups()
    assert name == file.stem
    run(file.stem, "--json")
    assert json.loads(capsys.readouterr().out) == {"name": name, "description": description, "text": text}


def test_another_name_is_answered_with_the_nearest():
    with pytest.raises(PacelineError, match=r"did you mean: port-a-program\?"):
        run("port_a_progam")
