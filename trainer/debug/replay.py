"""Any step of any run again, alone: its samples, its random draws, and no update.

A checkpoint before the step is loaded, and the steps between are taken as they were. One device stands for
all the ranks there were: it computes their micro-batches one after another, each with the generators of its
rank.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from ...argument_checks import COUNT, SWITCH, TEXT, check_arguments
from ...callbacks import Callback, Checkpoint, Logger, StepRecord
from ...errors import PacelineError
from ...strategies import Single
from ..checkpoint import format as files
from ..checkpoint.integrity import verify
from ..checkpoint.reading import data_ranks_of, read_manifest, read_state
from ..config.built_in import make
from ..rng import derive, full_state, seed_generators, set_full_state, untouched
from ..run.directory import read_environment
from ..run.run import Run
from ..utils.nested import listed
from ..utils.paths import as_path
from ..utils.tensor_checksum import sample_of_weights
from .started_command import Command, outside_a_launch

T = TypeVar("T")
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
    """

    run: str
    step: int
    fit: int = 1
    accelerator: str = "auto"
    debug: bool = False


@dataclass
class Replay:
    """What a step came to.

    Attributes:
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


# -- from the command line ---------------------------------------------------------------------


def run_again(command: Command, run: Path, step: int, accelerator: str, debug: bool) -> NoReturn:
    """Start the run's own command again, to replay one step."""
    request = ReplayRequest(str(run.resolve()), step, command.fit, accelerator, debug)
    os.chdir(command.folder)
    sys.stdout.flush()
    os.execve(
        sys.executable,
        [sys.executable, "-u", *command.program],
        outside_a_launch() | {VARIABLE: json.dumps(vars(request))},
    )


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


def replay(
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
            got=f"a run of {world_size} ranks",
            fix="train on one device until the step fails there too, and replay that run",
        )
    strategy = SimulatedRanks(world_size, request)
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
            where=run,
            fix="seed_everything(0) before the module is built makes them the same; "
            'Checkpoint(every="100st") leaves a checkpoint to begin from',
        )


def checkpoint_before(run: Path, step: int) -> tuple[Path | None, int]:
    """The newest whole checkpoint before a step, and how many ranks the run had."""
    if not (run / "env.json").is_file():
        raise PacelineError(
            "there is no such step of a run",
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
        raise PacelineError("the run's env.json is damaged", where=str(run), got=f"{world} ranks")
    return None, world // tensor


class _Reached(Exception):
    """The step was run, all but its update."""


class SimulatedRanks(Single):
    """One device that stands for several: each micro-batch draws from its own rank's generators."""

    repeats_steps = False  # the ranks' generators are beyond a step that failed

    def __init__(self, world_size: int, request: ReplayRequest) -> None:
        super().__init__()
        self.simulated_ranks, self._debug = world_size, request.debug
        self.at_step = False
        self.first_weights = 0
        self.losses: list[float] = []
        self._before: dict[int, Any] = {}
        self._generators: list[Any] = [None] * world_size
        self._calls, self._first_index = 0, 0

    def rank_of(self, micro_batch: int) -> int:
        return micro_batch % self.simulated_ranks

    def load(self, source: Path | None, seed: int) -> None:
        """The generators of all ranks but the first, which are the process' own."""
        if source is not None:
            state = read_state(source, read_manifest(source))
            self._generators = [one["rng"] for one in state["ranks"]]
            self._first_index = state["counters"]["batch_idx"]
            return
        for rank in range(1, self.simulated_ranks):
            with untouched(self.device):
                seed_generators(derive(seed, rank))
                self._generators[rank] = full_state(self.device)

    def step_function(self, module: torch.nn.Module, name: str) -> Callable[..., Any]:
        step = super().step_function(module, name)
        if name != "training_step":
            return step

        def as_rank(batch: Any, *index: int) -> Any:
            rank, round_ = self._calls % self.simulated_ranks, self._calls // self.simulated_ranks
            self._calls += 1
            if index and index[0] == 0:
                self._first_index = 0
            arguments = (batch, *(self._first_index + round_ for _ in index))
            if rank == 0:
                return self._take(step, arguments)
            own = full_state(self.device)
            set_full_state(self._generators[rank], self.device)
            try:
                return self._take(step, arguments)
            finally:
                self._generators[rank] = full_state(self.device)
                set_full_state(own, self.device)

        return as_rank

    def _take(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self.at_step:
            return step(*arguments)
        batch = id(arguments[0])
        if batch in self._before:  # once more, to see where it fails: with the same draws
            set_full_state(self._before[batch], self.device)
        else:
            self._before[batch] = full_state(self.device)
        if self._debug:
            import pdb

            output = pdb.Pdb().runcall(step, *arguments)
        else:
            output = step(*arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if self._automatic and isinstance(loss, torch.Tensor):
            self.losses.append(loss.detach().item())
        return output

    def setup(self, module: torch.nn.Module, build_optimizers: Callable[[], T]) -> T:
        self._automatic = bool(getattr(module, "automatic_optimization", True))
        self.first_weights = sample_of_weights(module)
        return super().setup(module, build_optimizers)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        if self.at_step and not self._automatic:
            self.losses.append(loss.item())
        super().backward(loss, retain_graph)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        self._first_index += self._calls // self.simulated_ranks
        self._calls = 0
        return super().step(optimizer)


class _AtStep(Callback):
    """Ends the replay at its step, before the update; until then it has the run's micro-batches.

    Attributes:
        micro_batches: From which step on they were of which size, in the order in which that was written.
    """

    micro_batches: Sequence[tuple[int, int]] = ()

    def __init__(self, request: ReplayRequest, ranks: SimulatedRanks) -> None:
        self.request, self.ranks = request, ranks
        self.found = Replay(request.step, ranks.simulated_ranks)

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
