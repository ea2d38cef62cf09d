"""What a checkpoint holds of a run, and how it is put back: everything by name, nothing by position."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import PacelineError, nearest
from ..strategies.single import Single
from . import checkpoint_files as files
from .batch import map_tensors
from .optimization import Optimization
from .plain import decode, encode, is_plain
from .rng import full_state, set_full_state

if TYPE_CHECKING:
    from .module import TrainModule
    from .session import Session

M = TypeVar("M", bound="TrainModule")


def save(trainer: Session, folder: Path) -> None:
    """Write a checkpoint of a run at a step boundary."""
    module, strategy = trainer.module, trainer.strategy
    tensors = {f"model.{name}": value for name, value in _tensors(module).items()}
    if not module.automatic_optimization:  # gradients may be on their way over several steps
        grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        tensors |= {f"grad.{name}": value for name, value in grads.items()}
    numbers: dict[str, Any] = {}
    for index, optimizer in enumerate(trainer.optimization.optimizers):
        found, plain = _optimizer_state(module, optimizer)
        tensors |= {f"optim.{index}.{name}": value for name, value in found.items()}
        numbers[str(index)] = plain
    extra: dict[str, Any] = {}
    trainer.hooks.call("on_save_checkpoint", trainer, extra)
    counters = trainer.state.state_dict() | {"elapsed": trainer.clock()}
    state = {
        "counters": counters,
        "rng": full_state(strategy.device),
        "optimizers": numbers,
        "schedulers": [s.scheduler.state_dict() for s in trainer.optimization.schedules],
        "precision": strategy.precision.state_dict(),
        "callbacks": {c.state_key: c.state_dict() for c in trainer.callbacks},
        "data": trainer.feed_state(),
        "metrics": {"latest": trainer.metrics, "train": trainer.train_store.state_dict()},
        "metric_objects": _metric_objects(module, trainer),
        "datamodule": trainer.datamodule.state_dict() if trainer.datamodule is not None else {},
        "extra_state": {n: v for n, v in module.state_dict().items() if not isinstance(v, Tensor)},
        "hooks": extra,
    }
    manifest = {
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
    files.write(folder, strategy, tensors, encode(state), manifest)


def restore(trainer: Session, folder: Path) -> None:
    """Put a run back where a verified checkpoint left it."""
    manifest = files.read_manifest(folder)
    state: dict[str, Any] = decode(files.read_state(folder))
    module, strategy = trainer.module, trainer.strategy
    names = stored_names(folder, manifest)
    load_weights(module, folder, strategy, names)
    grads = strategy.load_tensors(str(folder), [n for n in names if n.startswith("grad.")])
    for name, parameter in module.named_parameters():
        if f"grad.{name}" in grads:
            parameter.grad = grads[f"grad.{name}"].to(parameter.device)
    optimizers = trainer.optimization.optimizers
    if len(optimizers) != len(state["optimizers"]):
        raise PacelineError(
            "the checkpoint has another number of optimizers",
            got=f"{len(optimizers)} now, {len(state['optimizers'])} in {folder}",
        )
    for index, optimizer in enumerate(optimizers):
        prefix = f"optim.{index}."
        wanted = [name for name in names if name.startswith(prefix)]
        found = strategy.load_tensors(str(folder), wanted) if wanted else {}
        tensors = {name.removeprefix(prefix): value for name, value in found.items()}
        _load_optimizer(module, optimizer, tensors, state["optimizers"][str(index)])
    _load_schedulers(trainer.optimization, state["schedulers"])
    strategy.precision.load_state_dict(state["precision"])
    trainer.state.load_state_dict(state["counters"])
    for callback in trainer.callbacks:
        if state["callbacks"].get(callback.state_key):
            callback.load_state_dict(state["callbacks"][callback.state_key])
    trainer.metrics.update(state["metrics"]["latest"])
    trainer.train_store.load_state_dict(state["metrics"]["train"])
    _load_metric_objects(
        module, trainer, map_tensors(state["metric_objects"], lambda t: t.to(strategy.device))
    )
    trainer.load_feed_state(state["data"])
    if trainer.datamodule is not None and state["datamodule"]:
        trainer.datamodule.load_state_dict(state["datamodule"])
    trainer.hooks.call("on_load_checkpoint", trainer, state["hooks"])
    set_full_state(state["rng"], strategy.device)


def stored_names(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """The names of all tensors in a checkpoint."""
    from safetensors import safe_open

    names: list[str] = []
    for file in manifest["files"]:
        if file.endswith(".safetensors"):
            with safe_open(folder / file, framework="pt") as content:
                names += content.keys()
    return names


def load_weights(module: nn.Module, folder: Path, strategy: Any, names: list[str] | None = None) -> None:
    """Load a checkpoint's weights into ``module``.

    Args:
        names: All tensors of a checkpoint that is verified already; None verifies it.

    Raises:
        PacelineError: one report of everything missing, unexpected or of another shape.
    """
    if names is None:
        names = stored_names(folder, files.verify(folder))
    stored = {n.removeprefix("model."): n for n in names if n.startswith("model.")}
    mine = _tensors(module)
    loaded = strategy.load_tensors(str(folder), stored.values())
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
    module.load_state_dict({**values, **extra})


def export(module: TrainModule, folder: Path, submodule: str | None) -> Path:
    """``Trainer.export``."""
    from safetensors.torch import save_model

    parts = dict(module.named_modules())
    if submodule is not None and submodule not in parts:
        raise PacelineError(
            f"{type(module).__name__} has no submodule {submodule!r}",
            meant=nearest(submodule, parts),
        )
    part = module if submodule is None else parts[submodule]
    folder.mkdir(parents=True, exist_ok=True)
    save_model(part, str(folder / "model.safetensors"))
    about = {
        "class": f"{type(part).__module__}:{type(part).__qualname__}",
        "hparams": {k: v for k, v in module.hparams.items() if is_plain(v)},
    }
    (folder / "config.json").write_text(json.dumps(encode(about), indent=1) + "\n")
    return folder


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


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _parameter_names(module: nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in module.named_parameters()}


def _optimizer_state(module: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Moments by ``<parameter>.<key>``, and the rest: groups and plain values, by parameter name."""
    names = _parameter_names(module)
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            name = f"{names[id(parameter)]}.{key}"
            (tensors if isinstance(value, Tensor) else values)[name] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return tensors, {"groups": groups, "values": values}


def _load_optimizer(
    module: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
) -> None:
    names = _parameter_names(module)
    content = optimizer.state_dict()
    parameters = {
        position: parameter
        for group, saved in zip(optimizer.param_groups, content["param_groups"], strict=True)
        for position, parameter in zip(saved["params"], group["params"], strict=True)
    }
    by_position = {position: names[id(parameter)] for position, parameter in parameters.items()}
    mine = [[by_position[i] for i in saved["params"]] for saved in content["param_groups"]]
    if [sorted(g) for g in mine] != [sorted(g["params"]) for g in plain["groups"]]:
        raise PacelineError(
            "the optimizer's parameter groups are not those of the checkpoint",
            got=f"{[len(g) for g in mine]} parameters a group",
            allowed=f"{[len(g['params']) for g in plain['groups']]}, by the same names",
        )
    everything: dict[str, Any] = {**tensors, **plain["values"]}
    by_name: dict[str, dict[str, Any]] = {}
    for full, value in everything.items():
        name, _, key = full.rpartition(".")
        by_name.setdefault(name, {})[key] = value
    content["state"] = {i: by_name[n] for i, n in by_position.items() if n in by_name}
    for saved, group in zip(content["param_groups"], plain["groups"], strict=True):
        saved.update({key: value for key, value in group.items() if key != "params"})
    optimizer.load_state_dict(content)
    # torch casts state to its parameter's dtype; what was kept in another one stays in it.
    for position, kept in content["state"].items():
        state = optimizer.state[parameters[position]]
        for key, value in kept.items():
            if isinstance(value, Tensor) and state[key].dtype != value.dtype:
                state[key] = value.to(state[key].device)


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
    return {
        path: {
            "state": dict(part.metric_state),
            "count": getattr(part, "_update_count", 0),
            "logged_as": waiting.get(id(part)),
        }
        for path, part in module.named_modules()
        if _is_metric(part) or id(part) in waiting
    }


def _is_metric(part: Any) -> bool:
    """A torchmetrics Metric; a collection has a state too, but only of its members."""
    return isinstance(getattr(part, "metric_state", None), Mapping) and hasattr(part, "_defaults")


def _load_metric_objects(module: nn.Module, trainer: Session, states: dict[str, Any]) -> None:
    parts = dict(module.named_modules())
    for path, saved in states.items():
        part: Any = parts.get(path)
        if part is None:
            continue
        if _is_metric(part):
            for key, value in saved["state"].items():
                setattr(part, key, value)
            part._update_count = saved["count"]
        if saved["logged_as"] is not None:
            trainer.train_store.objects[saved["logged_as"]] = part
