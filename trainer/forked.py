"""A notebook's verbs on ranks that are forked for them, and what those bring back to its Trainer."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import PacelineError
from ..strategies import Environment, Single, find_environment
from ..strategies.launch.forked_ranks import run_forked
from ..strategies.launch.launcher import new_job_folder
from .checkpoint.files import commit
from .checkpoint.module_changes import make_buffers
from .checkpoint.stateful import CallbackStates
from .checkpoint.weights import extra_state, refuse, weight_differences
from .faults.signals import raise_signal
from .loops import training_loop  # noqa: F401  (once, not by each rank)
from .loops.context import RunContext, fits
from .loops.lifecycle import attach
from .loops.setup import evaluation_setup, fit_setup  # noqa: F401  (once, not by each rank)
from .module import configure

_WEIGHTS, _REST = "weights.safetensors", "rest.pickle"
_TRAINS = "fit"


def run_on_forked_ranks(
    verb: Callable[..., Any], trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Fork the ranks, call the verb in each of them, and take back what rank 0 has at the end.

    Args:
        verb: The method of the Trainer.
        trainer: Its object, in the notebook's process.
        args: The verb's arguments.
        kwargs: The verb's arguments by name.

    Returns:
        What rank 0 returned.
    """
    given = inspect.signature(verb).bind(trainer, *args, **kwargs).arguments
    given = {**given, **given.get("more", {})}
    work = partial(verb, trainer, *args, **kwargs)
    with new_job_folder() as folder:
        number = run_forked(
            trainer.strategy.environment.starts,
            partial(_be_rank, trainer, verb.__name__, work, given, Path(folder)),
        )
        result = _take_back(trainer, verb.__name__, given, Path(folder))
    if number is not None:
        raise_signal(number)
    return result


# -- a rank ------------------------------------------------------------------------------------


def _be_rank(trainer: Any, verb: str, work: Callable[[], Any], given: dict[str, Any], folder: Path) -> None:
    settings, strategy, earlier = trainer.settings, trainer.strategy, _state(trainer)
    environment = find_environment(settings.accelerator, settings.devices, settings.num_nodes)
    attach(strategy, settings, environment, strategy.precision)
    _continue(trainer, earlier)  # its parts ask for their rank when they are made
    result = None
    try:
        result = work()
    except SystemExit:
        if trainer._run.stop.signal is None:  # all ranks have stopped in order otherwise
            raise
    module = trainer._module
    weights: dict[str, torch.Tensor] = {}
    if module is not None and (verb == _TRAINS or given.get("weights") is not None):
        weights = trainer.strategy.weights.full_tensors(module)
    if not trainer.is_global_zero:
        return
    # Copied: safetensors takes no two tensors that share memory.
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in weights.items()}
    commit.save_tensors(copies, folder / _WEIGHTS)
    rest = {
        "state": _state(trainer),
        "result": result,
        "extra": extra_state(module) if weights else {},
        "buffers": {n: str(b.dtype)[6:] for n, b in module.named_buffers()} if weights else {},
        "module": _name_of(module, given),
        "datamodule": _name_of(trainer._datamodule, given),
    }
    with (folder / _REST).open("wb") as file:
        pickle.dump(rest, file)


def _name_of(value: Any, given: dict[str, Any]) -> str | None:
    """The argument that this object was given as."""
    return next((n for n, one in given.items() if one is value and value is not None), None)


# -- the notebook's process ------------------------------------------------------------------------


def _take_back(trainer: Any, verb: str, given: dict[str, Any], folder: Path) -> Any:
    with (folder / _REST).open("rb") as file:
        rest = pickle.load(file)
    if verb == _TRAINS:
        next(fits)
        trainer._fit = None
    _continue(trainer, rest["state"])
    trainer._module = given.get(rest["module"], trainer._module)
    trainer._datamodule = given.get(rest["datamodule"])
    _load_weights(trainer, rest["extra"], rest["buffers"], folder)
    return rest["result"]


def _load_weights(trainer: Any, extra: dict[str, Any], buffers: dict[str, str], folder: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(folder / _WEIGHTS)
    if not tensors:
        return
    module, here = trainer.module, Single()
    here.attach(Environment(torch.device("cpu")), trainer.strategy.precision)
    configure(module)
    here.prepare_module(module)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    mine = here.weights.module_tensors(module)
    other = {n: dtype for n, dtype in buffers.items() if n in shapes and _other(mine.get(n), shapes[n])}
    make_buffers(module, {"buffers": other}, shapes, here.device)
    differences = weight_differences(here.weights.module_tensors(module), shapes, module)
    try:
        refuse(
            "the ranks have changed the module's parts, and the notebook's module has others",
            folder,
            differences,
        )
    except PacelineError as error:
        latest = trainer.run.latest
        error.add_note(
            "fix: make them in __init__ or configure_model; what was trained is in "
            + ("no checkpoint" if latest is None else str(latest))
        )
        raise
    here.weights.load_module(module, {**tensors, **extra})


def _other(tensor: torch.Tensor | None, shape: list[int]) -> bool:
    return tensor is None or list(tensor.shape) != shape


# -- both --------------------------------------------------------------------------------------


def _state(trainer: Any) -> dict[str, Any]:
    """What is known of the trainer's last run, as plain data."""
    run = trainer._run
    return {
        "fit_number": run.fit_number,
        "counters": run.state.state_dict(),
        "lengths": run.limits.lengths,
        "metrics": dict(run.logger.latest),
        "folder": (run.directory.name, run.directory.path),
        "end": run.stop.request_agreed_on,
        "callbacks": CallbackStates(run.callbacks).state_dict(),
    }


def _continue(trainer: Any, state: dict[str, Any]) -> None:
    """Have the trainer's last run be the one that ``_state`` described, with parts of this process."""
    run = RunContext.begin(trainer.settings, trainer.strategy, trainer.callbacks, state["fit_number"])
    run.state.load_state_dict(state["counters"])
    run.limits.set_lengths(state["lengths"])
    if run.state.decay_steps:
        run.limits.end_after_decay(run.state.decay_start, run.state.decay_steps)
    run.logger.latest.update(state["metrics"])
    run.directory.take(*state["folder"])
    run.stop.end_as(*state["end"])
    CallbackStates(run.callbacks).load_state_dict(state["callbacks"])
    trainer._run = run
