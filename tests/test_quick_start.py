"""docs/quick-start.md by copying: its commands in a shell, its script in a file, in a new folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.environment import clean_environment
from helpers.pages import blocks, without_figures
from helpers.ranks import run_ranks
from helpers.sessions import run_session
from safetensors.torch import load_file

import paceline

pytestmark = pytest.mark.launch
ROOT = Path(paceline.__file__).parent
PAGE = ROOT / "docs" / "quick-start.md"


def script() -> str:
    """What the page asks to save as train.py."""
    (shown,) = blocks(PAGE)
    return shown


def commands() -> list[str]:
    """The blocks of commands: the first installs, the second is the first after the script."""
    return blocks(PAGE, "sh")


def run(lines: list[str], folder: Path, home: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    """A shell that runs the blocks, each line of which must end well."""
    environment = clean_environment() | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_plain(done.stdout + done.stderr)
    return done


def assert_plain(printed: str) -> None:
    """A pipe gets plain lines."""
    assert not [sign for sign in ("Traceback", "\r", "\x1b") if sign in printed], printed


def check(folder: Path, printed: str) -> None:
    """What the page says of its commands."""
    (shown,) = blocks(PAGE, "text")
    assert without_figures(shown) in without_figures(printed), printed
    assert "resumes from runs/digits/1/checkpoints/step-00000135" in printed
    first, second = (paceline.Run(folder / "runs" / "digits" / str(number)) for number in (1, 2))
    assert first.metrics["val/accuracy"].values[-1] > 0.9
    assert (first.folder / "curves.png").exists()
    assert (folder / "report.html").exists()
    assert second.latest is not None
    assert load_file(folder / "exported" / "model.safetensors")
    whole_run = folder.parent / "without a stop"
    whole_run.mkdir()
    (whole_run / "train.py").write_text(script())
    done = run_ranks(
        whole_run / "train.py",
        1,
        5,
        folder=whole_run,
        environment={"CUDA_VISIBLE_DEVICES": "", "TEST_PICTURES": "1"},
    )
    assert done.stderr == ""
    assert not {"\r", "\x1b"} & {*done.stdout}
    assert "warning" not in done.stdout.lower()
    uninterrupted = paceline.Run(whole_run / "runs" / "digits" / "1")
    assert {"curves.png", "metrics.jsonl", "tb"} <= {one.name for one in uninterrupted.folder.iterdir()}
    whole = stored_tensors(uninterrupted.latest)
    resumed = stored_tensors(first.latest)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, atol=1e-5, rtol=0)


def test_the_script_is_short():
    assert len([line for line in script().splitlines() if line]) <= 28


def test_the_commands_run_in_a_new_folder(tmp_path):
    """From a script to a resumed run on two ranks: a shell runs one command, the others are forked."""
    (folder := tmp_path / "digits").mkdir()
    (folder / "train.py").write_text(script())
    first, second, third, *others = [line for block in commands()[1:] for line in block.splitlines()]
    assert first == "python train.py 1"
    assert (second[:-1], third) == (third[:-1], "paceline launch --nproc 2 train.py 5")
    cpu = {"folder": folder, "environment": {"CUDA_VISIBLE_DEVICES": ""}}
    printed = run_ranks(folder / "train.py", 1, 1, **cpu).stdout
    printed += run([second], folder, tmp_path, 600).stdout
    printed += run_ranks(folder / "train.py", 2, 5, **cpu).stdout
    assert all(line.startswith("paceline ") for line in others)
    session = run_session(folder, [shlex.split(line)[1:] for line in others])
    assert_plain(printed + "".join(one["out"] + one["err"] for one in session))
    check(folder, printed)


def test_it_installs_as_the_main_job_of_the_readme_does():
    """CI runs that in a new environment, this page's own commands before a release."""
    lines = commands()[0].splitlines()
    (shown,) = re.findall(r"<!-- main job -->\n```sh\n(.+)\n```", (ROOT / "README.md").read_text())
    made, installed, _ = shown.split(" && ")
    assert lines[0] == made
    assert lines[2] == installed.removeprefix(".venv/bin/").replace("-e ", "")


@pytest.mark.soak
def test_the_commands_run_in_a_clone_in_which_nothing_is_installed(tmp_path):
    """With those that install: from nothing to a resumed run on two ranks."""
    install, *others = commands()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=60)
    save = f"cat > train.py <<'END'\n{script()}END"
    where = "python -c 'import paceline; print(paceline.__file__)'"
    printed = run([install, save, *others, where], clone, tmp_path, 900).stdout
    assert printed.splitlines()[-1].startswith(str(clone / ".venv"))
    check(tmp_path / "digits", printed)
