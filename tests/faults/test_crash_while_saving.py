"""Whatever happens while a checkpoint is written: what was there stays, and a resumed run ends to the bit.

The crashes are SIGKILL at each operation on the files, one run for each; ``--soak`` takes all of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from helpers.pairwise import soaked
from helpers.ranks import Job, run_ranks

from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("crash_job.py")
SECONDS = 120  # for one run on a machine that is busy
MANY = 240  # for all crashes of one setting
SOAK = 1800
# Devices, background, and which operations: in the default run and under --soak.
SETTINGS = {
    "one": (1, False, "", "every"),  # saved_again writes in the foreground too
    "one-background": (1, True, "kind", "every"),
    "two": (2, False, "", "every"),
    "two-background": (2, True, "kind", "every"),
}


def is_alive(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(process):
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += path.read_text().split()
    return found


def ended(case, folder, deadline=SECONDS, **settings):
    """The exit code of a job, what it printed, its standard error; two ranks have a launcher."""
    folder.mkdir(exist_ok=True)
    launches = case == "train" and settings.get("devices", 1) > 1
    arguments = (JOB, 1, case, folder, json.dumps(settings))
    found = run_ranks(*arguments, folder=folder, seconds=deadline, check=False, launches=launches)
    assert not found.timed_out, found.output
    return found.codes[0], found.stdout, found.stderr


def ends_of(folder, devices, name="end"):
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(devices)]


def checkpoints(folder):
    """Names of the checkpoints, each verified; nothing else lies there but pointers."""
    found = files.finished(folder / "n/1/checkpoints")
    for checkpoint in found:
        verify(checkpoint)
    return [checkpoint.name for checkpoint in found]


def staged(folder):
    return sorted(path.name for path in folder.glob("n/*/checkpoints/.staging-*"))


def skip_unless_soaking(request, *usual):
    """A test's other parameters are for --soak."""
    here = tuple(request.node.callspec.params.values())
    if here not in usual and not request.config.getoption("--soak", default=False):
        pytest.skip("takes --soak")


# -- a crash at every operation ----------------------------------------------------------------


@pytest.fixture(scope="module", params=SETTINGS)
def crashed(request, tmp_path_factory):
    """What came of the crashes of one setting."""
    devices, background, usual, soak = SETTINGS[request.param]
    soaking = request.config.getoption("--soak", default=False)
    sorts = soak if soaking else usual
    if not sorts:
        pytest.skip("takes --soak")
    settings = {"devices": devices, "background": background, "sorts": sorts}
    with crashes(tmp_path_factory, SOAK if soaking else MANY, **settings) as found:
        yield found | {"sorts": sorts}


@contextmanager
def crashes(tmp_path_factory, seconds, **settings):
    """What the job's function of this name has found."""
    memory = Path("/dev/shm")  # SIGKILL loses nothing that was written, and a disk waits for each sync
    if os.access(memory, os.W_OK):
        place = Path(tempfile.mkdtemp(prefix="crashes-", dir=memory))
    else:
        place = tmp_path_factory.mktemp("crashes")
    try:
        code, out, err = ended("crashes", place, seconds, **settings)
        assert code == 0, (out + err)[-4000:]
        yield json.loads((place / "crashes.json").read_text())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def printed(case):
    return (
        f"rank {case['rank']} killed {case['when']} {case['number']}: {case['operation']}\n{case['output']}"
    )


@pytest.mark.fault(2, 4, 5)
def test_the_crashes_are_at_all_operations_of_a_save_and_of_deletions(crashed):
    whole, journals = crashed["whole"], crashed["journals"]
    assert set(whole["codes"]) == {0}, whole["output"]
    assert whole["end"]["pointers"] == {"latest": "step-00000006", "best": "step-00000006"}
    seen = {operation.split()[0] for operation in journals[0]}
    assert seen == {"mkdir", "save_file", "fsync", "open", "write", "rename", "replace", "unlink", "rmdir"}
    assert all({"save_file", "fsync"} <= {o.split()[0] for o in journal} for journal in journals)
    if crashed["sorts"] in ("every", "before"):
        done = [(c["rank"], c["number"]) for c in crashed["cases"] if c["when"] == "before"]
        assert done == [(r, n) for r, journal in enumerate(journals) for n in range(1, len(journal) + 1)]
    for codes in crashed["beyond"]:  # killed at the operation after the last: there is none
        assert set(codes) == {0}


@pytest.mark.fault(2)
def test_all_is_synced_before_a_rename_and_the_folder_after_it(crashed):
    """What SIGKILL cannot show, and a machine that loses power would."""
    for rank, journal in enumerate(crashed["journals"]):
        waiting = set()  # written, and not synced yet
        for number, operation in enumerate(journal):
            kind, place = operation.split(maxsplit=1)
            if kind in ("save_file", "write") and "/.staging-step-" in place:
                waiting.add(place)
            elif kind == "fsync":
                waiting.discard(place)
            elif kind == "rename":
                assert waiting == set()
                assert f"fsync {place}" in journal[:number]
                assert journal[number + 1] == "fsync checkpoints"
        assert (sum("rename" in operation for operation in journal) == 3) == (rank == 0)
        assert waiting == set()


@pytest.mark.fault(2)
def test_each_was_killed_where_it_was_meant_to_be_and_no_rank_outlived_it(crashed):
    for case in crashed["cases"]:
        assert case["codes"][case["rank"]] == -signal.SIGKILL, printed(case)
        assert case["same"], printed(case)
        others = [code for rank, code in enumerate(case["codes"]) if rank != case["rank"]]
        assert None not in others, printed(case)


@pytest.mark.fault(2, 5)
def test_a_crash_leaves_no_checkpoint_that_is_not_whole(crashed):
    for case in crashed["cases"]:
        assert case["before"]["damaged"] == [], printed(case)


@pytest.mark.fault(2)
def test_after_a_crash_a_run_resumes_and_ends_bit_identical(crashed):
    whole = crashed["whole"]["end"]
    assert any(name.startswith("optim.") for name in whole["tensors"])
    for case in crashed["cases"]:
        assert set(case["resumed"]) == {0}, printed(case)
        assert case["end"]["run"] == ("1" if case["before"]["finished"] else "2"), printed(case)
        assert case["end"]["tensors"] == whole["tensors"], printed(case)
        assert case["end"]["state"] == whole["state"], printed(case)
        assert case["end"]["damaged"] == [], printed(case)


@pytest.mark.fault(2)
def test_half_written_folders_are_swept_before_a_run_continues(crashed):
    assert any(case["begin"] for case in crashed["cases"])
    for case in crashed["cases"]:
        found = case["begin"] or case["end"]  # a run that has all its steps does not begin again
        left = [n for n in found["names"] if n.startswith((".staging-", "step-"))]
        assert left == found["finished"], printed(case)
        if case["before"]["finished"]:
            assert case["junk"] == [], printed(case)


@pytest.mark.fault(2)
def test_a_half_written_first_checkpoint_is_swept_at_the_next_start_too(crashed):
    left = [case["name"] for case in crashed["cases"] if case["junk"] and not case["before"]["finished"]]
    assert left == []


def committed(journal):
    """The checkpoints that are there after these operations."""
    found = set()
    for operation in journal:
        if step := re.fullmatch(r"rename checkpoints/\.staging-(step-\d+)", operation):
            found.add(step[1])
        elif step := re.fullmatch(r"unlink checkpoints/(step-\d+)/manifest\.json", operation):
            found.discard(step[1])
    return sorted(found)


@pytest.mark.fault(2, 4, 5)
def test_what_was_committed_before_a_crash_is_there_and_nothing_else(crashed):
    for case in crashed["cases"]:
        done = crashed["journals"][case["rank"]][: case["number"] - (case["when"] != "after")]
        if case["rank"] == 0:
            assert case["before"]["finished"] == committed(done), printed(case)
        else:  # another rank begins to write when the save before is done
            begun = list(dict.fromkeys(re.findall(r"\.staging-(step-\d+)", "\n".join(done))))
            assert set(begun[:-1]) <= set(case["before"]["finished"]), printed(case)


@pytest.mark.fault(2)
def test_a_run_resumes_from_the_newest_that_is_there(crashed):
    for case in crashed["cases"]:
        newest = case["before"]["finished"][-1:]
        said = f"checkpoints/{newest[0]}\n" if newest else "starts fresh"
        assert re.search(rf"resumes from \S*{said}" if newest else said, case["output"]), printed(case)


@pytest.mark.fault(4)
def test_one_that_is_half_deleted_is_not_resumed_from(crashed):
    deleting = [c for c in crashed["cases"] if re.match("(unlink|rmdir) checkpoints/step-", c["operation"])]
    assert {case["operation"].split()[0] for case in deleting} == {"unlink", "rmdir"}
    for case in deleting:
        assert f"checkpoints/{case['operation'].split('/')[1]}\n" not in case["output"], printed(case)
        assert "resumes from" in case["output"], printed(case)


def test_pointers_and_deletions_catch_up_after_a_crash(crashed):
    whole = crashed["whole"]["end"]
    after = [
        f"{case['name']}: {case['end']['names']}, {case['end']['pointers']}"
        for case in crashed["cases"]
        if any(case["end"].get(part) != whole[part] for part in ("finished", "pointers"))
    ]
    assert after == []


# -- a crash while a step is saved again ---------------------------------------------------------


@pytest.fixture(scope="module", params=soaked([1, 3], [1]))
def saved_again(request, tmp_path_factory):
    """Runs that were resumed inside a validation, and crashed while they saved its step again."""
    soaking = request.config.getoption("--soak", default=False)
    sorts = "every" if soaking else "sort"
    settings = {"devices": 1, "background": False, "sorts": sorts, "again": request.param}
    with crashes(tmp_path_factory, SOAK if soaking else MANY, **settings) as found:
        yield found | {"sorts": sorts}


REPLACED = "step-00000002.replaced"


@pytest.mark.fault(34)
def test_the_crashes_are_at_all_operations_of_a_save_that_replaces_another(saved_again):
    whole = saved_again["whole"]
    assert set(whole["codes"]) == {0}, whole["output"]
    done = {case["operation"] for case in saved_again["cases"]}
    assert "rename checkpoints/.staging-step-00000002" in done
    assert f"rmdir checkpoints/{REPLACED}" in done
    assert f"rename checkpoints/{REPLACED.removesuffix('.replaced')}" in done
    assert f"unlink checkpoints/{REPLACED}/manifest.json" in done
    assert {tuple(case["codes"]) for case in saved_again["cases"]} == {(-signal.SIGKILL,)}


@pytest.mark.fault(34)
def test_the_checkpoint_that_is_replaced_or_the_new_one_is_always_there(saved_again):
    found = [case["before"]["finished"] for case in saved_again["cases"]]
    assert all(names in (["step-00000002"], [REPLACED]) for names in found), found
    assert [REPLACED] in found
    assert all(case["before"]["damaged"] == [] for case in saved_again["cases"])


@pytest.mark.fault(34)
def test_a_run_that_crashed_there_resumes_in_its_folder_and_ends_bit_identical(saved_again):
    whole = saved_again["whole"]["end"]
    for case in saved_again["cases"]:
        assert case["resumed"] == [0], printed(case)
        assert "resumes from" in case["output"], printed(case)
        assert f"checkpoints/{REPLACED}" not in case["output"], printed(case)
        for part in ("run", "tensors", "state", "finished", "names", "pointers"):
            assert case["end"][part] == whole[part], printed(case)


# -- one rank of two -----------------------------------------------------------------------------


@pytest.mark.fault(3, 5)
@pytest.mark.parametrize(
    ("rank", "kind", "part", "background"),
    [
        (1, "save_file", "staging-step-00000006", True),
        (0, "save_file", "staging-step-00000006", True),
        (1, "fsync", "staging-step-00000006", False),
    ],
)
def test_a_rank_killed_in_a_save_ends_all_and_is_named(rank, kind, part, background, tmp_path, request):
    skip_unless_soaking(
        request,
        (0, "rename", "staging-step-00000006", False),
        (1, "save_file", "staging-step-00000006", True),
    )
    checkpoint = {"every": 3, "keep": None, "background": background}
    code, _, err = ended("train", tmp_path, devices=2, checkpoint=checkpoint, kill=[rank, kind, part])
    assert code == 128 + signal.SIGKILL
    assert f"rank {rank} ended with signal SIGKILL" in err
    assert checkpoints(tmp_path) == ["step-00000003"]


# -- the disk is full ------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB, and the arguments that make do without one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "paceline-test", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, timeout=20).returncode == 0
    except OSError:
        mounted = False
    try:
        yield place, {} if mounted else {"limit": 60_000}
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, timeout=20)


def bytes_of(text):
    number, unit = text.split()
    return float(number) * (1000 if unit == "kB" else 1)


WIDE = {"width": 5000, "epochs": 2}  # 25,001 parameters: a checkpoint of 300 kB, two or three fit


@pytest.mark.fault(6, 10)
@pytest.mark.parametrize(
    ("devices", "background"),
    [(1, True), (1, False), (2, True), pytest.param(2, False, marks=pytest.mark.soak)],
)
def test_a_full_disk_ends_the_run_with_numbers_and_keeps_what_is_there(
    devices, background, small_disk, tmp_path, request
):
    skip_unless_soaking(request, (1, True), (2, False))
    disk, limit = small_disk
    checkpoint = {"every": 1, "keep": None, "background": background}
    settings = {"devices": devices, "checkpoint": checkpoint, **WIDE, **limit}
    code, _, err = ended("train", tmp_path, disk=str(disk), **settings)
    assert code == 1, err[-3000:]
    assert "saving the checkpoint failed; partial files were removed" in err
    printed = re.search(r"No space left on device; ([0-9.]+ k?B) needed, ([0-9.]+ k?B) free", err)
    assert limit or printed, err[-3000:]
    assert limit or bytes_of(printed[1]) > bytes_of(printed[2]), printed[0]
    assert staged(disk) == []
    reached = {int((tmp_path / f"steps-{rank}").read_text()) for rank in range(devices)}
    assert len(reached) == 1  # all ranks end at one step
    if not limit:
        kept = checkpoints(disk)
        assert max(reached) <= len(kept) + 2  # reported at the boundary after the one that failed
        assert len(kept) >= 2
        assert kept == [f"step-{step:08d}" for step in range(1, len(kept) + 1)]
        assert "make room" in err


@pytest.mark.fault(6, 10)
@pytest.mark.parametrize(
    ("devices", "background"),
    [(1, True), (1, False), (2, False), pytest.param(2, True, marks=pytest.mark.soak)],
)
def test_a_full_disk_is_warned_of_once_for_each_save_and_training_continues(
    devices, background, small_disk, tmp_path, request
):
    skip_unless_soaking(request, (2, True))
    disk, limit = small_disk
    checkpoint = {"every": 1, "keep": None, "background": background, "on_save_error": "warn"}
    settings = {"devices": devices, "checkpoint": checkpoint, **WIDE, **limit}
    code, out, err = ended("train", tmp_path, disk=str(disk), whole=not limit, **settings)
    assert code == 0, err[-3000:]
    warned = re.findall(r"warning: saving the checkpoint failed.*?(step-\d+)", out)
    kept = checkpoints(disk)
    assert warned == [f"step-{step:08d}" for step in range(len(kept) + 1, 9)]
    assert staged(disk) == []
    if not limit:
        assert len(kept) >= 2
        assert len(checkpoints(tmp_path / "whole")) == 8
        assert ends_of(tmp_path, devices) == ends_of(tmp_path, devices, "whole")


def test_a_disk_without_one_free_byte_is_warned_of_too(small_disk, tmp_path):
    disk, limit = small_disk
    if limit:
        pytest.skip("takes a disk of its own")
    checkpoint = {"every": 1, "keep": None, "on_save_error": "warn"}
    settings = {"fill": True, "epochs": 30, "checkpoint": checkpoint, "pause": 0.002}
    code, out, err = ended("train", tmp_path, disk=str(disk), **settings)
    assert code == 0, err[-3000:]
    assert ends_of(tmp_path, 1)[0]["steps"] == 120
    assert len(set(re.findall(r"warning: saving the checkpoint failed.*?(step-\d+)", out))) > 100
    assert checkpoints(disk)  # what was there before stays


# -- the writer fails ------------------------------------------------------------------------------


@pytest.mark.fault(6)
def test_a_writer_that_fails_ends_the_run_at_the_next_step_boundary(tmp_path):
    checkpoint = {"every": 3, "keep": None}
    settings = {"checkpoint": checkpoint, "settle": True}
    code, _, err = ended("train", tmp_path, fail=[0, 3], **settings)
    assert code == 1
    assert "OSError: [Errno 30] Read-only file system" in err
    assert "CheckpointError" in err
    assert (tmp_path / "steps-0").read_text() == "7"  # it was step 6 that was not saved
    assert checkpoints(tmp_path) == ["step-00000003"]
    assert staged(tmp_path) == []


def test_a_writer_that_fails_on_one_rank_ends_all_and_is_named(tmp_path, soak):
    checkpoint = {"every": 3, "keep": None}
    settings = {"checkpoint": checkpoint, "devices": 2, "settle": True, "epochs": 100}
    code, _, err = ended("train", tmp_path, fail=[1, 3], **settings)
    assert code == 1
    assert re.search(r"on rank 1: OSError: .*Read-only file system", err)
    assert int((tmp_path / "steps-0").read_text()) < 400
    assert checkpoints(tmp_path) == ["step-00000003"]
    assert staged(tmp_path) == []


@pytest.mark.parametrize("background", [True, False])
def test_a_checkpoint_that_cannot_be_deleted_is_reported_and_ends_no_run(background, tmp_path, request):
    """As on an immutable file, or a network disk that hangs on to it."""
    skip_unless_soaking(request, (False,))
    checkpoint = {"every": 4, "keep": 1, "background": background, "on_save_error": "warn"}
    code, out, err = ended("train", tmp_path, checkpoint=checkpoint, keeps="step-00000004/")
    assert code == 0, err[-3000:]
    assert "Traceback" not in err
    assert re.search("warning.*step-00000004", out)
    assert checkpoints(tmp_path)[-1] == "step-00000012"


# -- two runs, one folder --------------------------------------------------------------------------


@pytest.mark.fault(28)
def test_a_second_run_in_a_folder_is_refused_and_a_killed_one_leaves_it_free(tmp_path):
    """With loader workers, which outlive a killed run for some seconds."""
    second, third = tmp_path / "second", tmp_path / "third"
    settings = {"disk": str(tmp_path), "workers": 2, "checkpoint": {"every": 2, "keep": None}}

    def step():
        return int((tmp_path / "steps-0").read_text())

    training = json.dumps({"epochs": 1000, "pause": 0.05, **settings})
    with Job(JOB, 1, "train", tmp_path, training, folder=tmp_path, seconds=5 * SECONDS) as first:
        (pid,), deadline = first.pids, time.monotonic() + SECONDS
        while not files.finished(tmp_path / "n/1/checkpoints"):
            assert is_alive(pid), first.printed()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        code, _, err = ended("train", second, resume="latest", **settings)
        assert code == 1
        assert "another run is active in this folder" in err
        assert f"process {pid} on {socket.gethostname()}" in err
        reached = step()
        while step() < reached + 4:
            assert is_alive(pid), first.printed()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while len(children(pid)) < 2:  # between two epochs there are none
            assert time.monotonic() < deadline
        os.kill(pid, signal.SIGKILL)
        assert first.code() == -signal.SIGKILL
        epochs = -(-step() // 4) + 1
        code, out, err = ended("train", third, resume="latest", epochs=epochs, whole=True, **settings)
        assert code == 0, err[-3000:]
    assert f"resumes from {tmp_path}/n/1/checkpoints" in out
    assert ends_of(third, 1) == ends_of(third, 1, "whole")
    assert checkpoints(tmp_path) == [f"step-{step:08d}" for step in range(2, 4 * epochs + 1, 2)]
    assert staged(tmp_path) == []
