"""Trains while something happens to its checkpoints: a kill, a full disk, a write that fails.

python crash_job.py CASE FOLDER SETTINGS   (CASE: a function of this file; SETTINGS: JSON, its arguments)

``crashes`` forks a process for each run, from one that has torch and has no thread: that takes a tenth of
the time of a new interpreter. Its ranks are given their places as torchrun gives them.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from helpers.environment import rank_variables
from helpers.ports import free_port
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies.launch import process_group
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

SCORES = {2: 2.0, 4: 1.0, 6: 3.0}  # by step: saves at 2, the best; at 3; at 6, which lets go of both
SECONDS = 120  # for a run of a fork on a machine that is busy
SURVIVE = 60  # for the ranks that one was taken from


class Net(TrainModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(3, width), nn.Dropout(0.3), nn.Linear(width, 1)

    def training_step(self, batch):
        return self.last(self.drop(self.first(batch[0]))).square().mean()

    def validation_step(self, batch):
        self.log("score", SCORES.get(self._trainer.global_step, 0.0))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader(samples: int, size: int, **arguments: Any) -> DataLoader:
    data = TensorDataset(torch.randn(samples, 3, generator=torch.Generator().manual_seed(1)))
    return DataLoader(data, size, **arguments)


def trainer_for(folder: Path, checkpoint: Checkpoint, *more: Callback, **settings: Any) -> Trainer:
    usual = {"name": "n", "accelerator": "cpu", "progress": False, "loggers": False, "run_dir": folder}
    return Trainer(**(usual | settings), callbacks=[checkpoint, *more])


def digest(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Each tensor's content, to the bit."""
    return {
        name: hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16]
        for name, value in sorted(tensors.items())
    }


def look(run: Path, whole: bool = True) -> dict[str, Any]:
    """What is in a run's checkpoints folder.

    Args:
        whole: Read the newest checkpoint too.
    """
    folder = run / "checkpoints"
    found: dict[str, Any] = {"finished": [], "damaged": [], "pointers": {}}
    found["names"] = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    for checkpoint in files.finished(folder):
        found["finished"].append(checkpoint.name)
        try:
            verify(checkpoint)
        except files.CheckpointError as error:
            found["damaged"].append(str(error))
    for name in ("latest", "best"):
        with suppress(FileNotFoundError):
            found["pointers"][name] = (folder / name).read_text().strip()
    if whole and found["finished"]:
        newest = folder / found["finished"][-1]
        stored = [safetensors.torch.load_file(path) for path in newest.glob("*.safetensors")]
        found["tensors"] = digest({name: value for part in stored for name, value in part.items()})
        state = json.loads((newest / "state.json").read_text())
        del state["counters"]["elapsed"]
        found["state"] = {part: state[part] for part in ("counters", "ranks")}
    return found


# -- the operations ----------------------------------------------------------------------------


class Operations:
    """Counts what this process does to the files under ``checkpoints``, and kills it at one of them.

    Args:
        journal: Where each operation is noted before it is done.
        at: The number of the operation to be killed at, from 1; 0 for none.
        when: ``"before"`` it, ``"after"`` it, or in its middle, ``"half"``.
    """

    def __init__(self, journal: Path, at: int, when: str) -> None:
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.at, self.when, self.count = at, when, 0
        self.lock = threading.Lock()

    def do(self, kind: str, path: Any, operation: Callable[[], Any], half: Any = None) -> Any:
        path = Path(os.path.abspath(path))
        if "checkpoints" not in path.parts:
            return operation()
        with self.lock:
            self.count += 1
            killed = self.count == self.at
            place = "/".join(path.parts[path.parts.index("checkpoints") :])
            os.write(self.journal, f"{kind} {place}\n".encode())
        if not killed:
            return operation()
        if self.when == "after":
            with suppress(OSError):  # one that fails has ended too
                operation()
        elif self.when == "half":
            half()
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Put this object before the system's calls that checkpoints are written and deleted with."""

        def of_path(name: str) -> None:
            original = getattr(os, name)

            def patched(path: Any, *args: Any, **named: Any) -> Any:
                place, within = os.fspath(path), named.get("dir_fd", named.get("src_dir_fd"))
                if within is not None:
                    place = os.path.join(os.readlink(f"/proc/self/fd/{within}"), place)
                return self.do(name, place, lambda: original(path, *args, **named))

            setattr(os, name, patched)

        for name in ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "truncate", "link"):
            of_path(name)
        fsync, save_file, io_open = os.fsync, safetensors.torch.save_file, io.open

        def patched_fsync(descriptor: Any) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self.do("fsync", os.readlink(f"/proc/self/fd/{number}"), lambda: fsync(number))

        def patched_save(tensors: Any, path: Any, *args: Any, **named: Any) -> None:
            def half() -> None:
                save_file(tensors, path, *args, **named)
                with io_open(path, "rb+") as file:
                    file.truncate(os.path.getsize(path) // 2)

            self.do("save_file", path, lambda: save_file(tensors, path, *args, **named), half)

        def patched_open(path: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if isinstance(path, int) or not set(mode) & set("wax+"):
                return io_open(path, mode, *args, **named)
            opened = self.do("open", path, lambda: io_open(path, mode, *args, **named))
            return Written(self, path, opened)

        os.fsync, safetensors.torch.save_file = patched_fsync, patched_save
        io.open = builtins.open = patched_open


class Written:
    """A file that is open for writing; each write is an operation."""

    def __init__(self, operations: Operations, path: Any, file: Any) -> None:
        self._operations, self._path, self._file = operations, path, file

    def write(self, data: Any) -> int:
        def part(length: int) -> int:
            written: int = self._file.write(data[:length])
            self._file.flush()
            return written

        whole = len(data)
        return self._operations.do("write", self._path, lambda: part(whole), lambda: part(whole // 2))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()


# -- one process for many runs -----------------------------------------------------------------


def forked(work: Callable[[], None], output: Path, place: dict[str, str]) -> int:
    """A process that does ``work`` and ends as a rank does; its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ.update(place)
        work()
        process_group._leave()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ends(processes: list[int], first: float) -> list[int | None]:
    """How each ended: an exit code, a signal's number below 0, None where it had to be ended.

    Args:
        first: Seconds for all of them; once one was killed the others have ``SURVIVE``.
    """
    codes: list[int | None] = [None] * len(processes)
    left, deadline, killed = set(range(len(processes))), time.monotonic() + first, False
    while left and time.monotonic() < deadline:
        for index in list(left):
            process, status = os.waitpid(processes[index], os.WNOHANG)
            if process:
                codes[index] = os.waitstatus_to_exitcode(status)
                left.remove(index)
                if codes[index] == -signal.SIGKILL and not killed:
                    killed, deadline = True, min(deadline, time.monotonic() + SURVIVE)
        time.sleep(0.003)
    for index in left:
        os.kill(processes[index], signal.SIGKILL)
        os.waitpid(processes[index], 0)
    return codes


class Begin(Callback):
    """Notes which files exist when a resumed run begins to train."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def on_fit_start(self, trainer):
        if trainer.is_global_zero:
            (self.place / "begin.json").write_text(json.dumps(look(self.place / "n/1", whole=False)))


class Cut(Callback):
    """SIGTERM inside the first validation: it is repeated after a resume, and its step is saved again."""

    def on_validation_step_end(self, trainer, output, batch, batch_idx):
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


class Bench:
    """Runs of one setting, each in separate processes.

    Args:
        again: The runs are resumed inside a validation, and save its step again; so many are kept.
    """

    def __init__(self, folder: Path, devices: int, background: bool, again: int | None = None) -> None:
        self.folder, self.devices, self.background, self.again = folder, devices, background, again
        if again is not None:
            self.fit("cut")

    def begin(self, name: str, kill: tuple[int, int, str] = (0, 0, "")) -> Any:
        """Train in the new folder ``name``, and note its operations. How the ranks ended."""
        if self.again is None:
            return self.fit(name, kill=kill)
        shutil.copytree(self.folder / "cut/n", self.folder / name / "n")
        return self.fit(name, "latest", kill=kill)

    def fit(self, name: str, resume: str | None = None, kill: tuple[int, int, str] = (0, 0, "")) -> Any:
        """Train in the folder ``name``. How the ranks ended.

        Args:
            resume: ``"auto"`` after a crash; else its operations are noted.
            kill: Rank, number of its operation, and when.
        """
        place = self.folder / name
        place.mkdir(exist_ok=True)
        port = free_port()
        started = []
        for rank in range(self.devices):
            several = rank_variables(rank, self.devices, port) if self.devices > 1 else {}
            at, when = kill[1:] if kill[0] == rank else (0, "")

            def work(rank: int = rank, at: int = at, when: str = when) -> None:
                self.train(place, rank, resume, at, when)

            started.append(forked(work, place / f"output-{rank}.txt", several))
        return ends(started, SECONDS)

    def train(self, place: Path, rank: int, resume: str | None, at: int, when: str) -> None:
        runs, crashed = place / "n", resume == "auto"
        if crashed and rank == 0:
            (place / "before.json").write_text(json.dumps(look(runs / "1", whole=False)))
        if not crashed:
            Operations(place / f"journal-{rank}.txt", at, when).watch()
        ranks = {"devices": 2, "strategy": "ddp"} if self.devices > 1 else {}
        kept: dict[str, Any] = {"every": 3, "monitor": "score", "mode": "max", "keep": 1}
        if self.again is not None:
            kept = {"every": "1ep", "keep": self.again}
        torch.manual_seed(3)
        more = [*[Begin(place)] * crashed, *[Cut()] * (place.name == "cut")]
        checkpoint = Checkpoint(**kept, background=self.background)
        trainer = trainer_for(place, checkpoint, *more, max_epochs=3, **ranks)
        size = 4 // self.devices
        trainer.fit(Net(), loader(8, size, shuffle=True), loader(2, 1), resume=resume)
        if rank == 0:
            (place / "end.json").write_text(json.dumps(look(trainer.folder) | {"run": trainer.folder.name}))

    def result(self, name: str) -> dict[str, Any]:
        place = self.folder / name
        found: dict[str, Any] = {}
        for part in ("before", "begin", "end"):
            path = place / f"{part}.json"
            found[part] = json.loads(path.read_text()) if path.exists() else {}
        found["junk"] = sorted(str(p.relative_to(place)) for p in place.glob("n/*/checkpoints/.staging-*"))
        found["output"] = "".join(p.read_text()[-2500:] for p in sorted(place.glob("output-*.txt")))
        return found


def crashes(folder: Path, devices: int, background: bool, sorts: str, again: int | None = None) -> None:
    """Crash runs at their operations and resume each; what came of it goes to ``crashes.json``.

    Args:
        sorts: Which operations: ``"every"`` one, before, during and after it; ``"before"`` every
            one; one of each ``"sort"``, which is a kind and the role of the file; one of each ``"kind"``,
            on the last rank that does it.
        again: See ``Bench``. The operations are those before the second save.
    """
    warm_up(folder / "warm", devices)
    bench = Bench(folder, devices, background, again)
    codes = bench.begin("whole")
    whole = bench.result("whole") | {"codes": codes}
    journals = [(folder / f"whole/journal-{rank}.txt").read_text().splitlines() for rank in range(devices)]
    cases = []
    for rank, journal in enumerate(journals):
        considered = journal
        if again is not None:
            considered = journal[: journal.index("mkdir checkpoints/.staging-step-00000004")]
        later = {kind for other in journals[rank + 1 :] for kind in kinds(other)}
        for number, operation, when in chosen(considered, sorts):
            if sorts == "kind" and operation.split()[0] in later:
                continue
            name = f"rank-{rank}-{number}-{when}"
            codes = bench.begin(name, kill=(rank, number, when))
            done = (folder / name / f"journal-{rank}.txt").read_text().splitlines()
            resumed = bench.fit(name, resume="auto")
            about = {"name": name, "rank": rank, "number": number, "when": when, "operation": operation}
            about |= {"codes": codes, "resumed": resumed, "same": kinds(done) == kinds(journal[:number])}
            cases.append(about | bench.result(name))
    lengths = [len(journal) for journal in journals]
    beyond = [bench.begin(f"beyond-{r}", (r, n + 1, "before")) for r, n in enumerate(lengths)]
    found = {"whole": whole, "journals": journals, "cases": cases, "beyond": beyond}
    (folder / "crashes.json").write_text(json.dumps(found))


def warm_up(folder: Path, devices: int) -> None:
    """Import what a run imports, so that no fork has to."""
    trainer = trainer_for(folder, Checkpoint(3), max_epochs=1)
    trainer.fit(Net(), loader(8, 4), loader(2, 1))
    if devices > 1:
        for name in (
            "torch.distributed.checkpoint",
            "paceline.strategies.ddp",
            "paceline.strategies.tensors.checkpoint_shards",
        ):
            importlib.import_module(name)
    deadline = time.monotonic() + SECONDS
    while len(os.listdir("/proc/self/task")) > 1:  # one that was joined may still be on its way out
        assert time.monotonic() < deadline, "a process with threads cannot be forked"
        time.sleep(0.01)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy what it looks at


def chosen(journal: list[str], sorts: str) -> list[tuple[int, str, str]]:
    """(number, operation, when) of the crashes to be."""
    last, last_of_kind = {}, {}
    for number, operation in enumerate(journal, 1):
        last[sort_of(operation)] = last_of_kind[operation.split()[0]] = number
    result = []
    for number, operation in enumerate(journal, 1):
        kind, typical = operation.split()[0], last[sort_of(operation)] == number
        if sorts in ("every", "before") or (typical and (sorts == "sort" or last_of_kind[kind] == number)):
            result.append((number, operation, "before"))
            if kind in ("write", "save_file") and (sorts != "before" or typical):
                result.append((number, operation, "half"))
            if sorts == "every":
                result.append((number, operation, "after"))
    return result


def kinds(journal: list[str]) -> list[str]:
    """Without the files: ``rmtree`` deletes them in any order."""
    return [operation.split()[0] for operation in journal]


def sort_of(operation: str) -> str:
    """Operations of one kind on files of one role are of one sort."""
    return re.sub(r"[0-9]+", "#", operation)


# -- one run -----------------------------------------------------------------------------------


class Steps(Callback):
    """Notes how far this rank came, and waits a little in each step.

    Args:
        settle: Wait in each step for the checkpoint that is being written.
    """

    def __init__(self, folder: Path, pause: float, settle: bool) -> None:
        self.folder, self.pause, self.settle = folder, pause, settle

    def on_step_start(self, trainer, batches):
        time.sleep(self.pause)
        for thread in threading.enumerate():
            if self.settle and thread.name == "checkpoint":
                thread.join()

    def on_step_boundary(self, trainer):
        path = self.folder / f"steps-{trainer.rank}"
        path.with_suffix(".new").write_text(str(trainer.global_step))
        path.with_suffix(".new").replace(path)


def train(
    folder: Path,
    disk: str | None = None,
    devices: int = 1,
    resume: str | None = None,
    checkpoint: dict[str, Any] | None = None,
    width: int = 4,
    workers: int = 0,
    epochs: int = 3,
    pause: float = 0.0,
    settle: bool = False,
    kill: list[Any] | None = None,
    fail: list[int] | None = None,
    keeps: str | None = None,
    limit: int | None = None,
    fill: bool = False,
    whole: bool = False,
) -> None:
    """Train once; ``end-RANK.json`` says how it ended where it ended well.

    Args:
        disk: The folder for runs; None for ``folder``.
        checkpoint: Arguments of the callback.
        kill: Rank, kind, part of a path: the first such operation kills the rank; when is in ``killed``.
        fail: Rank and number of its call of ``save_file`` from which on it raises.
        keeps: Part of the path of a file that cannot be deleted.
        limit: The greatest size of a file.
        fill: Fill the disk with another file when the first checkpoint is there.
        whole: Train a second time, elsewhere and from the start.
    """
    rank = int(os.environ.get("RANK", 0))
    if "RANK" in os.environ or devices == 1:
        if kill is not None and kill[0] == rank:
            kill_at(folder, *kill[1:])
        if fail is not None and fail[0] == rank:
            fail_from(fail[1])
    if keeps is not None:
        refuse_to_delete(keeps)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    callbacks: list[Callback] = [Steps(folder, pause, settle)]
    if fill:
        callbacks.append(Filler(Path(disk)))
    ranks = {"devices": devices, "strategy": "ddp"} if devices > 1 else {}
    runs = Path(disk or folder)
    for place, start in [(runs, resume), (folder / "whole", None)][: 2 if whole else 1]:
        trainer = trainer_for(
            place, Checkpoint(**(checkpoint or {})), *callbacks, max_epochs=epochs, seed=5, **ranks
        )
        torch.manual_seed(3)
        module = Net(width)
        data = loader(16, 4 // devices, shuffle=True, num_workers=workers)
        trainer.fit(module, data, loader(2, 1), resume=start)
        found = {"steps": trainer.global_step, "weights": digest(module.state_dict())}
        (folder / f"{'whole' if place != runs else 'end'}-{trainer.rank}.json").write_text(
            json.dumps(found)
        )


class Filler(Callback):
    """Leaves no byte of a disk free, once a checkpoint is there."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def on_step_end(self, trainer, outputs):
        ballast = self.disk / "ballast"
        if trainer.is_global_zero and trainer.global_step == 3 and not ballast.exists():
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass


def kill_at(folder: Path, kind: str, part: str) -> None:
    """SIGKILL for this process during (or before) the first such operation."""

    class Kill(Operations):
        def do(self, found: str, path: Any, operation: Callable[[], Any], half: Any = None) -> Any:
            if found == kind and part in str(path) and "checkpoints" in str(path):
                if half is not None:
                    half()
                os.kill(os.getpid(), signal.SIGKILL)
            return operation()

    Kill(Path(os.devnull), 0, "").watch()


def fail_from(number: int) -> None:
    """Let ``save_file`` raise from its call ``number`` on."""
    save_file, calls = safetensors.torch.save_file, 0

    def failing(*args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(30, "Read-only file system")
        save_file(*args, **named)

    safetensors.torch.save_file = failing


def refuse_to_delete(part: str) -> None:
    """Let the system refuse to delete files whose path has this part."""

    class Refuse(Operations):
        def do(self, found: str, path: Any, operation: Callable[[], Any], half: Any = None) -> Any:
            if found == "unlink" and part in str(path):
                raise PermissionError(1, "Operation not permitted", str(path))
            return operation()

    Refuse(Path(os.devnull), 0, "").watch()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]), **json.loads(sys.argv[3]))
