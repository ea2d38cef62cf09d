"""Two steps of a run again, on its own ranks, every tensor on the way kept; and the first that differs.

The script of the run is started again, with its own strategy and ranks. It resumes from the newest
checkpoint before the first of the steps, keeps the tensors of each rank, and ends after the last of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...callbacks import Callback
from ...common.checksums import crc32
from ...errors import PacelineError
from .diff import ROUNDING, FirstStep
from .replay import checkpoint_before
from .started_command import Command, outside_a_launch

VARIABLE = "PACELINE_TRACE"
"""Names what a script is asked for; with it ``paceline.Trainer`` is a ``TraceTrainer``."""
_MOST_NUMBERS = 2**20  # of a tensor that are kept; of a larger one as many, evenly spaced
_STAGES = ("weight before", "batch", "output of", "loss", "gradient of", "weight after")
_OF_LAYOUT = ("batch", "output of", "loss")  # not the same where ranks or micro-batches are others


@dataclass(frozen=True)
class TraceRequest:
    """What is to be kept; the script gets it through the environment.

    Args:
        run: The run's folder.
        first, last: The steps, from 1.
        fit: Which ``fit`` of the script it was.
        out: The folder for what the ranks keep.
        same_code: Whether the script is the run's own: it must build the run's weights then.
        accelerator: Where to compute; None: where the script says.
    """

    run: str
    first: int
    last: int
    fit: int
    out: str
    same_code: bool = True
    accelerator: str | None = None


def requested() -> TraceRequest:
    """What this process was asked for."""
    return TraceRequest(**json.loads(os.environ[VARIABLE]))


class Trace(Callback):
    """Keeps the tensors of some steps of this rank: batches, outputs, losses, gradients, weights.

    Args:
        request: Which steps, and where to.
    """

    def __init__(self, request: TraceRequest) -> None:
        self._request = request
        self._step = 0
        self._rows: list[dict[str, Any]] = []
        self._hooks: list[Any] = []

    def on_fit_start(self, trainer: Any) -> None:
        for name, part in trainer.module.named_modules():
            if name:
                self._hooks.append(part.register_forward_hook(self._watch(name, type(part).__name__)))

    def _watch(self, name: str, kind: str) -> Any:
        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            if self._step and torch.is_grad_enabled():
                for path, tensor in tensors_in(output):
                    self._keep("output of", name + path, tensor, kind)

        return keep

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        step = trainer.global_step + 1
        self._step = step if self._request.first <= step <= self._request.last else 0
        if self._step == self._request.first:
            self._keep_weights(trainer, "weight before")
        if self._step:
            for number, batch in enumerate(batches):
                for path, tensor in tensors_in(batch):
                    self._keep("batch", f"{number}{path}", tensor)

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        gradients = trainer.strategy.weights.full_gradients(trainer.module) if self._step else {}
        for name, gradient in gradients.items():
            self._keep("gradient of", name, gradient)

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        if not self._step:
            return
        for number, (loss, _) in enumerate(trainer.loop.step_facts().losses):
            self._keep("loss", str(number), torch.as_tensor(loss))
        self._keep_weights(trainer, "weight after")
        self._step = 0
        if trainer.global_step == self._request.last:
            self._rows.sort(key=lambda row: (row["step"], _STAGES.index(row["stage"])))
            torch.save(self._rows, Path(self._request.out) / f"rank-{trainer.rank}.pt")
            trainer.stop("the steps are traced")

    def on_teardown(self, trainer: Any, stage: str) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _keep_weights(self, trainer: Any, stage: str) -> None:
        for name, tensor in trainer.strategy.weights.full_tensors(trainer.module).items():
            if not tensor.is_meta:
                self._keep(stage, name, tensor)

    def _keep(self, stage: str, name: str, tensor: Tensor, kind: str = "") -> None:
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        flat = tensor.to("cpu", copy=True).contiguous().flatten()
        stride = -(-flat.numel() // _MOST_NUMBERS) or 1
        self._rows.append(
            {
                "step": self._step,
                "stage": stage,
                "name": name,
                "kind": kind,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype),
                "checksum": crc32(flat.view(torch.uint8).numpy().data),
                "values": flat[::stride].clone(),
            }
        )


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested lists, tuples, mappings and objects' attributes, each with its path.

    Example:
        >>> [path for path, tensor in tensors_in({"image": torch.ones(1), "more": [torch.ones(2)]})]
        ["['image']", "['more'][0]"]
    """
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors_in(one, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from tensors_in(one, f"{path}[{number}]")


def trace(
    run: Path, command: Command, first: int, last: int, code: Path | None, accelerator: str | None
) -> list[list[Any]]:
    """What each rank of a run keeps of some steps.

    Args:
        run: The run's folder.
        command: How it was started.
        first: The first of the steps, from 1.
        last: The last of them.
        code: The folder to start its command in, where its modules are looked for first; None: the one
            where it was started.
        accelerator: Where to compute; None: where the script says.

    Returns:
        By rank, the rows of ``Trace``.

    Raises:
        PacelineError: when the script cannot be started again, or ends before the steps.
    """
    folder = Path(command.folder) if code is None else code.resolve()
    if not folder.is_dir():
        raise PacelineError(
            "the folder to start the run's command in does not exist",
            code="replay-not-possible",
            where=str(folder),
            fix="--code A_DIR B_DIR names the folders to start both in",
        )
    program = [_moved(word, Path(command.folder), folder) for word in command.program]
    with tempfile.TemporaryDirectory() as out:
        request = TraceRequest(str(run.resolve()), first, last, command.fit, out, code is None, accelerator)
        variables = outside_a_launch()
        if code is not None:
            paths = [str(folder), *filter(None, [variables.get("PYTHONPATH")])]
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        ended = subprocess.run(
            [sys.executable, "-u", *program],
            cwd=folder,
            env=variables | {VARIABLE: json.dumps(vars(request))},
            capture_output=True,
            text=True,
            check=False,
        )
        files = sorted(Path(out).glob("rank-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
        if ended.returncode or not files:
            raise PacelineError(
                f"the run cannot be repeated up to step {last}",
                code="replay-not-possible",
                where=f"{run}, started again in {folder}: python {' '.join(program)}",
                got="\n".join((ended.stderr or ended.stdout).strip().splitlines()[-12:]) or "no output",
            )
        return [torch.load(path, weights_only=True) for path in files]


def _moved(word: str, old: Path, new: Path) -> str:
    """A path inside of one folder, inside of the other; anything else as it is."""
    path = Path(word)
    return str(new / path.relative_to(old)) if path.is_absolute() and path.is_relative_to(old) else word


def source_of(request: TraceRequest) -> Path | None:
    """The checkpoint to begin from; None: the run's beginning."""
    return checkpoint_before(Path(request.run), request.first)[0]


@dataclass
class FirstTensor:
    """The first tensor that differs.

    Attributes:
        step: In which step.
        stage, name: ``"gradient of"``, ``"0.weight"``.
        rank: Of both runs.
        how: By how much, in words.
    """

    step: int
    stage: str
    name: str
    rank: int
    ranks: int
    how: str

    def __str__(self) -> str:
        where = f" on rank {self.rank}" if self.ranks > 1 else ""
        return f"first tensor: step {self.step}, {self.stage} {self.name}{where}: {self.how}"


def first_difference(a: list[list[Any]], b: list[list[Any]]) -> FirstTensor | None:
    """The first tensor that differs, in the order of computation.

    Runs of other ranks or micro-batches are compared by their weights and gradients alone, up to
    ``ROUNDING`` of the largest value of a tensor.

    Args:
        a: What ``trace`` returned of one run.
        b: Of the other.
    """
    same_layout = len(a) == len(b) and all(_layout(x) == _layout(y) for x, y in zip(a, b, strict=True))
    found = []
    for rank, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        if not same_layout:
            mine, theirs = ([r for r in rows if r["stage"] not in _OF_LAYOUT] for rows in (mine, theirs))
        ours, others = _by_name(mine), _by_name(theirs)
        for key in dict.fromkeys([*ours, *others]):
            how = _how(ours.get(key), others.get(key), 0.0 if same_layout else ROUNDING)
            if how is not None:
                step, stage, name, _ = key
                place = list(ours if key in ours else others).index(key)
                order = (step, _STAGES.index(stage), place, rank)
                found.append((order, FirstTensor(step, stage, name, rank, len(a), how)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _by_name(rows: list[Any]) -> dict[tuple[int, str, str, int], Any]:
    """The rows by step, stage, name and how often the name has come before in that stage."""
    found: dict[tuple[int, str, str, int], Any] = {}
    for row in rows:
        call = 0
        while (key := (row["step"], row["stage"], row["name"], call)) in found:
            call += 1
        found[key] = row
    return found


def _layout(rows: list[Any]) -> list[Any]:
    return [row["shape"][:1] for row in rows if row["stage"] == "batch"]


def _how(a: Any, b: Any, tolerance: float) -> str | None:
    if a is None or b is None:
        return f"run {'A' if b is None else 'B'} alone has it"
    for what in ("shape", "dtype"):
        if a[what] != b[what]:
            return f"{what} {a[what]} and {b[what]}"
    if a["checksum"] == b["checksum"]:
        return None
    kinds = f"{a['kind']} and {b['kind']}, " if a["kind"] != b["kind"] else ""
    x, y = a["values"].double(), b["values"].double()
    same = (x == y) | (x.isnan() & y.isnan())
    apart = torch.where(same, 0.0, (x - y).abs())
    if not torch.isfinite(apart).all():
        return "one of them is not finite where the other is"
    largest = max(*(float(v[v.isfinite()].abs().max()) for v in (x, y) if v.isfinite().any()), 1e-300, 0.0)
    if not float(apart.max()):
        return "by its bits alone, or outside of the numbers that are kept of a large tensor"
    most, count = float(apart.max()), int((apart > 0).sum())
    if most <= tolerance * largest:
        return None
    part = f"{most / largest:.1e} of the largest, in {count} of {x.numel()} numbers"
    return f"{kinds}up to {most:.3g} apart, {part}"


def first_tensor(
    runs: tuple[Path, Path],
    commands: tuple[Command, Command],
    first: FirstStep,
    code: tuple[Path | None, Path | None],
    accelerator: str | None,
) -> str:
    """Repeat the step of both runs, and the one before, which its weights come from.

    Args:
        runs: The folders of both.
        commands: How both were started.
        first: Which step differs.
        code: Where to start the command of each; None: where it was started.
        accelerator: Where to compute; None: where the scripts say.

    Returns:
        The first tensor that differs, in words.

    Raises:
        PacelineError: when a run cannot be repeated.
    """
    steps = max(1, first.step - 1), first.step
    a, b = (
        trace(run, command, *steps, where, accelerator)
        for run, command, where in zip(runs, commands, code, strict=True)
    )
    found = first_difference(a, b)
    if found is None:
        return f"repeated on this machine, the tensors of step {first.step} are the same in both runs"
    return str(found)
