"""What a checkpoint holds of a run, and how it is restored: everything by name, nothing by position.

Tensors (weights, moments, gradients between two steps of manual optimization) are the strategy's to read
and write. All else is plain data of objects with ``state_dict`` and ``load_state_dict``: some the same on
all ranks, some of each rank.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ...callbacks import Callback
from ...strategies import Strategy
from ...strategies.tensors.sharding import is_sharded
from ...strategies.tensors.tensor_state import OWN_SETTINGS
from ..metrics.logger import MetricLogger
from ..optimization import Optimization
from ..state import Clock, TrainState
from ..utils.tensor_checksum import checksum_of
from .compatibility import OTHER_DATA, callback_differences, data_differences, refuse_differences
from .files import format as files
from .files.integrity import begin, finish_on_all
from .files.json_codec import encode
from .files.reading import data_ranks_of, loading, read_state
from .module_changes import ModuleChanges
from .optimizer_settings import resume_settings
from .pending_gradients import load_gradients, pending_gradients
from .pretrained import describe_parts
from .stateful import (
    CallbackStates,
    Counters,
    GeneratorStates,
    LoggedSums,
    MetricObjectStates,
    ScheduleStates,
    Stateful,
)
from .weights import callback_tensor, extra_state, model_shapes, recorded_hparams, refuse, stored_shapes
from .writer import Content


class HookCalls(Protocol):
    """Calls the functions of a hook."""

    def call(self, name: str, *args: Any) -> None:
        """Call them all, in order."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run as checkpoints see it.

    Args:
        changes: What the run has changed of the module.
        counters: Steps, epochs and samples done.
        clock: The seconds of training.
        hooks: Calls ``on_save_checkpoint`` and ``on_load_checkpoint`` with ``trainer`` and a dictionary.
        feed: The training data: its fingerprint, and its position where it keeps one itself.
        datamodule: None where there is none.
        config: What config.yaml of the run holds.
    """

    module: Any
    strategy: Strategy
    optimization: Optimization
    changes: ModuleChanges
    counters: TrainState
    clock: Clock
    logger: MetricLogger
    callbacks: list[Callback]
    hooks: HookCalls
    trainer: Any
    feed: Any
    datamodule: Any
    config: dict[str, Any]

    @property
    def _rank(self) -> int:
        return self.strategy.collectives.data_rank

    @property
    def _world_size(self) -> int:
        return self.strategy.collectives.data_world_size

    def _shared(self) -> dict[str, Stateful]:
        """What is the same on all ranks; saved and restored in this order."""
        parts: dict[str, Stateful] = {
            "schedulers": ScheduleStates(self.optimization),
            "precision": self.strategy.precision,
            "strategy": self.strategy,
            "counters": Counters(self.counters, self.clock),
            "callbacks": CallbackStates(self.callbacks),
            "metrics": self.logger,
        }
        return parts | ({} if self.datamodule is None else {"datamodule": self.datamodule})

    def _own(self) -> dict[str, Stateful]:
        """What differs from rank to rank."""
        return {
            "rng": GeneratorStates(self.strategy.device),
            "metric_objects": MetricObjectStates(self.module, self.logger, self.strategy.device),
            "logged": LoggedSums(self.logger.train),
            "data": self.feed,
        }

    # -- saving --------------------------------------------------------------------------------

    def capture(self, weights_only: bool) -> Content:
        """What a checkpoint at this step boundary is to hold. To be called on all ranks."""
        module, strategy = self.module, self.strategy
        whole = strategy.weights.module_tensors(module)  # what another rank writes is on meta here
        tensors = {f"model.{name}": value for name, value in whole.items() if not value.is_meta}
        # Equal tensors are divided among the ranks. Buffers are each rank's own, and rank 0's the run's.
        if self._rank:
            for name in _own_buffers(module, whole):
                del tensors[f"model.{name}"]
        tensors |= self._callback_tensors()
        counters = Counters(self.counters, self.clock).state_dict()
        if weights_only:
            state: dict[str, Any] = {"extra_state": extra_state(module)}
        else:
            self.changes.warn()
            tensors |= self._others_buffers(whole)
            state = self._plain_state(tensors)
        state["module"] = self.changes.state_dict(whole)
        hparams, missing = recorded_hparams(module)
        manifest = {
            "weights_only": weights_only,
            "evaluation_weights": self._evaluation_weights(),
            "counters": counters,
            "world": _world(strategy),
            "precision": strategy.precision.name,
            "module": {
                "class": f"{type(module).__module__}:{type(module).__qualname__}",
                "hparams": hparams,
                "not_plain": missing,
            }
            | ({"pretrained": self._pretrained} if self._pretrained else {}),
            "config": self.config,
            "metrics": {k: v if v == v else "nan" for k, v in self.logger.latest.items()},
            "data": self.feed.fingerprint(),
        }
        return Content(tensors, lambda: json.dumps(encode(state)), manifest)

    def _callback_tensors(self) -> dict[str, Tensor]:
        """Averages of weights and the like, by the names of the weights, tied ones included."""
        found: dict[str, Tensor] = {}
        first = {p: name for name, p in self.module.named_parameters()}
        for callback in self.callbacks:
            parts = callback.parameter_state()
            if not parts:
                continue
            saved = self.strategy.weights.save_parts(self.module, parts)
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                value = saved.get(first[parameter])
                if value is not None and not value.is_meta:
                    found[callback_tensor(callback.state_key, name)] = value
        return found

    @cached_property
    def _pretrained(self) -> dict[str, Any]:
        return describe_parts(self.module)

    def _evaluation_weights(self) -> str | None:
        using = (c.state_key for c in self.callbacks if c.has_evaluation_weights)
        return next(using, None)

    def _others_buffers(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's buffers that differ from rank 0's: running statistics, say, that nobody averages."""
        if self._world_size == 1:
            return {}
        own = {name: tensors[name] for name in _own_buffers(self.module, tensors)}
        sums = {name: checksum_of(buffer) for name, buffer in own.items()}
        first = self.strategy.collectives.broadcast(sums)
        return {f"own.{self._rank}.{n}": own[n] for n, value in sums.items() if first.get(n) != value}

    def _plain_state(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """All that is plain data; moments and pending gradients are added to ``tensors``."""
        module, strategy = self.module, self.strategy
        if not module.automatic_optimization:  # gradients may be accumulated over several steps
            tensors |= {f"grad.{n}": g for n, g in pending_gradients(module, self._rank).items()}
        numbers: dict[str, Any] = {}
        for index, optimizer in enumerate(self.optimization.optimizers):
            found, plain = strategy.weights.optimizer_state(module, optimizer)
            tensors |= {f"optim.{index}.{name}": value for name, value in found.items()}
            configured = self.optimization.configured[index]
            numbers[str(index)] = plain | {"class": type(optimizer).__name__, "configured": configured}
        hooks: dict[str, Any] = {}
        self.hooks.call("on_save_checkpoint", self.trainer, hooks)
        own = {name: part.state_dict() for name, part in self._own().items()}
        return {
            "ranks": strategy.collectives.gather_data(own),
            "optimizers": numbers,
            "datamodule": {},
            **{name: part.state_dict() for name, part in self._shared().items()},
            "extra_state": extra_state(module),
            "hooks": hooks,
        }

    # -- restoring -----------------------------------------------------------------------------

    def restore(self, folder: Path, allow: Collection[str] = ()) -> list[str]:
        """Put the run back where a checkpoint left it. To be called on all ranks.

        Args:
            folder: The checkpoint to resume from.
            allow: What may differ from the checkpoint: ``"data"``, ``"optimizer"``.

        Returns:
            What cannot be exact.

        Raises:
            CheckpointError: for one that is damaged, before anything is loaded.
            PacelineError: one report of what differs otherwise, before anything is loaded.
        """
        manifest, state, tensors = self._read(folder, allow)
        self._load_tensors(folder, tensors, state, data_ranks_of(manifest))
        optimizers, schedulers = state["optimizers"], state["schedulers"]
        line = resume_settings(self.optimization, optimizers, schedulers, allow)
        if line is not None:
            self.strategy.settings.log_line(line)
        inexact = callback_differences(self.callbacks, state["callbacks"])
        for name, part in self._shared().items():
            if name == "strategy" and manifest["world"] != _world(self.strategy):
                continue
            if name != "datamodule" or state[name]:
                with loading(folder, name):
                    part.load_state_dict(state[name])
        self.hooks.call("on_load_checkpoint", self.trainer, state["hooks"])
        self.feed.reload(self.counters.epoch)
        is_new = self.feed.reloads and not self.counters.position  # data that no step has used yet
        other_data = [] if is_new else data_differences(self.feed, manifest)
        if self.feed.reloads and "data" not in allow:
            refuse("cannot resume from this checkpoint", folder, other_data, OTHER_DATA)
        if other_data:
            self.counters.begin_epoch()
        with loading(folder, "ranks"):
            inexact += self._load_rank(state["ranks"], state["metrics"]["train"], not other_data)
        return inexact + other_data

    def roll_back(self, folder: Path) -> None:
        """Take the weights, moments and averages of a checkpoint, and nothing else. On all ranks.

        Raises:
            CheckpointError: for one that is damaged.
            PacelineError: for one of weights only, or of another model.
        """
        groups = [group for o in self.optimization.optimizers for group in o.param_groups]
        settings = [{k: v for k, v in group.items() if k not in OWN_SETTINGS} for group in groups]
        manifest, state, tensors = self._read(folder, ("data",), pending=False)
        self._load_tensors(folder, tensors, state, data_ranks_of(manifest))
        # The optimizers have other group dictionaries now. Schedules are where they are, with their rates.
        groups = [group for o in self.optimization.optimizers for group in o.param_groups]
        for group, current in zip(groups, settings, strict=True):
            group.update(current)
        averaging = [c for c in self.callbacks if c.parameter_state()]
        CallbackStates(averaging).load_state_dict(state["callbacks"])

    def _read(
        self, folder: Path, allow: Collection[str], pending: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
        """The manifest, the plain state and the tensors that this rank is to load. On all ranks.

        Args:
            folder: The checkpoint.
            allow: What may differ from this run.
            pending: Whether the run is to be where the checkpoint left it: its epoch's data, its gradients.
        """
        strategy = self.strategy
        with begin(folder, strategy.collectives) as check:
            manifest = check.manifest
            if pending:
                self.feed.prepare(manifest["counters"]["epoch"])
            state = read_state(folder, manifest)
            shapes = stored_shapes(folder, manifest)
            if pending:
                self.changes.load_state_dict(state.get("module", {}), model_shapes(shapes))
                self.changes.add_groups(state["optimizers"])
            mine = refuse_differences(self, folder, manifest, state, shapes, allow)
            like = self._wanted(shapes, data_ranks_of(manifest), mine)
            like = {n: t for n, t in like.items() if pending or not n.startswith("grad.")}
            present = {n: t for n, t in like.items() if t is not None}
            tensors = strategy.weights.load_tensors(files.tensor_files(folder, manifest), like, present)
            finish_on_all(check, strategy.collectives)
        if strategy.environment.is_global_zero:
            files.warn_of_unlisted(folder, manifest)
        return manifest, state, tensors

    def _wanted(
        self, shapes: Collection[str], saved_world: int, mine: dict[str, Tensor]
    ) -> dict[str, Tensor | None]:
        """The names this rank is to read, each with a tensor placed over the ranks as it shall be."""
        parameters = dict(self.module.named_parameters())
        owners = {str(self._rank), "all"} if saved_world == self._world_size else None
        keys = {callback.state_key for callback in self.callbacks}
        wanted: dict[str, Tensor | None] = {}
        for full in shapes:
            kind, _, name = full.partition(".")
            if kind == "model":
                wanted[full] = mine.get(name)  # None: the module itself takes it
            elif kind == "own":
                if owners is not None and name.partition(".")[0] in owners:
                    wanted[full] = None
            elif kind == "callback":
                key, _, parameter = name.rpartition("/")
                if key in keys and parameter in parameters:
                    wanted[full] = parameters[parameter]
            elif kind == "optim":
                wanted[full] = parameters.get(name.partition(".")[2].rpartition(".")[0])
            elif owners is None or name.partition(".")[0] in owners:
                wanted[full] = parameters.get(name.partition(".")[2])
        return wanted

    def _load_tensors(
        self, folder: Path, tensors: dict[str, Tensor], state: dict[str, Any], saved_world: int
    ) -> None:
        def those_of(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        module, strategy = self.module, self.strategy
        own = those_of(f"own.{self._rank}.")  # of a checkpoint of as many ranks
        with loading(folder, "extra_state"):
            strategy.weights.load_module(module, {**those_of("model."), **own, **state["extra_state"]})
        for index, optimizer in enumerate(self.optimization.optimizers):
            moments = those_of(f"optim.{index}.")
            with loading(folder, f"optimizers.{index}"):
                strategy.weights.load_optimizer(module, optimizer, moments, state["optimizers"][str(index)])
        for callback in self.callbacks:
            parts = those_of(callback_tensor(callback.state_key, ""))
            if parts:
                callback.load_parameter_state(strategy.weights.load_parts(module, parts))
        load_gradients(module, those_of("grad."), 1 if saved_world == self._world_size else saved_world)

    def _load_rank(self, ranks: list[dict[str, Any]], logged: dict[str, Any], same_data: bool) -> list[str]:
        """This rank's own state: generators, and values and metric objects that are half counted.

        Args:
            ranks: The saved state of each rank, in the order of ranks.
            logged: The sums of all ranks, for rank 0 to continue from where there were others.
            same_data: Whether the position in the data still means anything.
        """
        own = self._own()
        if len(ranks) == self._world_size:
            mine = ranks[self._rank]
            for name in ("metric_objects", "rng", "logged", *(["data"] * same_data)):
                own[name].load_state_dict(mine[name])
            return []
        if self.strategy.environment.is_global_zero:
            own["logged"].load_state_dict(logged)
            own["rng"].load_state_dict(ranks[0]["rng"])
        if 1 < self.strategy.collectives.simulated_ranks == len(ranks):
            if same_data:
                self.feed.load_state_dict(ranks[0]["data"])
            return []
        inexact = (
            f"the checkpoint is of {len(ranks)} rank{'s' if len(ranks) > 1 else ''}: random draws inside "
            "the model (dropout) differ from here on from those of the original run"
        )
        if any(saved["logged_as"] for r in ranks for saved in r["metric_objects"].values()):
            inexact += ", and metric objects begin their epoch again"
        if any(r["data"].get("own_part") for r in ranks):
            inexact += ", and each rank's own part of the data is another one"
        elif same_data:
            self.feed.load_state_dict(ranks[0]["data"])
        return [inexact]


def _world(strategy: Strategy) -> dict[str, Any]:
    found = {"size": strategy.environment.world_size, "strategy": strategy.name}
    split = strategy.collectives.tensor_parallel_size
    return found | ({"tensor": split} if split > 1 else {})


def _own_buffers(module: nn.Module, tensors: dict[str, Tensor]) -> list[str]:
    """Names of buffers in the state dict that each rank has for itself, and may have changed for itself."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return [n for n, t in tensors.items() if n not in parameters and not is_sharded(t)]
