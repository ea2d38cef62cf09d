"""What a checkpoint holds of a run, and how it is put back: everything by name, nothing by position."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from ..errors import PacelineError, nearest
from ..strategies import Single, Strategy
from . import checkpoint_files as files
from .batch import map_tensors
from .checkpoint_writer import Content
from .metrics import metric_parts
from .optimization import Optimization
from .plain import decode, encode, is_plain
from .rng import full_state, set_full_state

if TYPE_CHECKING:
    from .module import TrainModule
    from .session import Session

M = TypeVar("M", bound="TrainModule")


def capture(trainer: Session, weights_only: bool) -> Content:
    """What a checkpoint of a run at a step boundary is to hold. To be called on all ranks."""
    module, strategy = trainer.module, trainer.strategy
    whole = strategy.module_tensors(module)  # what another rank writes is on meta here
    tensors = {f"model.{name}": value for name, value in whole.items() if not value.is_meta}
    counters = trainer.state.state_dict() | {"elapsed": trainer.clock()}
    if weights_only:
        state = {"extra_state": _extra_state(module)}
    else:
        tensors, state = _whole_state(trainer, tensors, counters)
    manifest = {
        "weights_only": weights_only,
        "counters": counters,
        "world": {"size": strategy.environment.world, "strategy": strategy.name},
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


def _extra_state(module: nn.Module) -> dict[str, Any]:
    return {n: v for n, v in module.state_dict().items() if not isinstance(v, Tensor)}


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
        "schedulers": [s.scheduler.state_dict() for s in trainer.optimization.schedules],
        "precision": strategy.precision.state_dict(),
        "callbacks": {c.state_key: c.state_dict() for c in trainer.callbacks},
        "metrics": {"latest": trainer.metrics, "train": trainer.train_store.state_dict()},
        "datamodule": trainer.datamodule.state_dict() if trainer.datamodule is not None else {},
        "extra_state": _extra_state(module),
        "hooks": extra,
    }
    return tensors, state


def restore(trainer: Session, folder: Path) -> list[str]:
    """Put a run back where a verified checkpoint left it. Returns what cannot be exact."""
    manifest = files.read_manifest(folder)
    state: dict[str, Any] = decode(files.read_state(folder))
    module, strategy = trainer.module, trainer.strategy
    names = stored_names(folder, manifest)
    load_weights(module, folder, strategy, names)
    _load_gradients(trainer, folder, names, manifest["world"]["size"])
    optimizers = trainer.optimization.optimizers
    if len(optimizers) != len(state["optimizers"]):
        raise PacelineError(
            "the checkpoint has another number of optimizers",
            got=f"{len(optimizers)} now, {len(state['optimizers'])} in {folder}",
        )
    parameters = dict(module.named_parameters())
    for index, optimizer in enumerate(optimizers):
        prefix = f"optim.{index}."
        wanted = [name for name in names if name.startswith(prefix)]
        owners = {n: n.removeprefix(prefix).rpartition(".")[0] for n in wanted}
        like: dict[str, Tensor] = {n: parameters[o] for n, o in owners.items() if o in parameters}
        found = strategy.load_tensors(str(folder), wanted, like) if wanted else {}
        tensors = {name.removeprefix(prefix): value for name, value in found.items()}
        strategy.load_optimizer(module, optimizer, tensors, state["optimizers"][str(index)])
    _load_schedulers(trainer.optimization, state["schedulers"])
    strategy.precision.load_state_dict(state["precision"])
    trainer.state.load_state_dict(state["counters"])
    for callback in trainer.callbacks:
        if state["callbacks"].get(callback.state_key):
            callback.load_state_dict(state["callbacks"][callback.state_key])
    trainer.metrics.update(state["metrics"]["latest"])
    if trainer.datamodule is not None and state["datamodule"]:
        trainer.datamodule.load_state_dict(state["datamodule"])
    trainer.hooks.call("on_load_checkpoint", trainer, state["hooks"])
    return _load_rank(trainer, state["ranks"], state["metrics"]["train"])


def _owner(gradient: Tensor, rank: int) -> str:
    """Whose a gradient is: a sharded one is reduced already, another waits for ``optimizer.step()``."""
    return "all" if hasattr(gradient, "full_tensor") else str(rank)


def _load_gradients(trainer: Session, folder: Path, names: list[str], saved_world: int) -> None:
    """Each rank's own gradients; in another world what all would have come to, on every rank."""
    parameters = dict(trainer.module.named_parameters())
    mine = {str(trainer.rank), "all"} if saved_world == trainer.world else None
    wanted: dict[str, Tensor] = {}
    for full in names:
        kind, owner, name = (*full.split(".", 2), "", "")[:3]
        if kind == "grad" and (mine is None or owner in mine):
            wanted[full] = parameters[name]
    if not any(name.startswith("grad.") for name in names):
        return
    for full, value in trainer.strategy.load_tensors(str(folder), wanted, wanted).items():
        _, owner, name = full.split(".", 2)
        parameter = parameters[name]
        value = value.to(parameter.device)
        if mine is None and owner != "all":
            value = value / saved_world
        parameter.grad = value if parameter.grad is None else parameter.grad + value


def _load_rank(trainer: Session, ranks: list[dict[str, Any]], logged: dict[str, Any]) -> list[str]:
    """This rank's own state: generators, and values and metric objects that are half counted.

    Args:
        logged: The sums of all ranks, for rank 0 to go on from where there were others.
    """
    device = trainer.strategy.device
    if len(ranks) == trainer.world:
        mine = ranks[trainer.rank]
        objects = map_tensors(mine["metric_objects"], lambda t: t.to(device))
        _load_metric_objects(trainer.module, trainer, objects)
        set_full_state(mine["rng"], device)
        trainer.train_store.load_state_dict(mine["logged"])
        trainer.load_feed_state(mine["data"])
        return []
    if trainer.is_global_zero:
        trainer.train_store.load_state_dict(logged)
        set_full_state(ranks[0]["rng"], device)
    inexact = (
        f"the checkpoint is of {len(ranks)} rank{'s' if len(ranks) > 1 else ''}: what is drawn inside the "
        "model from here on is not what they would have drawn"
    )
    if any(saved["logged_as"] for r in ranks for saved in r["metric_objects"].values()):
        inexact += ", and metric objects begin their epoch anew"
    if any(r["data"].get("own_part") for r in ranks):
        inexact += ", and each rank's own part of the data is another one"
    else:
        trainer.load_feed_state(ranks[0]["data"])
    return [inexact]


def stored_names(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """The names of all tensors in a checkpoint."""
    from safetensors import safe_open

    names: list[str] = []
    for file in manifest["files"]:
        if file.endswith(".safetensors"):
            with safe_open(folder / file, framework="pt") as content:
                names += content.keys()
    return names


def load_weights(
    module: nn.Module, folder: Path, strategy: Strategy, names: list[str] | None = None
) -> None:
    """Load a checkpoint's weights into ``module``. To be called on all ranks.

    Args:
        names: All tensors of a checkpoint that is verified already; None verifies it.

    Raises:
        PacelineError: one report of everything missing, unexpected or of another shape.
    """
    if names is None:
        files.verify_together(folder, strategy)
        names = stored_names(folder, files.read_manifest(folder))
    stored = {n.removeprefix("model."): n for n in names if n.startswith("model.")}
    mine = strategy.module_tensors(module)
    like = {full: mine[name] for name, full in stored.items() if name in mine}
    loaded = strategy.load_tensors(str(folder), stored.values(), like)
    values = {name: loaded[full] for name, full in stored.items()}
    differences = [f"missing in the checkpoint: {n}" for n in mine if n not in values]
    differences += [f"not in the model: {n}" for n in values if n not in mine]
    differences += [
        f"{n}: shape {list(values[n].shape)} in the checkpoint, {list(mine[n].shape)} in the model"
        for n in mine
        if n in values and values[n].shape != mine[n].shape
    ]
    if differences:
        more = f"\n    and {len(differences) - 6} more" if len(differences) > 6 else ""
        raise PacelineError(
            f"the checkpoint is of another model: {len(differences)} differences",
            where=str(folder),
            got="\n    " + "\n    ".join(differences[:6]) + more,
        )
    extra = decode(files.read_state(folder)["extra_state"])
    strategy.load_module(module, {**values, **extra})


def export(trainer: Session, folder: Path, submodule: str | None) -> Path:
    """``Trainer.export``. To be called on all ranks; rank 0 writes."""
    module = trainer.module
    parts = dict(module.named_modules())
    if submodule is not None and submodule not in parts:
        raise PacelineError(
            f"{type(module).__name__} has no submodule {submodule!r}",
            meant=nearest(submodule, parts),
        )
    part, prefix = (module, "") if submodule is None else (parts[submodule], f"{submodule}.")
    everything = trainer.strategy.full_tensors(module)
    tensors = {n.removeprefix(prefix): v for n, v in everything.items() if n.startswith(prefix)}
    trainer.on_rank_zero(lambda: _write_export(module, part, tensors, folder))
    return folder


def _write_export(module: TrainModule, part: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Tied weights are written once, under their first name, as safetensors has it.
    once = {n for n, _ in [*part.named_parameters(), *part.named_buffers()]}
    kept = {n: v.detach().to("cpu", copy=True).contiguous() for n, v in tensors.items() if n in once}
    save_file(kept, str(folder / "model.safetensors"), metadata={"format": "pt"})
    about = {
        "class": f"{type(part).__module__}:{type(part).__qualname__}",
        "hparams": {k: v for k, v in module.hparams.items() if is_plain(v)},
    }
    (folder / "config.json").write_text(json.dumps(encode(about), indent=1) + "\n")


def build_from_checkpoint(cls: type[M], path: Any, arguments: dict[str, Any]) -> M:
    """``TrainModule.load_from_checkpoint``."""
    from .run import find_checkpoint

    folder = find_checkpoint(path)
    manifest = files.verify(folder)
    recorded = manifest["module"]
    missing = [name for name in recorded["not_plain"] if name not in arguments]
    if missing:
        raise PacelineError(
            f"{cls.__name__}.load_from_checkpoint needs what is no plain data: {', '.join(missing)}",
            fix=f"{cls.__name__}.load_from_checkpoint(path, {missing[0]}=...)",
        )
    hparams = {name: decode(value) for name, value in recorded["hparams"].items()} | arguments
    positional = _by_position(cls, hparams)
    module = cls(*positional, **hparams)
    if not vars(module).get("_configured"):
        module.configure_model()
        vars(module)["_configured"] = True
    load_weights(module, folder, Single(), stored_names(folder, manifest))
    return module


def _by_position(cls: type, hparams: dict[str, Any]) -> list[Any]:
    """Take out of ``hparams`` what must be passed by position: ``*args``, and all that stands before."""
    parameters = list(inspect.signature(cls).parameters.values())
    kinds = [p.kind for p in parameters]
    last = -1
    for kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
        if kind in kinds:
            last = max(last, len(kinds) - 1 - kinds[::-1].index(kind))
    positional: list[Any] = []
    for parameter in parameters[: last + 1]:
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        value = hparams.pop(parameter.name, () if many else parameter.default)
        positional += value if many else [value]
    return positional


def _load_schedulers(optimization: Optimization, states: list[dict[str, Any]]) -> None:
    if len(states) != len(optimization.schedules):
        raise PacelineError(
            "the checkpoint has another number of learning rate schedules",
            got=f"{len(optimization.schedules)} now, {len(states)} in the checkpoint",
        )
    for schedule, state in zip(optimization.schedules, states, strict=True):
        schedule.scheduler.load_state_dict(state)


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
