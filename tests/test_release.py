"""What a release is made of: docs/releasing.md."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from paceline import __version__

ROOT = Path(__file__).resolve().parents[1]
PINNED = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, timeout=60)


def clone(folder):
    """A clone with the files that a build reads beside the commit."""
    git(ROOT, "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(folder))
    git(folder, "checkout", "-q", "HEAD", "--", ".ci", "CHANGELOG.md")
    return folder


def build(folder, umask=0o022, **variables):
    """Run .ci/build in a clone; what it did."""
    command = [sys.executable, str(folder / ".ci/build"), str(folder / "made")]
    given = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=given, umask=umask)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of two builds of one commit, in other folders, with another umask and time zone."""
    pytest.importorskip("pyproject_hooks")  # of ``build``, whose name a folder here may have
    folder = tmp_path_factory.mktemp("release")
    first = clone(folder / "a")
    (second := folder / "another place").mkdir()
    found = []
    for where, settings in (
        (first, {"umask": 0o077, "TZ": "Asia/Kathmandu"}),
        (clone(second / "b"), {"umask": 0o002, "TZ": "America/St_Johns", "PYTHONHASHSEED": "7"}),
    ):
        done = build(where, **settings)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append({path.name: path for path in map(Path, done.stdout.splitlines())})
    return found


@pytest.mark.launch
def test_two_builds_of_a_commit_have_equal_bytes(made):
    first, second = made
    name = f"paceline-{__version__}"
    assert sorted(first) == sorted(second) == [f"{name}-py3-none-any.whl", f"{name}.tar.gz"]
    assert [first[name].read_bytes() == second[name].read_bytes() for name in first] == [True, True]


@pytest.mark.launch
def test_the_wheel_has_the_packages_and_what_their_code_reads(made):
    (wheel,) = (path for name, path in made[0].items() if name.endswith(".whl"))
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {Path(name).parent.as_posix() for name in names if name.endswith(".py")}
    assert folders == {package.replace(".", "/") for package in packages}
    assert {"paceline/py.typed", "paceline/tools/report/page.html"} <= set(names)
    tops = {name.split("/")[1] for name in names}
    assert not tops & {"tests", "benchmarks", ".ci", ".github", "pyproject.toml", "README.md"}


@pytest.mark.launch
def test_the_sdist_has_what_builds_the_wheel(made):
    """And nothing else: its wheel is the one above, which was built of it."""
    (sdist,) = (path for name, path in made[0].items() if name.endswith(".tar.gz"))
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
    assert {(m.mode, m.uid, m.uname) for m in members} == {(0o755, 0, ""), (0o644, 0, "")}
    tops = {member.name.split("/")[1] for member in members if "/" in member.name}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    modules = {path.name for path in ROOT.glob("*.py")}
    written = {"PKG-INFO", "setup.cfg", "paceline.egg-info"}
    files = {"CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "py.typed"}
    needed = {"MANIFEST.in", "pyproject.toml", *packages, *modules}
    assert tops - {"docs"} == files | needed | written  # docs/ has data that the code reads


@pytest.mark.launch
@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("v9.8.7", f"the commit has the tag v9.8.7, and common/version.py the version {__version__}"),
        (f"v{__version__}", f"CHANGELOG.md has no section [{__version__}] with a date"),
    ],
)
def test_a_tag_of_another_version_or_without_a_section_is_refused(tag, said, tmp_path):
    folder = clone(tmp_path / "clone")
    text = (folder / "CHANGELOG.md").read_text()
    (folder / "CHANGELOG.md").write_text(text.replace(f"## [{__version__}]", "## [0.0.1]"))
    git(folder, "commit", "-q", "--allow-empty", "-m", "Release", "CHANGELOG.md")
    git(folder, "tag", tag)
    done = build(folder)
    assert done.returncode == 1
    assert done.stderr.startswith(said)


def test_actions_are_pinned_by_a_commit_and_a_version():
    """A tag can be moved to other code; the comment is what people and updaters read."""
    used = [
        line.partition("uses:")[2].strip()
        for path in (ROOT / ".github").rglob("*.y*ml")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(- )?uses:", line)
    ]
    assert len(used) >= 10
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_tools_of_a_release_are_pinned():
    text = (ROOT / "pyproject.toml").read_text()
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["release"]
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {need.partition(">=")[0] for need in extra} <= pins
