"""The commands that the documentation shows, in a new folder: on a terminal and into a pipe."""

from __future__ import annotations

import json
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
from helpers.pages import AFTER_CODE, blocks
from helpers.sessions import run_session

import paceline
from paceline.__main__ import app
from paceline.recipes import RECIPES

ROOT = Path(paceline.__file__).parent
SESSIONS = ("docs/reference/commands.md",)
"""Pages whose commands are one session, from an empty folder on."""
A_RECIPE = "docs/extending/recipe.md"
"""Its command runs its first block of code, in a file."""
ELSEWHERE = {
    "docs/quick-start.md": "tests/test_quick_start.py",
    "docs/zh/quick-start.md": "tests/test_docs.py",
    "docs/promises/laptop-cpu.md": "tests/doctor",
    "docs/guides/devices.md": "tests/strategies/launch",
    "docs/guides/hyper-parameters.md": "tests/test_hyper_parameters.py",
    "docs/guides/slurm.md": "tests/strategies/launch/test_slurm.py",
    "docs/guides/failures.md": "tests/tools/debug/test_replay.py",
    "docs/guides/diff.md": "tests/tools/debug/test_diff.py",
    "docs/migration/migrate.md": "tests/compat/migrate",
    "docs/guides/config-init.md": "tests/test_config_init.py",
    "docs/guides/doctor.md": "tests/doctor",
    "docs/guides/estimate.md": "tests/test_command_line.py",
    **{f"docs/recipes/{name}.md": "tests/recipes/test_figures.py" for name in RECIPES},
}


def commands(page: str) -> list[list[str]]:
    """The words of each command of a page, without comments."""
    shown = blocks(ROOT / page, "(?:sh|text)")
    lines = [line.removeprefix("$ ") for block in shown for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if re.match(r"paceline [a-z]", line)]


def run_all(folder: Path, page: str, how: str = "pipe") -> list[dict[str, object]]:
    return run_session(folder, [one for one in commands(page) if not {"PATH", "OUT"} & set(one)], how)


def test_every_page_with_commands_is_run_somewhere():
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if commands(page)} == {*SESSIONS, *AFTER_CODE, A_RECIPE, *ELSEWHERE}
    assert all((ROOT / tests).exists() for tests in ELSEWHERE.values())


@pytest.mark.launch  # for its length
@pytest.mark.parametrize("how", ["pipe", pytest.param("terminal", marks=pytest.mark.soak)])
@pytest.mark.parametrize("page", SESSIONS)
def test_a_session_from_an_empty_folder(page, how, tmp_path):
    for one in run_all(tmp_path, page, how):
        if how == "pipe":
            if "--json" in one["words"] or one["words"][:2] == ["config", "schema"]:
                json.loads(one["out"])
            assert "\r" not in one["out"] + one["err"], one["words"]
            assert "\x1b" not in one["out"] + one["err"], one["words"]
    assert (tmp_path / "report.html").exists()


@pytest.mark.launch  # for its length
@pytest.mark.parametrize("page", AFTER_CODE)
def test_commands_after_the_code_of_their_page(page, tmp_path, monkeypatch):
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(ROOT / page):
        exec(compile(block, page, "exec"), vars(module))
    run_all(tmp_path, page)


@pytest.mark.ranks
def test_the_recipe_of_its_page_takes_settings_from_the_command_line(tmp_path):
    (tmp_path / "my.py").write_text(blocks(ROOT / A_RECIPE)[0])
    run_all(tmp_path, A_RECIPE)
    config = paceline.Run(tmp_path / "runs" / "net" / "1").config
    assert config["config"]["learning_rate"] == 0.01
    assert config["module"]["hparams"]["width"] == 256


def test_the_page_about_commands_has_all_of_them():
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    table = text[: text.index("## Exit codes")]
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"`{name}" in table, name
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            assert re.search(rf"`{group.name} .*{command.name}", table), (group.name, command.name)
