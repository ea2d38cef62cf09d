"""What a run runs on, as ``paceline env`` shows it and env.json keeps it."""

import json
import shutil
import subprocess

import pytest
import torch

import paceline
from paceline.trainer.run import environment_report as module
from paceline.trainer.run.environment_report import environment_report, report_text, variables
from paceline.trainer.run.git_state import git_state

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_versions_are_those_that_are_imported():
    report = environment_report()
    assert report["versions"]["paceline"] == paceline.__version__
    assert report["versions"]["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert report["torch"]["commit"] == torch.version.git_version
    assert report["torch"]["backends"]["gloo"] == "available"
    assert report["cpu"]["usable"] >= 1
    assert 0 < report["memory"]["available"] <= report["memory"]["total"]
    json.dumps(report)


def test_secrets_are_masked():
    found = variables(
        {
            "HF_TOKEN": "hf_1",
            "SLURM_JWT": "eyJ",
            "TORCH_HOME": "https://me:word@host/x",
            "NCCL_DEBUG": "INFO",
            "RANK": "3",
            "SECRET": "x",
        }
    )
    assert found == {
        "HF_TOKEN": "***",
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "SLURM_JWT": "***",
        "TORCH_HOME": "https://me:***@host/x",
    }


def test_what_cannot_be_read_is_named_and_ends_nothing(monkeypatch):
    def fails():
        raise OSError("no such counter")

    monkeypatch.setattr(module, "_memory", fails)
    report = environment_report()
    assert report["memory"] == {"error": "OSError: no such counter"}
    assert "error  OSError: no such counter" in report_text(report)


def test_the_text_is_aligned_and_has_every_section():
    report = environment_report() | {
        "devices": [{"device": "cuda:0", "name": "H100", "memory": 80_000_000_000, "capability": "9.0"}],
        "limits": {"open_files": 1024, "processes": None, "shm": 64_000_000},
    }
    lines = report_text(report).splitlines()
    assert "  cuda:0  name H100, memory 80 GB, capability 9.0" in lines
    assert lines[lines.index("limits") + 1 :][:3] == [
        "  open_files  1024",
        "  processes   no limit",
        "  shm         64 MB",
    ]
    assert {line.split(":")[0] for line in lines if not line.startswith(" ")} == set(report)
    assert report["devices"][0]["device"] == "cuda:0"  # unchanged


def test_a_folder_outside_a_repository(tmp_path):
    assert git_state(tmp_path) == {}


@needs_git
def test_commit_branch_and_whether_something_changed(tmp_path):
    def git(*words, folder=tmp_path):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        command = ["git", *identity, *words]
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    (tmp_path / "a.py").write_text("1\n")
    assert git_state(tmp_path)["commit"] is None
    git("add", "a.py")
    git("commit", "-m", "one")
    head = git("rev-parse", "HEAD")
    inside = tmp_path / "src"
    inside.mkdir()
    clean = {"folder": str(tmp_path), "commit": head, "branch": "main", "dirty": False}
    assert git_state(inside) == clean
    (tmp_path / "a.py").write_text("2\n")
    assert git_state(tmp_path) == clean | {"dirty": True}
    git("commit", "-am", "two")
    git("pack-refs", "--all")
    assert git_state(tmp_path)["commit"] == git("rev-parse", "HEAD") != head
    git("worktree", "add", "-b", "other", str(tmp_path / "tree"))
    found = git_state(tmp_path / "tree")
    assert (found["branch"], found["commit"]) == ("other", git("rev-parse", "HEAD"))
    git("checkout", "--detach", head)
    assert git_state(tmp_path) == {"folder": str(tmp_path), "commit": head, "dirty": False}


def test_without_the_program_git_only_the_commit_is_known(tmp_path, monkeypatch):
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text("abc\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == {
        "folder": str(tmp_path),
        "commit": "abc",
        "branch": "main",
        "dirty": None,
    }


def test_every_run_keeps_it(tmp_path):
    from paceline.trainer.run.directory import write_environment

    write_environment(tmp_path, {"fit": 1})
    found = json.loads((tmp_path / "env.json").read_text())
    assert {"command", "program", "folder", "fit", "accelerator", "started"} <= found.keys()
    assert found["machine"]["versions"]["torch"] == environment_report()["versions"]["torch"]
    assert found["machine"].keys() == environment_report().keys()


def test_a_page_about_runs_has_the_versions_and_not_the_free_memory():
    from paceline.tools.report.summary import _compared

    environment = {"host": "a", "machine": environment_report()}
    assert _compared(environment)["machine"].keys() == {"versions", "torch", "platform", "git", "variables"}
    assert _compared({"host": "a"}) == {"host": "a"}
