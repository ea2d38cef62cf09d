"""Every Python block of the README and of docs/ runs, in order, in one namespace per page."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.pages import AFTER_CODE, without_figures
from helpers.pages import blocks as blocks_of
from helpers.ranks import Outcome, run_ranks

import paceline
import paceline.callbacks

pytestmark = pytest.mark.launch
ROOT = Path(paceline.__file__).parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str = "python") -> list[str]:
    return blocks_of(ROOT / page, language)


SHELL = ("docs/quick-start.md", "docs/zh/quick-start.md")  # test_quick_start.py runs their script
AS_SCRIPT = (  # their blocks start ranks
    "docs/guides/devices.md",
    "docs/guides/tensor-parallel.md",
    "docs/extending/strategy.md",
)
AS_PACKAGE = "docs/extending/plugins.md"  # files of a package: test_plugin_package.py installs it
AS_PROGRAMS = "docs/guides/hyper-parameters.md"  # test_hyper_parameters.py runs them
AS_NOTEBOOK = "docs/guides/notebook.md"  # its blocks are cells: test_notebook.py runs them
AS_FILES = tuple(page for page in PAGES if page.startswith("docs/tutorials/"))
# test_commands_of_the_docs.py
ELSEWHERE = (*SHELL, *AS_SCRIPT, AS_PACKAGE, AS_PROGRAMS, AS_NOTEBOOK, *AFTER_CODE, *AS_FILES)


def as_script(page: str, folder: Path) -> Outcome:
    """The blocks of a page, run as a launcher's two ranks."""
    script = folder / "train.py"
    script.write_text("\n".join(blocks(page)))
    return run_ranks(script, 2, folder=folder, seconds=120)


def test_the_page_on_several_devices_runs_as_a_script(tmp_path):
    """Without its launch and the log of rank 1: strategies/launch/test_launch.py shows both."""
    done = as_script("docs/guides/devices.md", tmp_path)
    assert done.stdout.count("once, on rank 0") == 1
    for rank in (0, 1):
        assert f"after fit on rank {rank} of 2" in done.printed[rank][0]


def test_the_page_on_writing_a_strategy_runs_as_a_script(tmp_path):
    done = as_script("docs/extending/strategy.md", tmp_path)
    assert "2 devices (cpu), strategy late-average" in done.printed[0][0]


def first_script(folder: Path) -> Path:
    """The first script of the documentation, in a new folder."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(blocks("docs/index.md")[0])
    return script


def test_the_first_page_shows_what_its_script_prints(tmp_path):
    script = first_script(tmp_path / "first")
    printed = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=script.parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    ).stdout
    shown = blocks("docs/index.md", "text")[0]
    assert without_figures(printed) == without_figures(shown), printed
    accuracy = r"^(0\.\d+) step-"
    assert float(re.findall(accuracy, printed, re.MULTILINE)[0]) == pytest.approx(
        float(re.findall(accuracy, shown, re.MULTILINE)[0]), abs=0.02
    )
    # The same script in another process, which has imported torch already.
    script = first_script(tmp_path / "second")
    again = run_ranks(
        script, 1, folder=script.parent, seconds=120, environment={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert without_speed(again.stdout) == without_speed(printed)


def without_speed(text: str) -> str:
    """Speed and memory, which differ from run to run; losses do not."""
    return re.sub(r"[\d.]+k? samples/s|[\d.]+GB", "#", text)


BEFORE_A_RELEASE = ("docs/guides/estimate.md", "docs/recipes/gpt.md")
"""The longest; at each change test_estimate.py, test_gpt.py and test_text.py call what they show."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.soak if page in BEFORE_A_RELEASE else ())
        for page in PAGES
        if blocks(page) and page not in ELSEWHERE
    ],
)
def test_code_blocks_run(page, monkeypatch):
    # The blocks' classes live in a module of their own, so that Run.load finds them.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page):
        exec(compile(block, page, "exec"), vars(module))


def test_links_lead_somewhere():
    for page in [*PAGES, "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md"]:
        for link, anchor in re.findall(r"\]\(([^)#:\s]+)(?:#([^)]*))?\)", (ROOT / page).read_text()):
            target = (ROOT / page).parent / link
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as sites make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in kept}


def test_every_page_is_in_the_navigation_of_the_site_once():
    nav = re.findall(r'"([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text())
    named = {page.removeprefix("docs/") for page in PAGES if page != "README.md"}
    index = ROOT / "docs" / "errors" / "README.md"  # the navigation has it, and it has the pages of codes
    assert sorted(nav) == sorted(
        named - {f"errors/{page}" for page in re.findall(r"\]\((\S+)\)", index.read_text())}
    )


@pytest.mark.parametrize(
    ("page", "original"),
    [("quick-start", "quick-start"), ("from-accelerate", "migration/from-accelerate")],
)
def test_the_chinese_pages_show_the_programs_of_the_english_ones(page, original):
    shown, tested = (
        re.findall(
            r"^```\w+\n.*?^```", (ROOT / "docs" / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE
        )
        for name in (f"zh/{page}", original)
    )
    assert shown
    assert set(shown) <= set(tested)
    assert page != "quick-start" or shown == tested


def test_the_table_of_programs_is_what_was_measured():
    found = json.loads((ROOT / "benchmarks" / "results" / "side_by_side.json").read_text())
    page = (ROOT / "docs" / "evidence" / "benchmarks.md").read_text()
    rows = [
        f"| {one['samples_per_second']:.0f} | {one['peak_mib']:.0f} | {one['lines']} |"
        for programs in found.values()
        for one in programs.values()
    ]
    assert len(rows) == 8
    assert rows == re.findall(r"^\| (?:GPT-2|ViT|GAN) on [^|]+ (\|.*)$", page, re.MULTILINE)
    benchmark = load_job(ROOT / "benchmarks" / "side_by_side.py")
    for task, programs in found.items():
        for name, one in programs.items():
            assert benchmark.lines_of(benchmark.PROGRAMS / f"{task}_{name}.py") == one["lines"]


FILE = r"`(?:python )?((?:tests|benchmarks|trainer|strategies|callbacks|docs)/[\w/.]+\.\w+)"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_files_named_in_the_docs_exist(page):
    for name in re.findall(FILE, (ROOT / page).read_text()):
        assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_page_about_callbacks_has_all_of_them():
    page = ROOT / "docs" / "guides" / "callbacks.md"
    named = re.findall(r"^\| `(\w+)`", page.read_text(), re.MULTILINE)
    ours = paceline.callbacks
    found = [name for name in ours.__all__ if issubclass(getattr(ours, name), ours.Callback)]
    assert named == sorted(found)


def test_ci_runs_the_readmes_own_commands():
    script = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    for mark in ("main job", "tests"):
        assert f"command '{mark}'" in script
        assert re.search(rf"<!-- {mark} -->\n```sh\n.+\n```", readme)


def test_the_api_reference_and_the_trainer_s_docstring_are_up_to_date():
    written = runpy.run_path(str(ROOT / "tests" / "make_api.py"))
    pages = written["pages"]()
    assert {*pages} == {*written["FOLDER"].glob("*.md")}
    for path, text in pages.items():
        assert path.read_text() == text, "python tests/make_api.py"
        assert len(text.split()) < 3500, f"{path.name}: give it more pages in SUBJECTS"
    index = pages[written["FOLDER"] / "README.md"]
    for name, page in re.findall(r"^\| \[`(\w+)`\]\((\w+\.md)#\w+\)", index, flags=re.MULTILINE):
        assert f"\n## {name}\n" in pages[written["FOLDER"] / page]
    assert written["TRAINER"].read_text() == written["trainer_file"](), "python tests/make_api.py"


def test_llms_txt_is_up_to_date():
    written = runpy.run_path(str(ROOT / "tests" / "make_llms.py"))
    assert written["FILE"].read_text() == written["text"](), "python tests/make_llms.py"


def test_make_runs_the_readmes_test_command():
    command = re.search(r"<!-- tests -->\n```sh\n.+ && (.+)\n```", (ROOT / "README.md").read_text())
    assert "\ntest:" in (ROOT / "Makefile").read_text()
    assert f"\t{command[1]}\n" in (ROOT / "Makefile").read_text()
