"""What a checkpoint holds of a run, and how it is put back: everything by name, nothing by position."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..data.fingerprint import checksum_of
from ..metrics.store import metric_parts
from ..rng import full_state, set_full_state
from ..utils.nested import map_tensors
from . import format as files
from .compatibility import callback_differences, data_differences, refuse_differences
from .integrity import begin, together
from .json_codec import decode, encode, is_plain
from .weights import extra_state, stored_shapes
from .writer import Content

if TYPE_CHECKING:
    from ...strategies import Strategy
    from ..session import Session


def capture(trainer: Session, weights_only: bool) -> Content:
    """What a checkpoint of a run at a step boundary is to hold. To be called on all ranks."""
    module, strategy = trainer.module, trainer.strategy
    whole = strategy.module_tensors(module)  # what another rank writes is on meta here
    tensors = {f"model.{name}": value for name, value in whole.items() if not value.is_meta}
    if (
        trainer.rank
    ):  # what is the same on all ranks is shared out; buffers are each rank's own, rank 0's the run's
        for name in _own_buffers(module, whole):
            del tensors[f"model.{name}"]
    counters = trainer.state.state_dict() | {"elapsed": trainer.clock()}
    if weights_only:
        state = {"extra_state": extra_state(module)}
    else:
        tensors, state = _whole_state(trainer, tensors | _others_buffers(trainer, whole), counters)
    manifest = {
        "weights_only": weights_only,
        "counters": counters,
        "world": _world(strategy),
        "precision": strategy.precision.name,
        "module": {
            "class": f"{type(module).__module__}:{type(module).__qualname__}",
            "hparams": {k: encode(v) for k, v in module.hparams.items() if is_plain(v)},
            "not_plain": [k for k, v in module.hparams.items() if not is_plain(v)],
        },
        "config": trainer.config(),
        "metrics": {k: v if v == v else "nan" for k, v in trainer.metrics.items()},
        "data": trainer.data_fingerprint(),
    }
    return Content(tensors, lambda: json.dumps(encode(state)), manifest)


def _world(strategy: Strategy) -> dict[str, Any]:
    return {"size": strategy.environment.world, "strategy": strategy.name}


def _own_buffers(module: nn.Module, tensors: dict[str, Tensor]) -> list[str]:
    """Names of buffers in the state dict that each rank has by itself, and may have changed by itself."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return [n for n, t in tensors.items() if n not in parameters and not hasattr(t, "to_local")]


def _others_buffers(trainer: Session, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """This rank's buffers that differ from rank 0's: running statistics, say, that nobody has averaged."""
    if trainer.world == 1:
        return {}
    own = {name: tensors[name] for name in _own_buffers(trainer.module, tensors)}
    sums = {name: checksum_of(buffer) for name, buffer in own.items()}
    first = trainer.strategy.gather(sums)[0]
    return {f"own.{trainer.rank}.{n}": own[n] for n, value in sums.items() if first.get(n) != value}


def _whole_state(
    trainer: Session, tensors: dict[str, Tensor], counters: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Beside the weights: moments and gradients under way, and all that is plain data."""
    module, strategy = trainer.module, trainer.strategy
    if not module.automatic_optimization:  # gradients may be on their way over several steps
        grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        tensors |= {f"grad.{_owner(g, trainer.rank)}.{name}": g for name, g in grads.items()}
    numbers: dict[str, Any] = {}
    for index, optimizer in enumerate(trainer.optimization.optimizers):
        found, plain = strategy.optimizer_state(module, optimizer)
        tensors |= {f"optim.{index}.{name}": value for name, value in found.items()}
        numbers[str(index)] = plain | {"class": type(optimizer).__name__}
    extra: dict[str, Any] = {}
    trainer.hooks.call("on_save_checkpoint", trainer, extra)
    of_rank = {
        "rng": full_state(strategy.device),
        "metric_objects": _metric_objects(module, trainer),
        "logged": trainer.train_store.own_state(),
        "data": trainer.feed_state(),
    }
    state = {
        "counters": counters,
        "ranks": strategy.gather(of_rank),
        "optimizers": numbers,
        "schedulers": [
            {
                "class": type(s.scheduler).__name__,
                "optimizer": trainer.optimization.optimizer_of(s),
                "state": s.scheduler.state_dict(),
            }
            for s in trainer.optimization.schedules
        ],
        "precision": strategy.precision.state_dict(),
        "strategy": strategy.state_dict(),
        "callbacks": {c.state_key: c.state_dict() for c in trainer.callbacks},
        "metrics": {"latest": trainer.metrics, "train": trainer.train_store.state_dict()},
        "datamodule": trainer.datamodule.state_dict() if trainer.datamodule is not None else {},
        "extra_state": extra_state(module),
        "hooks": extra,
    }
    return tensors, state


def restore(trainer: Session, folder: Path, allow: Collection[str] = ()) -> list[str]:
    """Put a run back where a checkpoint left it. To be called on all ranks.

    Args:
        allow: What may differ from the checkpoint: ``"data"``.

    Returns:
        What cannot be exact.

    Raises:
        CheckpointError: for one that is damaged, before anything is loaded.
        PacelineError: one report of what differs otherwise, before anything is loaded.
    """
    strategy = trainer.strategy
    with begin(folder, strategy) as check:
        manifest, state = check.manifest, decode(files.read_state(folder))
        shapes = stored_shapes(folder, manifest)
        mine = refuse_differences(trainer, folder, manifest, state, shapes, allow)
        like = _wanted(trainer, shapes, manifest["world"]["size"], mine)
        tensors = strategy.load_tensors(str(folder), like, {n: t for n, t in like.items() if t is not None})
        together(strategy.gather, check.finish)
    _load_tensors(trainer, tensors, state, manifest["world"]["size"])
    for schedule, saved in zip(trainer.optimization.schedules, state["schedulers"], strict=True):
        schedule.scheduler.load_state_dict(saved["state"])
    strategy.precision.load_state_dict(state["precision"])
    if manifest["world"] == _world(strategy):
        strategy.load_state_dict(state["strategy"])
    trainer.state.load_state_dict(state["counters"])
    inexact = callback_differences(trainer, state["callbacks"])
    for callback in trainer.callbacks:
        if state["callbacks"].get(callback.state_key):
            callback.load_state_dict(state["callbacks"][callback.state_key])
    trainer.metrics.update(state["metrics"]["latest"])
    if trainer.datamodule is not None and state["datamodule"]:
        trainer.datamodule.load_state_dict(state["datamodule"])
    trainer.hooks.call("on_load_checkpoint", trainer, state["hooks"])
    other_data = data_differences(trainer, manifest)
    if other_data:
        trainer.state.begin_epoch()
    inexact += _load_rank(trainer, state["ranks"], state["metrics"]["train"], not other_data)
    return inexact + other_data


def _wanted(
    trainer: Session, shapes: Collection[str], saved_world: int, mine: dict[str, Tensor]
) -> dict[str, Tensor | None]:
    """The names this rank is to read, each with a tensor that lies over the ranks as it shall."""
    parameters = dict(trainer.module.named_parameters())
    owners = {str(trainer.rank), "all"} if saved_world == trainer.world else None
    wanted: dict[str, Tensor | None] = {}
    for full in shapes:
        kind, _, name = full.partition(".")
        if kind == "model":
            wanted[full] = mine[name]
        elif kind == "own":
            if owners is not None and name.partition(".")[0] in owners:
                wanted[full] = None
        elif kind == "optim":
            wanted[full] = parameters.get(name.partition(".")[2].rpartition(".")[0])
        elif owners is None or name.partition(".")[0] in owners:
            wanted[full] = parameters[name.partition(".")[2]]
    return wanted


def _load_tensors(
    trainer: Session, tensors: dict[str, Tensor], state: dict[str, Any], saved_world: int
) -> None:
    def those_of(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    module, strategy = trainer.module, trainer.strategy
    own = those_of(f"own.{trainer.rank}.")  # of a checkpoint of as many ranks
    strategy.load_module(module, {**those_of("model."), **own, **state["extra_state"]})
    for index, optimizer in enumerate(trainer.optimization.optimizers):
        moments = those_of(f"optim.{index}.")
        strategy.load_optimizer(module, optimizer, moments, state["optimizers"][str(index)])
    parameters = dict(module.named_parameters())
    for full, value in those_of("grad.").items():
        owner, _, name = full.partition(".")
        parameter = parameters[name]
        value = value.to(parameter.device)
        if saved_world != trainer.world and owner != "all":
            value = value / saved_world  # what all would have come to, on every rank
        parameter.grad = value if parameter.grad is None else parameter.grad + value


def _owner(gradient: Tensor, rank: int) -> str:
    """Whose a gradient is: a sharded one is reduced already, another waits for ``optimizer.step()``."""
    return "all" if hasattr(gradient, "full_tensor") else str(rank)


def _load_rank(
    trainer: Session, ranks: list[dict[str, Any]], logged: dict[str, Any], same_data: bool
) -> list[str]:
    """This rank's own state: generators, and values and metric objects that are half counted.

    Args:
        logged: The sums of all ranks, for rank 0 to go on from where there were others.
        same_data: Whether the place in the data means anything still.
    """
    device = trainer.strategy.device
    if len(ranks) == trainer.world:
        mine = ranks[trainer.rank]
        objects = map_tensors(mine["metric_objects"], lambda t: t.to(device))
        _load_metric_objects(trainer.module, trainer, objects)
        set_full_state(mine["rng"], device)
        trainer.train_store.load_state_dict(mine["logged"])
        if same_data:
            trainer.load_feed_state(mine["data"])
        return []
    if trainer.is_global_zero:
        trainer.train_store.load_state_dict(logged)
        set_full_state(ranks[0]["rng"], device)
    if 1 < trainer.ranks_in_turn == len(ranks):
        if same_data:
            trainer.load_feed_state(ranks[0]["data"])
        return []
    inexact = (
        f"the checkpoint is of {len(ranks)} rank{'s' if len(ranks) > 1 else ''}: what is drawn inside the "
        "model from here on is not what they would have drawn"
    )
    if any(saved["logged_as"] for r in ranks for saved in r["metric_objects"].values()):
        inexact += ", and metric objects begin their epoch anew"
    if any(r["data"].get("own_part") for r in ranks):
        inexact += ", and each rank's own part of the data is another one"
    elif same_data:
        trainer.load_feed_state(ranks[0]["data"])
    return [inexact]


def _metric_objects(module: nn.Module, trainer: Session) -> dict[str, Any]:
    """The states of torchmetrics objects, which a state_dict leaves out: an epoch may be half counted."""
    waiting = {id(metric): name for name, metric in trainer.train_store.objects.items()}
    metrics = {id(part) for part in metric_parts(module).values()}
    return {
        path: {
            "state": dict(part.metric_state),
            "count": getattr(part, "_update_count", 0),
            "logged_as": waiting.get(id(part)),
        }
        for path, part in module.named_modules()
        if id(part) in metrics or id(part) in waiting
    }


def _load_metric_objects(module: nn.Module, trainer: Session, states: dict[str, Any]) -> None:
    parts, metrics = dict(module.named_modules()), metric_parts(module)
    for path, saved in states.items():
        part: Any = parts.get(path)
        if part is None:
            continue
        if path in metrics:
            for key, value in saved["state"].items():
                setattr(part, key, value)
            part._update_count = saved["count"]
        if saved["logged_as"] is not None:
            trainer.train_store.objects[saved["logged_as"]] = part
