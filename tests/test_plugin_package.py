"""The package on docs/extending/plugins.md, built and installed as a user would, in a real run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import clean_environment

import paceline

PAGE = (Path(paceline.__file__).parent / "docs/extending/plugins.md").read_text()
FILES = dict(re.findall(r"`([\w.]+)`:\n\n```(?:toml|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs Python where the package is installed, in a folder with the files of the page."""
    source, site, folder = (tmp_path_factory.mktemp(name) for name in ("source", "site", "work"))
    for name in ("pyproject.toml", "acme_training.py"):
        (source / name).write_text(FILES[name])
    for name in ("train.py", "test_acme.py"):
        (folder / name).write_text(FILES[name])
    environment = clean_environment()
    environment["PYTHONPATH"] = str(site)

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True, text=True, timeout=120, cwd=folder, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command("-m", "pip", "install", "-q", *offline, "--target", str(site), str(source))
    return command


def test_the_installed_package_is_used_by_name(run, request):
    folder = request.getfixturevalue("tmp_path_factory").getbasetemp()
    printed = run("train.py")
    assert "strategy average-once" in printed
    assert "trained for 8 steps under average-once" in printed
    assert "warning: outputs of line reach" in printed
    assert 'callbacks=Checks(skip="acme-outputs")' in printed
    steps = [line.split()[0] for line in next(folder.glob("work*/lines.txt")).read_text().splitlines()]
    assert steps == ["1", "4", "8"]


def test_the_command_prints_what_the_page_shows(run):
    shown = re.findall(r"^```text\n(group .*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    assert run("-m", "paceline", "plugins") == shown


@pytest.mark.soak
def test_the_test_on_the_page_passes(run):
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_acme.py")
