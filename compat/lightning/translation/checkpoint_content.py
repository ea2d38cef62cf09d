"""What the ``.ckpt`` file of a checkpoint holds, as Lightning has it, and what hooks make of it."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from .... import PacelineError
from ....strategies.tensors.sharding import local_part
from ....trainer.checkpoint.files.json_codec import is_plain
from ....trainer.plain_names import plain_name
from ....trainer.utils.secrets import holds_secret
from . import LIGHTNING_VERSION
from .checkpoint_file import FROM_FOLDER

_IN_THE_FOLDER: dict[str, Any] = {"loops": {}, "optimizer_states": [], "lr_schedulers": []}
"""What Lightning resumes from; in a file it is empty."""
_ATOMS = (type(None), bool, int, float, str)


@dataclass
class CheckpointContent:
    """What one file is to hold.

    Attributes:
        step: The step of our loop at which it was taken.
        values: All of it; weights whose values the folder has are ``FROM_FOLDER``.
        added: Plain data that hooks have added, for the folder.
        lines: What cannot be written, for the user.
        of_callbacks: The names of what callbacks have added.
    """

    step: int
    values: dict[str, Any]
    added: dict[str, Any]
    lines: list[str]
    of_callbacks: frozenset[str] = frozenset()

    def of_weights(self) -> CheckpointContent:
        """What a file with weights alone is to hold: what the module adds, and nothing of callbacks."""
        dropped = {"callbacks", "optimizer_states", "lr_schedulers", *self.of_callbacks}
        return replace(self, values={n: v for n, v in self.values.items() if n not in dropped})


def content_of(session: Any, trainer: Any, states: Mapping[str, Any] | None) -> CheckpointContent:
    """Call ``on_save_checkpoint``, and copy what it leaves: training continues while it is written.

    Weights that are the module's are taken from the folder. What cannot be pickled, and hyperparameters
    that look like secrets, are not written.

    Args:
        session: Of the module.
        trainer: Our loop.
        states: Those of callbacks, by their keys; None asks them.

    Raises:
        PacelineError: where a hook replaces what is read back from the folder alone.
    """
    epoch = trainer.epoch - (not trainer.counters.samples_in_epoch and trainer.global_step > 0)
    position = {"epoch": epoch, "global_step": session.global_step}
    if states is None:
        states = {one.state_key: one.state_dict() for one in session.callbacks}
        if session.datamodule is not None:
            session.data.capture()
    given = position | _opened(session, states)
    before = dict(given)
    session.hooks.of_callbacks("on_save_checkpoint", given)
    of_callbacks = frozenset(given.keys() - before.keys())
    session.hooks.of_module("on_save_checkpoint", given)
    if replaced := [name for name, empty in _IN_THE_FOLDER.items() if given.get(name, empty) != empty]:
        raise PacelineError(
            "on_save_checkpoint replaced what a checkpoint holds by itself",
            code="reserved-name",
            got=", ".join(replaced),
            fix="data under names of your own",
        )
    added = {name: value for name, value in given.items() if name not in before}
    kept = {name: value for name, value in added.items() if is_plain(value)}
    dropped: list[str] = []
    values = _closed(given, session.module, dropped)
    lines = [
        f"on_save_checkpoint adds {name!r} ({type(value).__name__}), which is no plain data: it is in the "
        ".ckpt file alone, and read from there with weights_only=False"
        for name, value in added.items()
        if name not in kept and name not in dropped
    ]
    lines += [f"warning: {name} cannot be pickled, and is not written to .ckpt files" for name in dropped]
    return CheckpointContent(int(trainer.global_step), values, position | kept, lines, of_callbacks)


def _opened(session: Any, states: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": session.module.state_dict(),
        "callbacks": {key: state for key, state in states.items() if state},
        **copy.deepcopy(_IN_THE_FOLDER),
    }
    for owner in (session.module, session.datamodule):
        if owner is not None and owner.hparams:
            found[owner.CHECKPOINT_HYPER_PARAMS_NAME] = "kwargs"
            found[owner.CHECKPOINT_HYPER_PARAMS_KEY] = dict(owner.hparams)
    if session.datamodule is not None and (state := session.data.state_dict()):
        found[type(session.datamodule).__qualname__] = state
    return found


def _closed(given: Mapping[str, Any], module: nn.Module, dropped: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "state_dict" and isinstance(value, Mapping):
            found[name] = _weights(value, module, dropped)
        elif name.endswith("hyper_parameters") and isinstance(value, Mapping):
            shown = {key: one for key, one in value.items() if not holds_secret(key, one)}
            found[name] = _copies(shown, dropped, name)
        else:
            found |= _copies({name: value}, dropped)
    return found


def _weights(given: Mapping[str, Any], module: nn.Module, dropped: list[str]) -> dict[str, Any]:
    both = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    mine = {plain_name(name): _place(tensor) for tensors in both for name, tensor in tensors}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Tensor) and mine.get(plain_name(name)) == _place(value):
            found[name] = FROM_FOLDER
        else:
            found |= _copies({name: value}, dropped, "state_dict")
    return found


def _place(tensor: Tensor) -> int:
    return int(local_part(tensor).data_ptr())


def _copies(values: Mapping[str, Any], dropped: list[str], inside: str = "") -> dict[str, Any]:
    """Copies of values, but for those that cannot be pickled, whose names are noted."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = _copy(value)
        except Exception:  # whatever an object's class raises
            dropped.append(f"{inside}[{name!r}]" if inside else name)
    return found


def _copy(value: Any) -> Any:
    """A copy that can be pickled."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (dict, OrderedDict):
        return type(value)((_copy(key), _copy(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    return value if type(value) in _ATOMS else pickle.loads(pickle.dumps(value))
