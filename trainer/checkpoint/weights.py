"""A checkpoint's weights into a module, or a module built from them."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ...common.argument_checks import refuse_unknown
from ...common.retries import retried
from ...errors import PacelineError
from ...parameter_groups import names_of_parameters
from ...strategies import Environment, Single, Strategy, make_precision
from ...strategies.torch_internals import loads_by_itself
from ..plain_names import plain_name
from ..utils.secrets import holds_secret
from . import external_weights
from .files import format as files
from .files.integrity import begin, finish_on_all
from .files.json_codec import encode, is_plain
from .files.locate import find_checkpoint
from .files.reading import hparams_of, loading, read_manifest, read_state
from .files.remote_run import local_path
from .module_changes import make_buffers

M = TypeVar("M", bound=nn.Module)
V = TypeVar("V")
_SHOWN = 6
_SHOWN_OF_A_KIND = 3
_MISSING, _UNKNOWN = "missing in the checkpoint", "not in the model"


def stored_shapes(folder: Path, manifest: dict[str, Any]) -> dict[str, list[int]]:
    """The shapes of all tensors in a checkpoint, by name; of one in parts, the whole one's.

    Raises:
        CheckpointError: for a file that is no safetensors file.
        UnreadableError: for one that the file system does not give.
    """
    from safetensors import SafetensorError

    shapes: dict[str, list[int]] = {}
    for file in files.tensor_files(folder, manifest):
        try:
            retried(partial(_add_shapes, file, shapes))
        except OSError as error:
            raise files.unreadable(file, error) from None
        except (SafetensorError, ValueError, TypeError, AttributeError) as error:
            raise files.CheckpointError(
                "this file of the checkpoint is no safetensors file",
                code="checkpoint-damaged",
                where=str(file),
                got=str(error),
            ) from None
    return shapes


def _add_shapes(path: Path, shapes: dict[str, list[int]]) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as content:
        offsets = json.loads((content.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
        for name in content.keys():  # noqa: SIM118
            part = content.get_slice(name).get_shape()
            start = offsets.get(name, {}).get("saved_offsets", [0] * len(part))
            ends = [a + b for a, b in zip(start, part, strict=True)]
            shapes[name] = [max(pair) for pair in zip(shapes.get(name, ends), ends, strict=True)]


def recorded_hparams(module: Any) -> tuple[dict[str, Any], list[str]]:
    """The constructor arguments that files may hold, encoded, and the names of the others.

    What is no plain data is not kept, and neither is what looks like a secret.
    """
    kept = {k: v for k, v in module.hparams.items() if is_plain(v) and not holds_secret(k, v)}
    return {k: encode(v) for k, v in kept.items()}, [k for k in module.hparams if k not in kept]


def model_shapes(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Those of the weights, by their names in the module."""
    return {n.removeprefix("model."): s for n, s in shapes.items() if n.startswith("model.")}


def callback_tensor(key: str, parameter: str) -> str:
    """The name of a callback's tensor for a parameter; ``key`` is the callback's ``state_key``."""
    return f"callback.{key}/{parameter}"


def stored_names(names: Iterable[str], stored: Collection[str], manifest: dict[str, Any]) -> dict[str, str]:
    """Which stored tensor is loaded for each of the module's, to evaluate or use it: an average, if any.

    Args:
        names: Those of the module.
        stored: Those of the checkpoint.
        manifest: The manifest of the checkpoint.
    """
    key = manifest.get("evaluation_weights")
    averages = {name: callback_tensor(key, name) for name in names} if key else {}
    return {name: averages[name] if averages.get(name) in stored else f"model.{name}" for name in names}


def extra_state(module: nn.Module) -> dict[str, Any]:
    """What a module's state dict holds beside tensors."""
    return {n: v for n, v in module.state_dict().items() if not isinstance(v, Tensor)}


def weight_differences(
    mine: dict[str, Tensor], shapes: dict[str, list[int]], module: nn.Module
) -> list[str]:
    """How a module's tensors differ from those of a checkpoint, by name.

    What is below a part that changes by itself what is loaded into it is no difference.
    """
    missing = [n for n in mine if n not in shapes]
    unknown = [n for n in shapes if n not in mine]
    other = [n for n in mine if n in shapes and list(mine[n].shape) != list(shapes[n])]
    if missing or unknown or other:
        parts = [plain_name(name) for name, part in module.named_modules() if loads_by_itself(part)]
        own = tuple(f"{name}." if name else "" for name in parts)
        kinds = (missing, unknown, other)
        missing, unknown, other = ([n for n in names if not n.startswith(own)] for names in kinds)
    found = [f"{_MISSING}: {n}" for n in missing] + [f"{_UNKNOWN}: {n}" for n in unknown]
    return found + [
        f"{n}: shape {list(shapes[n])} in the checkpoint, {list(mine[n].shape)} in the model" for n in other
    ]


def refuse(what: str, folder: Path, differences: list[str], fix: str | None = None) -> None:
    """One report of all differences, where there are any.

    Raises:
        PacelineError: with the first six of them.
    """
    if differences:
        if folder.is_dir() and any(d.startswith(_UNKNOWN) and plain_name(d) != d for d in differences):
            fix = (
                f"paceline checkpoint consolidate {folder} OUT: _orig_mod in a name is of a compiled part, "
                "and weights are saved without it now"
            )
        count = len(differences)
        more = f"\n    and {count - _SHOWN} more" if count > _SHOWN else ""
        raise PacelineError(
            f"{what}: {count} difference{'s' if count > 1 else ''}",
            code="checkpoint-mismatch",
            where=str(folder),
            got="\n    " + "\n    ".join(differences[:_SHOWN]) + more,
            fix=fix,
        )


def load_weights(
    module: nn.Module, path: Path, strategy: Strategy, strict: bool = True, fix: str | None = None
) -> None:
    """Load what ``find_weights`` found into ``module``. To be called on all ranks.

    Args:
        module: As the strategy has it.
        path: A checkpoint, or weights that others wrote.
        strategy: Reads and loads the tensors.
        strict: Whether both must have the same names and shapes; else what fits is loaded, and a warning
            lists the rest.
        fix: What to do where they have not.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: one report of everything missing, unexpected or of another shape; without
            ``strict`` where nothing fits.
    """
    if not files.is_checkpoint(path):
        _load_external(module, path, external_weights.read(path), strategy, strict, fix)
        return
    with begin(path, strategy.collectives) as check:
        shapes = stored_shapes(path, check.manifest)
        of_model = model_shapes(shapes)
        state = read_state(path, check.manifest)
        make_buffers(module, state.get("module", {}), of_model, strategy.device)
        mine = strategy.weights.module_tensors(module)
        differences = weight_differences(mine, of_model, module)
        if strict:
            refuse("the checkpoint is of another model", path, differences, fix)
        else:
            of_model = _fitting(of_model, mine, path, differences)
        names = stored_names(of_model, shapes, check.manifest)
        like = {stored: mine[name] for name, stored in names.items() if name in mine}
        found = files.tensor_files(path, check.manifest)
        loaded = strategy.weights.load_tensors(found, names.values(), like)
        finish_on_all(check, strategy.collectives)
    if strategy.environment.is_global_zero:
        files.warn_of_unlisted(path, check.manifest)
        if not strict:
            _warn_of(differences, path)
    values = {name: loaded[stored] for name, stored in names.items()}
    if not strict:
        kept = {**strategy.weights.module_tensors(module), **extra_state(module)}
        values = kept | values
        state["extra_state"] = _only(state["extra_state"], kept)
    with loading(path, "extra_state"):
        strategy.weights.load_module(module, {**values, **state["extra_state"]})


def _only(values: dict[str, V], names: Collection[str]) -> dict[str, V]:
    return {name: value for name, value in values.items() if name in names}


def _fitting(
    shapes: dict[str, list[int]], mine: dict[str, Tensor], path: Path, differences: list[str]
) -> dict[str, list[int]]:
    """Those of ``shapes`` that the module has too.

    Raises:
        PacelineError: where there is none.
    """
    found = {n: s for n, s in shapes.items() if external_weights.is_fit(n, s, mine)}
    if not found:
        refuse("no weight of the checkpoint fits the model", path, differences)
    return found


def _warn_of(differences: list[str], path: Path) -> None:
    """One warning of what was not loaded, where there is any."""
    if differences:
        lines = [f"not loaded from {path}; what the model has is as its constructor made it:"]
        for kind in (_MISSING, _UNKNOWN, ""):  # some of each: a new part can have thousands
            found = [d for d in differences if (d.startswith(kind) if kind else ": shape [" in d)]
            lines += found[:_SHOWN_OF_A_KIND]
            if len(found) > _SHOWN_OF_A_KIND:
                lines[-1] += f", and {len(found) - _SHOWN_OF_A_KIND} more"
        warnings.warn("\n    ".join(lines), stacklevel=2)


def _load_external(
    module: nn.Module,
    path: Path,
    content: external_weights.ExternalWeights,
    strategy: Strategy,
    strict: bool = True,
    fix: str | None = None,
) -> None:
    mine = strategy.weights.module_tensors(module)
    ties = [names for names in names_of_parameters(module).values() if len(names) > 1]
    values = external_weights.fit_names(content.tensors, mine, ties, strict)
    shapes = {name: list(value.shape) for name, value in values.items()}
    differences = weight_differences(mine, shapes, module)
    if strict:
        refuse("the weights are of another model", path, differences, fix)
    else:
        values = mine | _only(values, _fitting(shapes, mine, path, differences))
        if strategy.environment.is_global_zero:
            _warn_of(differences, path)
    strategy.weights.load_module(module, {**values, **extra_state(module)})


def find_weights(path: Any, words: Sequence[str] = ()) -> Path:
    """What ``path`` means: a checkpoint, a run's best or latest one, or weights that others wrote.

    Args:
        path: One of these.
        words: What may be given in the place of a path.

    Raises:
        PacelineError: when it is none of them.
    """
    found = local_path(path, "weights")
    if external_weights.is_readable(found) and not files.is_checkpoint(found):
        return found
    return find_checkpoint(found if found.exists() else path, weights=True, words=words)


def build_from_checkpoint(
    cls: type[M],
    path: Any,
    arguments: dict[str, Any],
    strict: bool | None = True,
    build: Callable[[type, dict[str, Any]], Any] | None = None,
    weights: Callable[[Any], dict[str, Tensor]] | None = None,
    safe: bool = True,
) -> M:
    """``TrainModule.load_from_checkpoint``.

    Args:
        cls: The module's class.
        path: A checkpoint, or a run folder.
        arguments: Of the constructor, in the place of recorded ones.
        strict: As in ``load_weights``; None: as ``strict_loading`` of the module says.
        build: Makes the module of its class and arguments; None: the class does.
        weights: Gets the module, and returns what is loaded in the place of the checkpoint's weights.
        safe: False: code of objects in a pickle is run.
    """
    if strict is not None and not isinstance(strict, bool):
        raise PacelineError(
            "load_from_checkpoint: strict is True or False", code="invalid-value", got=strict
        )
    folder = find_weights(path)
    content = None if files.is_checkpoint(folder) else external_weights.read(folder, safe)
    hparams = _recorded(cls, folder, arguments) if content is None else dict(content.hparams)
    parameters = inspect.signature(cls).parameters
    if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        unknown = [name for name in arguments if name not in parameters]
        refuse_unknown(f"the constructor of {cls.__name__}", unknown, parameters, {})
        if content is not None or build is None:  # others, and a constructor itself, record more
            hparams = {name: value for name, value in hparams.items() if name in parameters}
    hparams |= arguments
    try:
        module: Any = (build or construct)(cls, hparams)
    except Exception as error:
        error.add_note(f"{cls.__name__} was built with the arguments that are recorded in {folder}")
        raise
    if not vars(module).get("_configured"):
        module.configure_model()
        vars(module)["_configured"] = True
    strategy = Single()
    strategy.attach(Environment(torch.device("cpu")), make_precision("32"))
    fix = f"{cls.__name__}.load_from_checkpoint(path, strict=False) loads what fits and lists the rest"
    if strict is None:
        strict = bool(getattr(module, "strict_loading", True))
    if weights is not None:
        content = external_weights.ExternalWeights(weights(module))
    if content is None:
        load_weights(module, folder, strategy, strict, fix)
    else:
        _load_external(module, folder, content, strategy, strict, fix)
    return cast(M, module)


def _recorded(cls: type, folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments that a checkpoint keeps; those that it does not are to be given."""
    manifest = read_manifest(folder)
    missing = [name for name in manifest["module"]["not_plain"] if name not in arguments]
    if missing:
        raise PacelineError(
            f"{cls.__name__}.load_from_checkpoint needs what the checkpoint does not keep: "
            + ", ".join(missing),
            code="missing-argument",
            fix=f"{cls.__name__}.load_from_checkpoint(path, {missing[0]}=...)",
        )
    return hparams_of(folder, manifest)


def construct(cls: type, hparams: dict[str, Any]) -> Any:
    """An object of a class, by the arguments of its constructor by name."""
    positional = _by_position(cls, hparams)
    return cls(*positional, **hparams)


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
