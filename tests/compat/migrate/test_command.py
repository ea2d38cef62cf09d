"""The command as it is run: exit codes, folders, errors, JSON, ``--write``."""

import json
import subprocess
import sys

import pytest
from helpers.environment import clean_environment
from typer.testing import CliRunner

from paceline.__main__ import app
from paceline.compat.migrate import command

from .programs import PROGRAMS

PROGRAM = PROGRAMS["accumulated"][0]
MARKED = "import lightning as L\n\nL.Trainer(max_epochs=1, benchmark=True)\n"


def run(*arguments):
    return CliRunner().invoke(app, ["migrate", *map(str, arguments)])


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_the_exit_code_says_whether_something_has_to_be_rewritten(program, tmp_path):
    assert run(program).exit_code == 1
    (tmp_path / "plain.py").write_text("import torch\n")
    done = run(tmp_path / "plain.py")
    assert done.exit_code == 0
    assert done.stdout == (
        "1 file, 1 without these libraries: 0 run as they are, 0 change meaning, 0 to rewrite\n"
    )
    (tmp_path / "runs.py").write_text("from transformers import get_scheduler\n")
    assert run(tmp_path / "runs.py").exit_code == 0


def test_the_list_has_three_groups_with_places(program):
    lines = run(program).stdout.splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads[:4] == [
        f"{program}: lightning",
        "runs as it is:",
        "changes meaning:",
        "has to be rewritten (* --write does it):",
    ]
    assert f"  {program}:1: * import lightning as L: import from paceline what is used of it" in lines
    line = PROGRAM[: PROGRAM.index("self.log(")].count("\n") + 1
    assert any(f"{program}:{line}: self.log: training values are means" in text for text in lines)


def test_a_folder_is_read_in_order_without_hidden_folders_and_environments(program, tmp_path):
    for folder in ("b", ".hidden", "env", "a"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text(MARKED)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "plain.py").write_text("import torch\n")
    (tmp_path / "notes.txt").write_text("import lightning\n")
    done = run(tmp_path)
    heads = [line for line in done.stdout.splitlines() if line.endswith(": lightning")]
    assert heads == [f"{tmp_path / name}: lightning" for name in ("a/x.py", "b/x.py", "train.py")]
    assert done.stdout.splitlines()[-1].startswith("4 files, 1 without these libraries: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"import lightning\n\ndef f(:\n", ":3: not Python: "),
        (b"import lightning\nx = '\xff'\n", ":2: not Python: "),
        (b"\0", ": not Python: "),
        (b"a,b\n1,2 3\n", ":2: not Python: "),
        (b"# coding: nonsense\nimport lightning\n", ": not Python: "),
        (b"import lightning\nx = " + b"(" * 500 + b")" * 500, "not Python: "),
    ],
)
def test_a_file_that_is_no_python_is_named_and_others_are_read(content, said, program, tmp_path):
    wrong = tmp_path / "broken.py"
    wrong.write_bytes(content)
    done = run(tmp_path)
    assert done.exit_code == 2
    assert f"error: {wrong}" in done.stderr
    assert said in done.stderr
    assert f"{program}: lightning" in done.stdout
    assert "1 file cannot be read" in done.stdout


def test_there_is_no_such_file(tmp_path):
    done = run(tmp_path / "none.py")
    assert (done.exit_code, done.stdout) == (2, "")
    said = f"error: {tmp_path / 'none.py'}: no such file or folder\n"
    assert done.stderr == f"{said}  more: paceline explain file-not-found\n"


def test_a_notebook_is_refused(tmp_path):
    (tmp_path / "a.ipynb").write_text("{}")
    done = run(tmp_path / "a.ipynb")
    assert done.exit_code == 2
    assert "jupyter nbconvert" in done.stderr


def test_without_libcst_the_command_says_what_to_install(program, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    done = run(program)
    assert done.exit_code == 2
    assert "pip install libcst" in done.stderr


def test_json(program, tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "plain.py").write_text("")
    done = run(tmp_path, "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    broken, listed = found["files"]
    assert broken["error"]["line"] == 1
    assert broken["findings"] == []
    assert (listed["file"], listed["libraries"], listed["error"]) == (str(program), ["lightning"], None)
    assert set(listed["findings"][0]) == {"line", "group", "library", "name", "text", "automatic"}
    summary = found["summary"]
    assert (summary["files"], summary["of_libraries"], summary["unreadable"]) == (3, 1, 1)
    groups = [finding["group"] for finding in listed["findings"]]
    assert [summary[g] for g in ("runs", "changes", "rewrite")] == [
        groups.count(g) for g in ("runs", "changes", "rewrite")
    ]


@pytest.mark.parametrize("options", [["--json", "--write"], ["--yes"]])
def test_options_that_do_not_go_together(options, program):
    assert run(program, *options).exit_code == 2


# -- --write -----------------------------------------------------------------------------------


def write(path, ask=None, yes=False):
    said, warned = [], []
    code = command.write(path, ask, yes, said.append, warned.append)
    return code, "\n".join(said), "\n".join(warned)


def test_write_prints_the_diff_and_needs_yes_without_a_terminal(program):
    before = program.read_text()
    done = run(program, "--write")
    assert done.exit_code == 1
    assert "-import lightning as L\n+from paceline import TrainModule, Trainer\n" in done.stdout
    assert "--yes" in done.stderr
    assert program.read_text() == before


def test_write_replaces_the_file_and_a_second_one_changes_nothing(program):
    program.chmod(0o640)
    done = run(program, "--write", "--yes")
    assert done.exit_code == 0
    assert f"wrote {program}" in done.stdout
    after = program.read_bytes()
    assert b"lightning" not in after
    assert program.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in program.parent.iterdir()] == ["train.py"]
    again = run(program, "--write", "--yes")
    assert (again.exit_code, program.read_bytes()) == (0, after)
    assert again.stdout == "nothing to write\n"


def test_a_file_that_cannot_be_written_stays(program, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = program.read_bytes()
    monkeypatch.setattr(command.os, "fsync", full)
    done = run(program, "--write", "--yes")
    assert done.exit_code == 2
    said = f"error: {program} cannot be written: No space left on device\n"
    assert done.stderr == f"{said}  more: paceline explain cannot-write\n"
    assert [(p.name, p.read_bytes()) for p in program.parent.iterdir()] == [("train.py", before)]


def test_on_a_terminal_it_asks(program):
    before = program.read_text()
    assert write(program, ask=lambda question: False)[0] == 1
    assert program.read_text() == before
    asked = []
    assert write(program, ask=lambda question: not asked.append(question))[0] == 0
    assert asked == [f"write {program}?"]
    assert program.read_text() != before


def test_what_is_left_is_marked_listed_and_counted(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(MARKED)
    for _ in range(2):
        code, said, _ = write(path, yes=True)
        assert code == 1
        assert "has to be rewritten:\n" in said
        assert "Trainer(benchmark=): set torch.backends.cudnn.benchmark" in said
        assert path.read_text().count("# paceline: ") == 1
    lines = [line for line in path.read_text().splitlines() if "# paceline" not in line]
    path.write_text("\n".join(lines))
    assert run(path).exit_code == 0


def test_code_of_other_libraries_is_reported_alone(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("from accelerate import Accelerator\naccelerator = Accelerator()\n")
    code, said, warned = write(path, yes=True)
    assert code == 1
    assert "write a TrainModule" in said
    assert said.endswith("nothing to write")
    assert "Lightning code alone" in warned


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_changes_that_are_not_committed_are_not_written_over(program):
    git(program.parent, "init")
    before = program.read_text()
    yes = {"ask": lambda question: True}
    code, _, warned = write(program, **yes)
    assert (code, program.read_text()) == (1, before)
    assert "commit them, or add --yes" in warned
    git(program.parent, "add", "train.py")
    git(program.parent, "commit", "-m", "x")
    assert write(program, **yes)[0] == 0
    assert program.read_text() != before
    program.write_text(before + "# changed\n")
    assert write(program, yes=True)[0] == 0


def test_a_pipe_that_closes_ends_it_without_a_traceback(program):
    started = subprocess.Popen(
        [sys.executable, "-m", "paceline", "migrate", str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    started.stdout.close()
    _, errors = started.communicate(timeout=60)
    assert "Traceback" not in errors


def test_torch_is_not_imported(program):
    code = (
        "import sys\nfrom paceline.__main__ import app\n"
        f"app(['migrate', {str(program)!r}], standalone_mode=False)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
