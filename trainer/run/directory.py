"""The folder of a run: ``runs/<name>/<n>/``, never the same one twice, and the files of every run."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ...errors import PacelineError
from ...strategies.launch.job_notes import write_output_to
from ...strategies.launch.launcher import why_not_relaunch
from ...strategies.ranks.collectives import Collectives
from ..checkpoint.files import commit
from ..checkpoint.files.remote_run import RemoteRun, mark_written
from ..faults.thread_stacks import set_stacks_aside
from ..module_parts.model_steps import ModelSteps
from ..module_parts.recorded import HParams
from ..storage.remote import RemoteError
from ..utils.paths import writing
from ..utils.secrets import masked, masked_command, masked_text
from .config_file import note_settings, write_config
from .environment_report import environment_report
from .lock import FolderLock, check_writable
from .numbering import make_run_folder

_OF_EVERY_RUN = {
    *("config.yaml", "env.json", "log.txt", ".lock", ".written", "steps.bin", "tb"),
    *("metrics.jsonl", "metrics.csv", "media", "curves.png"),
}
"""What a run writes before its first step, and loggers at any time."""
for _one in (yaml.representer.SafeRepresenter, yaml.representer.Representer, yaml.SafeDumper, yaml.Dumper):
    if "yaml_representers" in vars(_one):  # else it has its base's
        _one.add_representer(HParams, _one.represent_dict)  # a user's own yaml.safe_dump(module.hparams)


class RunDirectory:
    """Where a run writes: its folder, the lock on it, and its log.

    Lines that are logged before there is a folder are kept for it.

    Args:
        ranks: Rank 0 makes the folder and has the log; the others have a log each.
        run_dir: Where runs are; None: nothing is written.
        quiet: Drop lines for the console and the log.

    Attributes:
        path: The folder; None before it is opened, and where nothing is written.
        remote: Where the folder is sent to: None for one that is no copy of an object store's.
        name: The name of the run, the folder's parent.
    """

    def __init__(self, ranks: Collectives, run_dir: Path | None, quiet: bool = False) -> None:
        self._ranks, self._run_dir, self._quiet = ranks, run_dir, quiet
        self._lock, self._log = FolderLock(), RunLog()
        self._new: list[Path] = []  # what a run that starts fresh has made: its folder, then those above it
        self.path: Path | None = None
        self.remote: RemoteRun | None = None
        self.name = ""
        self.other_settings: list[str] = []  # of a run that continues: what is not as before, in words

    def begin_stage(self, name: str) -> None:
        """A fit or evaluation of a run of this name begins."""
        self.name = name

    @property
    def runs(self) -> Path | None:
        """Where the runs of this name are."""
        return None if self._run_dir is None else self._run_dir / self.name

    @property
    def checkpoints(self) -> Path | None:
        """Where the checkpoints of the run are."""
        return None if self.path is None else self.path / "checkpoints"

    def lock(self, folder: Path) -> None:
        """Hold a run's folder until ``release``; rank 0 does. To be called on all ranks.

        Raises:
            PacelineError: naming the host and process that hold it.
        """
        self._ranks.on_rank_zero(lambda: self.lock_here(folder))

    def lock_here(self, folder: Path) -> None:
        """The same on rank 0 alone."""
        self._lock.take(folder)

    def release(self) -> None:
        """Send what an object store does not have yet, and release all locks."""
        try:
            if self.remote is not None:
                self.remote.send_logs(
                    None if self._ranks.is_global_zero else f"-rank-{self._ranks.rank}.txt"
                )
        except RemoteError as error:
            self.log_line(f"warning: the run's logs are not all sent: {' '.join(str(error).split())}")
        self._lock.release()

    def open(
        self,
        source: Path | None,
        config: dict[str, Any],
        environment: dict[str, Any],
        *,
        in_place: bool = False,
    ) -> None:
        """Continue in the folder of the run that is resumed, or make a new one. To be called on all ranks.

        Args:
            source: The checkpoint that is resumed. A new folder's config.yaml names it as its parent.
            config: The content of config.yaml; in an old folder, what it has instead is kept beside it.
            environment: The content of env.json in a new folder; an old one keeps its own, and beside it
                what is other from here on. ``job`` is that of now.
            in_place: Continue in the folder of ``source``, the newest checkpoint of its run.
        """
        run = source.parent.parent if in_place and source is not None else None
        self.other_settings = []
        continues = self._run_dir is not None and run is not None and self._continue(run)
        self.path = run if continues else None
        if self.runs is not None and self.path is None:
            parent = {"parent": str(source)} if source is not None else {}
            new = [folder for folder in (self.runs, *self.runs.parents) if not folder.exists()]
            self.path = self._ranks.on_rank_zero(lambda: self._make(config | parent, environment))
            self._new = [self.path, *new] if source is None else []
        path = self.path
        self.remote = RemoteRun.of(path)
        if path is not None:
            if self.remote is not None:
                self._write_on_each_machine(path)
            self.lock(path)
            self._ranks.on_rank_zero(lambda: check_writable(path / "checkpoints"))
            if self._ranks.is_global_zero:
                commit.sweep(path / "checkpoints")
                if continues and source is not None:
                    self._note_environment(environment, source.name)
                    self.other_settings = note_settings(path, config, source.name)
        self._log.open(path, self._ranks.rank)

    def _write_on_each_machine(self, path: Path) -> None:
        """An object store's run has a folder on each machine, with the files that make it one."""
        names = ("config.yaml", "env.json")
        texts = self._ranks.on_rank_zero(lambda: [(path / name).read_text("utf-8") for name in names])
        path.mkdir(parents=True, exist_ok=True)
        mark_written(path)
        for name, text in zip(names, texts, strict=True):
            if not (path / name).exists():
                staging = path / f".{name}.{os.getpid()}"
                staging.write_text(text, encoding="utf-8")
                staging.replace(path / name)

    def _continue(self, run: Path) -> bool:
        """Whether a checkpoint's folder is that of a run; what ended its last session is put aside."""

        def prepare() -> bool:
            is_run = (run / "config.yaml").exists()
            if is_run:
                set_stacks_aside(run)
            return is_run

        return self._ranks.on_rank_zero(prepare)

    def _make(self, config: dict[str, Any], environment: dict[str, Any]) -> Path:
        assert self.runs is not None

        def fill(folder: Path) -> None:
            write_config(folder, config)
            write_environment(folder, environment)

        return make_run_folder(self.runs, fill)

    def note_micro_batch(self, step: int, size: int) -> None:
        """Have env.json say from which step on the micro-batches have another size; rank 0 does.

        Args:
            step: The first one that has it, from 1.
            size: In samples, at most.
        """
        if self.path is not None and self._ranks.is_global_zero:
            earlier = read_environment(self.path).get("micro_batches")
            earlier = earlier if isinstance(earlier, list) else []
            try:
                self._change_environment({"micro_batches": [*earlier, [step, size]]})
            except PacelineError as error:  # the run needs no such note
                self.log_line(f"warning: {' '.join(str(error).split())}")

    def _note_environment(self, environment: dict[str, Any], checkpoint: str) -> None:
        """Have env.json say what is other than before from this checkpoint on."""
        assert self.path is not None
        found = read_environment(self.path)
        if not found:
            return  # missing or damaged, which is no reason to end
        earlier = found.get("resumed")
        resumed = earlier if isinstance(earlier, list) else []
        known = {"tensor": 1} | found
        for one in resumed:
            known |= one.get("now", {}) if isinstance(one, dict) else {}
        of_ranks = {"world": environment.get("world"), "tensor": environment.get("tensor", 1)}
        now: dict[str, Any] = masked(_system() | of_ranks)
        other = {name: value for name, value in now.items() if known.get(name) != value}
        # Another job may have begun the run.
        changed = {"job": environment["job"]} if "job" in environment else {}
        if other:
            changed["resumed"] = [*resumed, {"from": checkpoint, "now": other}]
        if changed:
            self._change_environment(changed)

    def _change_environment(self, values: dict[str, Any]) -> None:
        assert self.path is not None
        file = self.path / "env.json"
        if file.exists():
            with writing("the run folder", file):
                _write_json(file, read_environment(self.path) | values)

    @property
    def is_disposable(self) -> bool:
        """Whether the folder is this run's own and holds nothing but what every run begins with.

        That of several ranks is kept: it alone has what the others have printed.
        """
        if not self._new or self._ranks.world_size > 1:
            return False
        found = [path.relative_to(self._new[0]).parts for path in self._new[0].rglob("*")]
        return all(parts[0] in _OF_EVERY_RUN or parts == ("checkpoints",) for parts in found)

    def discard(self) -> None:
        """Remove the folder, and those above it that were made for it and are empty. After ``release``."""
        self._log.open(None)
        if self.remote is not None:
            try:
                self.remote.remove()
            except RemoteError as error:  # the one that ends the run is of more use
                self.log_line(f"warning: the run is left in the store: {' '.join(str(error).split())}")
        shutil.rmtree(self._new[0], ignore_errors=True)
        for above in self._new[1:]:
            with suppress(OSError):
                above.rmdir()
        self.path, self._new = None, []

    def take(self, name: str, path: Path | None) -> None:
        """Continue the log of a run that other processes have ended; its folder is not locked."""
        self.name, self.path = name, path
        self._log.open(path, self._ranks.rank)

    def log_line(self, text: str, *, console: bool = True) -> None:
        """A line for the console (rank 0) and the log.

        Args:
            text: One or more lines.
            console: False: for the log only.
        """
        if not self._quiet:
            self._log.write(text, console=console and self._ranks.is_global_zero)


def run_name(given: str | None, module: Any) -> str:
    """The run's name: as given, else the class of the module, or of its model, with dashes."""
    if isinstance(module, ModelSteps):
        module = module.model
    return given or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(module).__name__).lower()


def _system() -> dict[str, Any]:
    """What a run runs on, as far as numbers can depend on it."""
    import numpy
    import torch

    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": str(torch.accelerator.current_accelerator() or "none"),
    }


def write_environment(folder: Path, more: dict[str, Any]) -> None:
    """env.json: what the run ran on, and ``more``."""
    environment = {
        "command": masked_command(sys.argv),
        "program": [] if why_not_relaunch() else masked_command(sys.orig_argv[1:]),
        "folder": os.getcwd(),
        "user": os.getuid() if hasattr(os, "getuid") else None,
        **_system(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": environment_report(initialise=False),
    }
    environment |= more
    _write_json(folder / "env.json", masked(environment))


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of a run's env.json; one that is missing or damaged is empty."""
    try:
        found = json.loads((folder / "env.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    """In one operation: whoever is killed or reads meanwhile has the old file or the new one."""
    staging = file.with_name(f".{file.name}")
    staging.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    staging.replace(file)


class RunLog:
    """Lines for the console and log.txt. Lines said before there is a folder are kept for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._kept: list[str] = []

    def open(self, folder: Path | None, rank: int = 0) -> None:
        """Write to this folder's log from now on; None: to the console only.

        Rank 0 has log.txt; every other rank has its own log, with everything it prints.
        """
        self._path = None
        if folder is not None:
            self._path = folder / (f"log-rank-{rank}.txt" if rank else "log.txt")
            if rank:
                write_output_to(self._path)
        kept, self._kept = self._kept, []
        for line in kept:
            self._write(line)

    def write(self, text: str, *, console: bool = True) -> None:
        """Print a line above a progress bar, if there is one, and log it."""
        if console:
            bars = sys.modules.get("tqdm")
            if bars is not None:
                bars.tqdm.write(text, file=sys.stdout)
            else:
                print(text)
            sys.stdout.flush()
        self._write(text)

    def _write(self, text: str) -> None:
        if self._path is None:
            self._kept.append(text)
            return
        stamp = time.strftime("%H:%M:%S")
        # A full disk is no reason to end: what matters more raises by itself.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{stamp} {line}\n" for line in masked_text(text).splitlines()))
