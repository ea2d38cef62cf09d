"""The commands that the documentation shows, in a new folder: on a terminal and into a pipe."""

from __future__ import annotations

import json
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
from helpers.pages import AFTER_CODE, blocks, without_figures
from helpers.sessions import forked_programs, run_session, run_shell

import paceline
from paceline.__main__ import app
from paceline.recipes import RECIPES

ROOT = Path(paceline.__file__).parent
SESSIONS = ("docs/reference/commands.md",)
"""Pages whose commands are one session, from an empty folder on."""
A_RECIPE = "docs/extending/recipe.md"
"""Its command runs its first block of code, in a file."""
TUTORIALS = tuple(
    f"docs/tutorials/{name}.md"
    for name in ("own-loop", "one-device-to-many", "a-machine-that-can-be-taken-away")
)
"""Their blocks are files, commands, and what those print, one after another."""
ELSEWHERE = {
    "docs/quick-start.md": "tests/test_quick_start.py",
    "docs/zh/quick-start.md": "tests/test_docs.py",
    "docs/promises/laptop-cpu.md": "tests/doctor",
    "docs/guides/devices.md": "tests/strategies/launch",
    "docs/guides/hyper-parameters.md": "tests/test_hyper_parameters.py",
    "docs/guides/slurm.md": "tests/strategies/launch/test_slurm.py",
    "docs/guides/failures.md": "tests/tools/debug/test_replay.py",
    "docs/guides/diff.md": "tests/tools/debug/test_diff.py",
    "docs/skills/compare-two-runs.md": "tests/tools/debug/test_diff.py",
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
    assert {page for page in pages if commands(page)} == {
        *SESSIONS,
        *AFTER_CODE,
        *TUTORIALS,
        A_RECIPE,
        *ELSEWHERE,
    }
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


def copy_page(page: str, folder: Path, more: str = "") -> str:
    """Save the files of a tutorial and run its commands in a new folder; all that they have printed."""
    programs = forked_programs(folder / "programs", more)
    text, every, printed = (ROOT / page).read_text(), "", ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            name, more_of_it = re.match(r"# (\w+\.py)(, at the end)?\n", block).groups()
            with (folder / name).open("a" if more_of_it else "x") as file:
                file.write(block)
        elif language == "sh":
            printed = run_shell(block, folder, programs)
            every += printed
        else:
            assert without_steps(block) in without_steps(printed), printed
    return every


def without_steps(text: str) -> str:
    """Which checkpoint was complete when a run was killed differs too."""
    return re.sub(r"step-\d+", "step-#", without_figures(text))


def last_values(folder: Path, run: str) -> dict[str, float]:
    metrics = paceline.Run(folder / "runs" / run).metrics
    return {name: one.values[-1] for name, one in metrics.items() if name.startswith("val/")}


@pytest.mark.launch  # for its length
def test_the_tutorial_on_a_loop_has_the_losses_of_the_loop(tmp_path):
    printed = copy_page(TUTORIALS[0], tmp_path)
    (loop,) = re.findall(r"^epoch 3, step 135: loss (\S+)  accuracy (\S+)$", printed, re.MULTILINE)
    ours = last_values(tmp_path, "digits/1")
    assert [f"{ours['val/loss']:.4f}", f"{ours['val/accuracy']:.4f}"] == [*loop]
    assert printed.count("the same\n") == 12  # four weights, in three runs of the script
    assert all(made.exists() for made in (tmp_path / "report.html", tmp_path / "runs/digits/1/curves.png"))


@pytest.mark.launch  # for its length
def test_the_tutorial_on_devices_has_the_same_numbers_on_all_of_them(tmp_path):
    printed = copy_page(TUTORIALS[1], tmp_path, "deepspeed")
    assert printed.count("every compared step is the same\n") == 3
    one, *others = (last_values(tmp_path, f"digits/{number}") for number in range(1, 5))
    for several in others:
        assert several == pytest.approx(one, abs=1e-5)


@pytest.mark.launch  # for its length
def test_the_tutorial_on_machines_ends_as_the_run_that_nothing_happened_to(tmp_path):
    copy_page(TUTORIALS[2], tmp_path)
    whole, spot, moved = (last_values(tmp_path, f"{name}/1") for name in ("whole", "spot", "moved"))
    assert spot == whole
    assert moved == pytest.approx(whole, abs=1e-5)


def test_the_page_about_commands_has_all_of_them():
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    table = text[: text.index("## Exit codes")]
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"`{name}" in table, name
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            assert re.search(rf"`{group.name} .*{command.name}", table), (group.name, command.name)
