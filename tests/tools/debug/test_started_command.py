"""A folder names a command: it is shown, and not started unseen where others may have written it."""

import io
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import typer
from helpers.run_folders import write_run

from paceline import PacelineError
from paceline.__main__ import app
from paceline.callbacks.monitors.step_record import FILE_NAME, MAGIC, ROW

HERE = {"host": platform.node(), "user": os.getuid(), "fit": 1, "world": 1}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """Runs a command on a planted run; gives what was started, instead of starting it."""
    monkeypatch.chdir(tmp_path)

    def start(*words, typed=None, of=("train.py",), **environment):
        environment = HERE | {"program": list(of), "folder": str(tmp_path)} | environment
        for number, loss in enumerate((1.0, 2.0), 1):
            folder = tmp_path / "runs" / "n" / str(number)
            if not folder.exists():
                write_run(folder, environment=environment)
                rows = np.zeros(1, dtype=ROW)
                rows["step"], rows["loss"], rows["rank"] = 1, loss, -1
                (folder / FILE_NAME).write_bytes(MAGIC + rows.tobytes())
        found = []
        monkeypatch.setattr(os, "execve", lambda file, words, env: found.append(words[2:]))
        monkeypatch.setattr(
            subprocess, "run", lambda words, **_: found.append(words[2:]) or sys.exit("was started")
        )
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
        try:
            typer.main.get_command(app)(list(words), standalone_mode=False)
        except SystemExit:
            assert found
        return found

    return start


REPLAY = ("replay", "runs/n/1", "--step", "1")
DIFF = ("diff", "runs/n/1", "runs/n/2", "--replay")
OTHERS = {
    "another host": ({"host": "elsewhere"}, "it was written on the host 'elsewhere'"),
    "no host": ({"host": None}, "it was written on the host None"),
    "another user": ({"user": -3}, "user -3 wrote it"),
    "code": ({"program": ["-c", "import os"]}, "its code is in the command itself"),
    "code after options": (
        {"program": ["-X", "dev", "-Wc", "-Ic", "import os"]},
        "its code is in the command itself",
    ),
}


@pytest.mark.parametrize("words", [REPLAY, DIFF])
def test_the_command_of_ones_own_run_is_shown_and_started(starts, words, capsys, tmp_path):
    assert starts(*words, of=["-m", "paceline", "-c", "a b\n\x1b[2Jc"])[0][0] == "-m"
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].endswith(
        f"runs/n/1 was started by: cd {tmp_path} && python -m paceline -c 'a b\\n\\x1b[2Jc'"
    )


@pytest.mark.fault(53)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("words", [REPLAY, DIFF])
def test_a_command_of_others_is_not_started_unseen(starts, words, other, capsys):
    environment, said = OTHERS[other]
    for typed in (None, "y\n"):
        with pytest.raises(PacelineError, match="names a command that is not started unseen") as caught:
            starts(*words, typed=typed, **environment)
        assert said in str(caught.value)
        assert "then give --trust" in str(caught.value)
    with pytest.raises(PacelineError, match="asks on a terminal before the command is started") as caught:
        starts(*words, "--trust", **environment)
    assert "--trust --yes starts it without asking" in str(caught.value)
    with pytest.raises(typer.Abort):
        starts(*words, "--trust", typed="n\n", **environment)
    assert "was started by: cd" in capsys.readouterr().err
    assert starts(*words, "--trust", "--yes", **environment)
    assert starts(*words, "--trust", typed="y\n" * 2, **environment)


def test_the_owner_of_the_files_counts_whatever_they_say(starts, monkeypatch):
    assert starts(*REPLAY)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PacelineError, match="and you are user 12345"):
        starts(*REPLAY, user=12345)


@pytest.mark.parametrize(
    "program", [["t.py", "-c", "x"], ["-u", "t.py"], ["-m", "mine", "-c"], ["-W", "c", "t.py"], ["--c"]]
)
def test_a_script_with_an_option_of_that_name_is_no_code(starts, program):
    assert starts(*REPLAY, of=program) == [program]


def test_flags_of_a_replay_are_for_one(starts):
    with pytest.raises(PacelineError, match="--trust is for --replay"):
        starts("diff", "runs/n/1", "runs/n/2", "--trust")
