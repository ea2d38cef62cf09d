"""Every python block of the README and the guides runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_code_blocks_run(page, monkeypatch):
    import sys
    import types

    # The blocks' classes live in a module of their own, so that Run.load finds them.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page):
        exec(compile(block, page, "exec"), vars(module))


def test_links_lead_somewhere():
    for page in [*PAGES, "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / link).exists(), f"{page}: {link}"


def test_files_named_in_the_readme_exist():
    for name in re.findall(
        r"`((?:tests|benchmarks|trainer)/[\w/.]+\.py)", (ROOT / "README.md").read_text()
    ):
        assert (ROOT / name).is_file(), name


def test_ci_runs_the_readmes_own_commands():
    script = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    for mark in ("main job", "tests"):
        assert f"command '{mark}'" in script
        assert re.search(rf"<!-- {mark} -->\n```sh\n.+\n```", readme)
