"""Runs as plain data: how each ended, its values, and what differs."""

import json
import os

import pytest
from helpers.run_folders import rows_of, write_run

from paceline import Run
from paceline.__main__ import app
from paceline.tools.report.plain import ReportedDifference, report_of
from paceline.tools.report.summary import summarize
from paceline.trainer.run import lock
from paceline.trainer.run.ending import Ending, read_ending

BEGUN = "paceline 0.1.0: net in runs/net/1"
END = "epoch 1/1, step 45/45, loss 1.918, 1.12k samples/s; ended: max_epochs=1 reached"
TRACEBACK = "Traceback (most recent call last):"
ERROR = [TRACEBACK, '  File "a.py", line 8, in step', "    raise KeyError(1)", "    ^^^^", "KeyError: 1"]
AFTER = "curves.png is being drawn; at its end this process waits for it"
LOGS = {
    "ended": ([BEGUN, END, AFTER], Ending("ended", "max_epochs=1 reached")),
    "at its limit": (
        [BEGUN, "nothing to do: the run is at its limit already (max_steps=3 reached)"],
        Ending("ended", "max_steps=3 reached"),
    ),
    "failed": ([BEGUN, *ERROR, "in step 3, epoch 1", AFTER], Ending("failed", "KeyError: 1")),
    "failed in a handler": (
        [BEGUN, *ERROR, "", "During handling of the above exception, another exception occurred:", "",
         TRACEBACK, "  File", "paceline.errors.PacelineError: the loss is not finite", "  fix: look"],
        Ending("failed", "paceline.errors.PacelineError: the loss is not finite"),
    ),
    "failed with a group": (
        [BEGUN, f"  + Exception Group {TRACEBACK}", "  |   File", "  | ExceptionGroup: two", AFTER],
        Ending("failed", None),
    ),
    "failed, then resumed and killed": ([BEGUN, *ERROR, BEGUN, "epoch 1"], Ending("unknown", None)),
    "failed, then resumed": ([BEGUN, *ERROR, BEGUN, END], Ending("ended", "max_epochs=1 reached")),
    "no log": ([], Ending("unknown", None)),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "ending"), LOGS.values(), ids=LOGS)
def test_how_a_run_ended_is_what_its_log_says_last(lines, ending, tmp_path):
    (tmp_path / "log.txt").write_text("".join(f"10:00:00 {line}\n" for line in lines))
    assert read_ending(tmp_path) == ending


def test_a_run_whose_folder_is_held_is_running(tmp_path):
    (tmp_path / "log.txt").write_text(f"10:00:00 {END}\n")
    held = lock.FolderLock()
    held.take(tmp_path)
    assert read_ending(tmp_path).state == "running"
    process = os.fork()
    if process == 0:  # another process knows it by the lock alone
        lock._held_here.clear()
        os._exit(lock.is_held(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    held.release()
    assert read_ending(tmp_path).state == "ended"
    assert lock.is_held(tmp_path / "nothing") is False


def planted(folder):
    trainer = {
        "strategy": "ddp",
        "precision": "bf16",
        "accelerator": "auto",
        "seed": 1,
        "clip_grad_norm": 1,
    }
    rows = rows_of([3.0, "nan", 1.0, "inf"], **{"lr/Adam": 0.1, "val/accuracy": "nan"})
    write_run(folder / "net" / "1", rows, log="10:00:00 warning: slow\n" * 2)
    write_run(folder / "net" / "2", rows_of(range(6)), config={"trainer": trainer})
    (folder / "net" / "2" / "crash-rank-1.txt").touch()
    return [Run(folder / "net" / number) for number in "12"]


def test_values_are_the_last_and_the_best_and_what_is_none_is_null(tmp_path):
    first, second = report_of(summarize(planted(tmp_path))).runs
    loss = first.values["train/loss"]
    assert (loss.last, loss.min, loss.min_step, loss.max, loss.max_step) == (float("inf"), 1.0, 30, 3.0, 10)
    assert (loss.best, loss.best_step) == (1.0, 30)
    assert first.values["val/accuracy"].best_step is first.values["val/accuracy"].min is None
    assert (first.values["lr/Adam"].max, first.values["lr/Adam"].best) == (0.1, None)
    assert (first.steps, first.epochs, first.seconds, first.warnings) == (40, 1, 8.0, {"warning: slow": 2})
    assert (second.steps, second.epochs) == (60, 2)
    assert (first.crash_reports, len(second.crash_reports)) == ([], 1)


def test_only_settings_that_differ_are_listed(tmp_path):
    found = report_of(summarize(planted(tmp_path)))
    assert found.config == [
        ReportedDifference("trainer.seed", [0, 1]),
        ReportedDifference("trainer.clip_grad_norm", [None, 1]),
    ]
    assert found.environment == []


def test_the_command_writes_its_page_only_where_it_is_asked_to(tmp_path, capsys):
    planted(tmp_path)
    app(["report", "net", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in found["runs"]] == ["net/1", "net/2"]
    assert found["runs"][0]["values"]["train/loss"]["last"] == "inf"
    assert not (tmp_path / "report.html").exists()
    app(["report", "net", "--json", "--out", "page.html"], standalone_mode=False)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == found
    assert (printed.err, (tmp_path / "page.html").exists()) == ("page.html\n", True)
