"""Any step of any run again, alone: its samples, its random draws, and no update.

A checkpoint before the step is loaded, and the steps between are taken as they were. One device stands for
all the ranks there were: it computes their micro-batches one after another, each with the generators of its
rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...callbacks import Callback, Checkpoint, Logger, StepRecord
from ...common.argument_checks import COUNT, SWITCH, TEXT, check_arguments
from ...errors import PacelineError
from ...strategies import Single
from ...strategies.launch.job_notes import uncaught_errors_shortened
from ...trainer.checkpoint.files import format as files
from ...trainer.checkpoint.files.integrity import verify
from ...trainer.checkpoint.files.reading import data_ranks_of
from ...trainer.config.built_in import make
from ...trainer.run.directory import read_environment
from ...trainer.run.run import Run
from ...trainer.utils.nested import listed
from ...trainer.utils.paths import as_path
from .simulated_ranks import SimulatedRanks
from .started_command import Command, outside_a_launch

if TYPE_CHECKING:
    from ...trainer.module import TrainModule
    from ...trainer.trainer import Trainer

VARIABLE = "PACELINE_REPLAY"
"""Names what ``paceline replay`` asks a script for; with it ``paceline.Trainer`` is a ``ReplayTrainer``."""


@dataclass(frozen=True)
class ReplayRequest:
    """What is to be replayed; the command line passes it to the script through the environment.

    Args:
        run: The run's folder.
        step: Which step, from 1.
        fit: Which ``fit`` of the script it was.
        accelerator: Where to compute.
        debug: Enter the debugger at the step.
        out: The file that takes the result as JSON; None: it is printed in words.
    """

    run: str
    step: int
    fit: int = 1
    accelerator: str = "auto"
    debug: bool = False
    out: str | None = None


@dataclass
class Replay:
    """What a step came to.

    Attributes:
        step: Its number, from 1.
        ranks: How many the run had.
        losses: Of each micro-batch, in the order of ``samples``; under manual optimization those that were
            gone backward from.
        samples: The dataset indices in each micro-batch; rank by rank within each round of them.
        gradient_norm: Of all gradients together, before clipping.
        skipped: Whether there was no loss, and so no gradient.
    """

    step: int
    ranks: int = 1
    losses: list[float] = field(default_factory=list)
    samples: list[list[Any]] = field(default_factory=list)
    gradient_norm: float = 0.0
    skipped: bool = False

    def __str__(self) -> str:
        lines = [f"step {self.step} again, without its update: gradient norm {self.gradient_norm:.6g}"]
        if self.skipped:
            lines = [f"step {self.step} again: training_step returned None, and the step was skipped"]
        for index, (loss, samples) in enumerate(zip_longest(self.losses, self.samples, fillvalue=())):
            place = f"rank {index % self.ranks}, micro-batch {index // self.ranks}"
            parts = [f"loss {loss:.6g}"] if loss != () else []
            parts += [f"dataset indices {listed(samples)}"] if samples else []
            lines.append(f"  {place}: " + ", ".join(parts))
        return "\n".join(lines)


@uncaught_errors_shortened()
def replay(
    trainer: Trainer,
    module: TrainModule,
    train_dataloader: Any = None,
    val_dataloader: Any = None,
    datamodule: Any = None,
    *,
    step: int,
    run: str | Path | None = None,
    accelerator: str = "auto",
    debug: bool = False,
) -> Replay:
    """Run a step of a run again, alone, with its samples and random draws, and without its update.

    One device computes for all the ranks there were, one after another. Nothing is written.

    Args:
        trainer: Its arguments are those of the run; it stays as it is.
        module: Takes the newest checkpoint before the step; the steps between are repeated.
        train_dataloader: The training data of the run, as ``fit`` took it.
        val_dataloader: The validation data, likewise.
        datamodule: The ``DataModule``, likewise.
        step: Which one, from 1.
        run: The run's folder; the trainer's last run unless given.
        accelerator: Where to compute.
        debug: Enter ``pdb`` at the step's ``training_step``, and after an error.

    Raises:
        PacelineError: for a step the run has not reached, and whatever the step raises.

    Example:
        >>> from paceline.tools import replay
        >>> each = Checkpoint("1st", keep=None)
        >>> trainer = Trainer(max_epochs=1, callbacks=each, progress=False, loggers=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> len(replay(trainer, Net(), train_loader, step=3).losses)  # one of each micro-batch
        1
    """
    folder = trainer.folder if run is None else run
    if folder is None:
        raise PacelineError(
            "replay: there is no run yet", code="run-not-found", fix="run='runs/<name>/<n>'"
        )
    path = str(as_path(folder, "replay"))
    request = ReplayRequest(path, step, accelerator=accelerator, debug=debug)
    data = (train_dataloader, val_dataloader, datamodule)
    return replay_step(type(trainer), trainer.settings, module, data, request)


# -- from the command line ---------------------------------------------------------------------


def run_again(command: Command, run: Path, step: int, accelerator: str, debug: bool) -> NoReturn:
    """Start the run's own command again, to replay one step."""
    request = ReplayRequest(str(run.resolve()), step, command.fit, accelerator, debug)
    os.chdir(command.folder)
    sys.stdout.flush()
    os.execve(sys.executable, _words(command), _variables(request))


def replay_as_json(command: Command, run: Path, step: int, accelerator: str) -> str:
    """The same as JSON; what the command prints goes to standard error.

    Raises:
        SystemExit: with the command's exit code, where it fails.
        PacelineError: where it ends without the ``fit`` of the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "replay.json"
        request = ReplayRequest(str(run.resolve()), step, command.fit, accelerator, out=str(out))
        ended = subprocess.run(
            _words(command), cwd=command.folder, env=_variables(request), stdout=sys.stderr, check=False
        )
        if ended.returncode:
            raise SystemExit(ended.returncode if ended.returncode > 0 else 128 - ended.returncode)
        if not out.exists():
            raise PacelineError(
                "the run's own command has ended without the run's fit",
                code="replay-not-possible",
                where=str(run),
                got=str(command),
            )
        return out.read_text(encoding="utf-8")


def _words(command: Command) -> list[str]:
    return [sys.executable, "-u", *command.program]


def _variables(request: ReplayRequest) -> dict[str, str]:
    return outside_a_launch() | {VARIABLE: json.dumps(vars(request))}


def requested() -> ReplayRequest:
    """What the command line asked this process to replay."""
    return ReplayRequest(**json.loads(os.environ[VARIABLE]))


# -- the trainer that does it ------------------------------------------------------------------


def watchers(given: dict[str, Any]) -> list[Callback]:
    """Of a trainer's arguments the callbacks that write nothing."""
    callbacks = given.get("callbacks", ())
    several = [callbacks] if isinstance(callbacks, (str, Callback)) else callbacks
    loaded = [make("callbacks", c) if isinstance(c, str) else c for c in several]
    return [c for c in loaded if not isinstance(c, (Checkpoint, Logger, StepRecord))]


def alone(given: dict[str, Any], accelerator: str, strategy: Single | None = None) -> dict[str, Any]:
    """A trainer's arguments, for one device and nothing written."""
    changes: dict[str, Any] = {
        "strategy": strategy or Single(),
        "devices": 1,
        "num_nodes": 1,
        "accelerator": accelerator,
    }
    changes |= {"loggers": False, "checkpoint": False, "progress": False, "record": False}
    changes["callbacks"] = watchers(given)
    return given | changes | {"max_restarts": 0, "timeouts": False, "max_time": None, "run_dir": None}


def replay_step(
    trainer_class: type[Any],
    settings: Any,
    module: Any,
    data: tuple[Any, Any, Any],
    request: ReplayRequest,
    allow: str | Sequence[str] = (),
) -> Replay:
    """Take the steps up to ``request.step``, and that one without its update.

    Args:
        trainer_class: ``Trainer``.
        settings: Its validated arguments.
        module: The weights of the checkpoint are loaded into it.
        data: The training and validation dataloaders and the DataModule, as ``fit`` takes them.
        request: The run's folder, the step, and where to compute.
        allow: As ``fit`` takes it.

    Raises:
        PacelineError: when the run never came so far; and what the step itself raises.
    """
    check_arguments(
        "replay",
        step=(request.step, COUNT),
        accelerator=(request.accelerator, TEXT),
        debug=(request.debug, SWITCH),
    )
    run = as_path(request.run, "replay")
    source, world_size = checkpoint_before(run, request.step)
    if world_size > 1 and not module.automatic_optimization:
        raise PacelineError(
            "under manual optimization each rank steps by itself, which one device cannot do for several",
            code="replay-not-possible",
            got=f"a run of {world_size} ranks",
            fix="train on one device until the step fails there too, and replay that run",
        )
    strategy = SimulatedRanks(world_size, request.debug)
    at_step = _AtStep(request, strategy)
    given = {name: getattr(settings, name) for name in type(settings).model_fields}
    if settings.seed_by_default:
        given["seed"] = Run(run).config.get("trainer", {}).get("seed", settings.seed)
    arguments = alone(given, request.accelerator, strategy)
    twin = trainer_class(**arguments | {"callbacks": [*arguments["callbacks"], at_step]})
    at_step.micro_batches = read_environment(run).get("micro_batches", [])
    vars(twin)["_find_micro_batch"] = lambda context, feed: feed.step_size  # at_step knows them
    strategy.load(source, twin.settings.seed)
    start = source.name if source is not None else "its beginning"
    more = f", on one device for {world_size} ranks" if world_size > 1 else ""
    twin.log_line(f"replays step {request.step} of {request.run} from {start}{more}")
    try:
        twin.fit(module, *data, resume=source, allow=allow)
    except _Reached:
        return at_step.found
    except Exception:
        if request.debug:
            import pdb

            pdb.post_mortem(sys.exc_info()[2])
        raise
    raise PacelineError(
        f"the run ends before step {request.step}",
        code="replay-not-possible",
        where=request.run,
        got=f"{twin.global_step} steps ({twin.stop_reason})",
    )


def require_first_weights(run: str, step: int, weights: int) -> None:
    """See that a run is repeated from its beginning with the weights it began with.

    Args:
        run: Its folder.
        step: The step that is to be repeated, for the error.
        weights: ``sample_of_weights`` of the module.

    Raises:
        PacelineError: where they are others.
    """
    began = read_environment(Path(run)).get("weights")
    if began is not None and began != weights:
        raise PacelineError(
            f"there is no checkpoint before step {step}, and the script now builds other "
            "weights than those the run began with",
            code="replay-not-possible",
            where=run,
            fix="seed_everything(0) before the module is built makes them the same; "
            'Checkpoint(every="100st") leaves a checkpoint to begin from',
        )


def checkpoint_before(run: Path, step: int) -> tuple[Path | None, int]:
    """The newest whole checkpoint before a step, and how many ranks the run had."""
    if not (run / "env.json").is_file():
        raise PacelineError(
            "there is no such step of a run",
            code="replay-not-possible",
            got=f"step {step} of {run}",
            allowed="a step of a folder runs/<name>/<n>",
        )
    for folder in reversed(files.finished(run / "checkpoints")):
        if int(folder.name.removeprefix(files.STEP)) < step:
            try:
                return folder, data_ranks_of(verify(folder))
            except files.CheckpointError:
                continue
    about = read_environment(run)
    world, tensor = (about.get(name, 1) for name in ("world", "tensor"))
    if type(world) is not int or type(tensor) is not int or not 1 <= tensor <= world:
        raise PacelineError(
            "the run's env.json is damaged", code="run-damaged", where=str(run), got=f"{world} ranks"
        )
    return None, world // tensor


class _Reached(Exception):
    """The step was run, all but its update."""


class _AtStep(Callback):
    """Ends the replay at its step, before the update; until then it has the run's micro-batches.

    Attributes:
        micro_batches: From which step on they were of which size, in the order in which that was written.
    """

    micro_batches: Sequence[tuple[int, int]] = ()

    def __init__(self, request: ReplayRequest, ranks: SimulatedRanks) -> None:
        self.request, self.ranks = request, ranks
        self.found = Replay(request.step, ranks.world_size)

    def on_fit_start(self, trainer: Any) -> None:
        self.on_step_boundary(trainer)
        if trainer.global_step:
            return
        require_first_weights(self.request.run, self.request.step, self.ranks.first_weights)

    def on_step_boundary(self, trainer: Any) -> None:
        sizes = [size for first, size in self.micro_batches if first <= trainer.global_step + 1]
        if sizes:  # a run that resumes from an earlier step writes again what holds from there on
            trainer._fit.state.micro_batch = sizes[-1]

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        if trainer.global_step + 1 != self.request.step:
            return
        fit = trainer._fit  # a replay looks into the loop's own parts
        self.ranks.at_step = True
        self.found.samples = [fit.feed.samples_of(i) for i in range(len(batches))]
        if fit.guard is not None:
            fit.guard.skip_no_more()

    def on_before_optimizer_step(self, trainer: Any, optimizer: torch.optim.Optimizer) -> None:
        if not self.ranks.at_step:
            return
        grads = [p.grad for p in trainer.module.parameters() if p.grad is not None]
        self.found.losses = self.ranks.losses
        self.found.gradient_norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        raise _Reached

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        if self.ranks.at_step:  # without an update: there was no loss
            self.found.losses, self.found.skipped = self.ranks.losses, True
            raise _Reached
