"""The Trainer's arguments, validated at construction, all violations together.

pydantic is imported here, at the first construction and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ...callbacks.base import Callback
from ...callbacks.logger import Logger
from ...durations import Duration
from ...errors import PacelineError, nearest
from ...strategies import PRECISIONS, STRATEGIES, Precision, Strategy, find_environment
from ..faults.watchdog import PHASES
from ..runtime.compilation import BLOCKS, MODES, read_setting

PEERS = {
    "accumulate_grad_batches": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "gradient_clip_val": "clip_grad_norm",
    "max_grad_norm": "clip_grad_norm",
    "gradient_clipping": "clip_grad_norm",
    "gradient_clip_algorithm": "clip_grad_norm or clip_grad_value",
    "check_val_every_n_epoch": 'validate_every="2ep"',
    "val_check_interval": 'validate_every="0.25ep"',
    "eval_steps": "validate_every",
    "eval_strategy": 'validate_every="1ep"',
    "log_every_n_steps": "log_every",
    "logging_steps": "log_every",
    "num_sanity_val_steps": "sanity_val_batches",
    "logger": "loggers",
    "report_to": "loggers",
    "enable_progress_bar": "progress",
    "disable_tqdm": "progress=False",
    "enable_checkpointing": "checkpoint",
    "enable_model_summary": "progress",
    "save_steps": "callbacks=[Checkpoint(every=...)]",
    "save_total_limit": "callbacks=[Checkpoint(keep=...)]",
    "default_root_dir": "run_dir",
    "output_dir": "run_dir",
    "num_train_epochs": "max_epochs",
    "epochs": "max_epochs",
    "mixed_precision": "precision",
    "fp16": 'precision="fp16"',
    "bf16": 'precision="bf16"',
    "gpus": "devices",
    "num_processes": "devices",
    "resume_from_checkpoint": "fit(resume=...)",
    "learning_rate": "configure_optimizers",
    "train_batch_size": "global_batch_size",
    "per_device_train_batch_size": "the DataLoader's batch_size",
    "detect_anomaly": "torch.autograd.set_detect_anomaly(True)",
    "benchmark": "torch.backends.cudnn.benchmark",
}


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _duration(value: Any) -> Any:
    if value is not None:
        Duration.parse(value)
    return value


def _seconds(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, int) and Duration.parse(value).unit == "s":
        return value
    raise ValueError("time")


def _timeouts(value: Any) -> Any:
    by_phase = value if isinstance(value, dict) else {}
    if isinstance(value, dict) and not set(value) <= set(PHASES):
        raise ValueError("phases")
    for one in by_phase.values() if isinstance(value, dict) else [value]:
        if one is not None and one is not False:
            _seconds(one)
    return value


def _strategy(value: Any) -> Any:
    if isinstance(value, Strategy) or value in STRATEGIES:
        return value
    raise ValueError("a strategy")


def _devices(value: Any) -> Any:
    number = isinstance(value, int) and not isinstance(value, bool)
    if number and (value >= 1 or value == -1):
        return value
    if isinstance(value, str) and (value == "auto" or (value != "0" and _are_ids(value.split(",")))):
        return value
    if isinstance(value, (list, tuple)) and value and _are_ids(value):
        return value
    raise ValueError("devices")


def _are_ids(parts: Any) -> bool:
    return all(type(p) in (int, str) and str(p).strip().isdigit() for p in parts)


def _folder(value: Any) -> Any:
    if value is not None and not isinstance(value, (str, PathLike)):
        raise ValueError("a folder")
    return value


_Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
_Amount = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
_Duration = Annotated[Any, BeforeValidator(_duration)]
_Limit = (
    Annotated[int, BeforeValidator(_no_bool), Field(ge=0, strict=True)]
    | Annotated[float, Field(ge=0, le=1, strict=True)]
    | None
)


class TrainerArguments(BaseModel):
    """Types and ranges of what ``Trainer`` takes; the meanings stand there."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    strategy: Annotated[Any, BeforeValidator(lambda v: _strategy(v))] = "auto"
    precision: Any = "32"
    accelerator: Annotated[str, Field(min_length=1)] = "auto"
    devices: Annotated[Any, BeforeValidator(_devices)] = "auto"
    num_nodes: _Count = 1
    max_epochs: _Count | None = None
    max_steps: _Count | None = None
    max_time: Annotated[Any, BeforeValidator(_seconds)] = None
    global_batch_size: _Count | None = None
    accumulate: _Count = 1
    clip_grad_norm: _Amount | None = None
    clip_grad_value: _Amount | None = None
    validate_every: _Duration = "1ep"
    log_every: _Duration = None
    sanity_val_batches: Annotated[int, BeforeValidator(_no_bool), Field(ge=0)] = 2
    limit_train_batches: _Limit = None
    limit_val_batches: _Limit = None
    limit_test_batches: _Limit = None
    limit_predict_batches: _Limit = None
    fast_dev_run: bool = False
    overfit_batches: _Limit = 0
    callbacks: Annotated[list[Callback], BeforeValidator(lambda v: _as_list(v))] = []
    progress: bool = True
    checkpoint: bool = True
    loggers: Annotated[bool | list[Logger], BeforeValidator(lambda v: _as_loggers(v))] = True
    nonfinite: Annotated[str, Field(pattern=r"^(raise|ignore|skip(:[1-9][0-9]*)?)$")] = "raise"
    on_data_error: Annotated[str, Field(pattern=r"^(raise|(retry|skip)(:[1-9][0-9]*)?)$")] = "raise"
    max_restarts: Annotated[int, BeforeValidator(_no_bool), Field(ge=0)] = 0
    timeouts: Annotated[Any, BeforeValidator(lambda v: _timeouts(v))] = None
    debug: bool = False
    sync_batchnorm: bool = False
    profile: None = None
    seed: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**63)] = 0
    deterministic: bool = False
    compile: Annotated[Any, BeforeValidator(lambda v: _compile(v))] = False
    run_dir: Annotated[Any, BeforeValidator(_folder)] = "runs"
    name: Annotated[str, Field(pattern=r"^[\w+=-][\w.+=-]*(/[\w+=-][\w.+=-]*)*$")] | None = None


_ALLOWED = {
    "max_epochs": "an integer of at least 1, or None",
    "max_steps": "an integer of at least 1, or None",
    "max_time": 'a time such as "30min", "2h", "00:30:00" or a timedelta, or None',
    "global_batch_size": "an integer of at least 1, or None",
    "accumulate": "an integer of at least 1",
    "clip_grad_norm": "a number above 0, or None",
    "clip_grad_value": "a number above 0, or None",
    "validate_every": 'a duration such as 500, "1ep", "0.25ep", "10min", or None for never',
    "log_every": 'a duration such as 50, "1ep", "30s", or None for every 50 steps',
    "sanity_val_batches": "an integer of at least 0",
    "limit_train_batches": "a count (int), a part (float from 0.0 to 1.0), or None",
    "callbacks": "objects of paceline.callbacks.Callback",
    "loggers": "True, False, or objects of paceline.callbacks.Logger",
    "on_data_error": "'raise', 'retry', 'retry:5', 'skip', 'skip:100'",
    "max_restarts": "an integer of at least 0",
    "timeouts": 'a time such as "10min", times by phase such as {"step": "10min"} (phases: '
    + ", ".join(PHASES)
    + "), None, or False for none",
    "compile": "True, False, 'blocks', a mode ("
    + ", ".join(MODES)
    + "), or a dict of torch.compile's arguments",
    "nonfinite": "'raise', 'skip', 'skip:100', 'ignore'",
    "seed": "an integer from 0 to 2**63 - 1",
    "strategy": ", ".join(STRATEGIES) + ", or an object of paceline.strategies.Strategy",
    "num_nodes": "an integer of at least 1",
    "name": "letters, digits and . _ + = - (no dot first), parts separated by /",
    "accelerator": "auto, cpu, gpu, or a device type that torch.accelerator knows",
    "devices": 'a count from 1 on, -1 for all, a list of ids, "0,1" or "auto"',
    "run_dir": "a folder, as a string or a Path; None: nothing is written",
}
for _limit in ("val", "test", "predict"):
    _ALLOWED[f"limit_{_limit}_batches"] = _ALLOWED["limit_train_batches"]
_ALLOWED["overfit_batches"] = "a count (int), a part (float from 0.0 to 1.0), or 0"
_SHOWN = 7  # with the traceback's head, the user's line and the rest: 12 lines
_CHOICES = {"nonfinite": ("raise", "skip", "ignore"), "compile": (BLOCKS, *MODES)}
_LATER = {
    "profile": "None",
}


def _as_list(value: Any) -> Any:
    if isinstance(value, Callback):
        return [value]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _compile(value: Any) -> Any:
    if value is not False:
        read_setting(value)
    return value


def _as_loggers(value: Any) -> Any:
    return value if isinstance(value, bool) else _as_list(value)


def validate_arguments(given: dict[str, Any]) -> TrainerArguments:
    """Check all arguments at once.

    Raises:
        PacelineError: one report of every argument that is unknown, of the wrong type or out of range.
    """
    arguments, problems = find_problems(given)
    if problems or arguments is None:
        raise report("Trainer", [f"{name}: {text}" for name, text in problems])
    return arguments


def report(who: str, problems: list[str]) -> PacelineError:
    """One error of at most 12 lines for any number of problems."""
    shown = [f"  {line}" for line in problems[:_SHOWN]]
    shown += [f"  and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    head = "1 invalid argument" if len(problems) == 1 else f"{len(problems)} invalid arguments"
    return PacelineError("\n".join([f"{who}: {head}", *shown]))


def find_problems(given: dict[str, Any]) -> tuple[TrainerArguments | None, list[tuple[str, str]]]:
    """The validated arguments, where they can be read, and (name, what is wrong) for each bad one."""
    fields = TrainerArguments.model_fields
    problems = [(name, _unknown(name)) for name in given if name not in fields]
    arguments = None
    try:
        arguments = TrainerArguments(**{k: v for k, v in given.items() if k in fields})
    except ValidationError as error:
        wrong = list(dict.fromkeys(str(e["loc"][0]) for e in error.errors()))
        problems += [(name, _violation(name, given[name])) for name in wrong]
    problems += _precision_problems(given)
    if not {"accelerator", "devices", "num_nodes"} & {name for name, _ in problems}:
        problems += _device_problems(given)
    if arguments is not None:
        problems += _together(arguments)
    return arguments, problems


def _unknown(name: str) -> str:
    ours = PEERS.get(name)
    if ours is None:
        meant = nearest(name, TrainerArguments.model_fields)
        return "no such argument" + (f"; did you mean {meant}?" if meant else "")
    return f"unknown argument; use {ours}"


def _violation(name: str, value: Any) -> str:
    got = _brief(value)
    if name in _LATER:
        return f"got {got}; allowed in this version: {_LATER[name]}"
    meant = ""
    allowed = _ALLOWED.get(name, "True, False")
    if isinstance(value, str) and name in _CHOICES:
        near = nearest(value, _CHOICES[name])
        meant = f"; did you mean {near!r}?" if near else ""
    if name == "strategy" and isinstance(value, str):
        return _as_line("strategy", value)
    return f"got {got}; allowed: {allowed}{meant}"


def _brief(value: Any) -> str:
    got = " ".join(repr(value).split())
    return got if len(got) <= 60 else got[:57] + "..."


def _as_line(name: str, value: Any) -> str:
    """The message of the part that reads this argument, on one line."""
    from ...strategies import make_precision, make_strategy

    try:
        make_strategy(value) if name == "strategy" else make_precision(value)
    except PacelineError as error:
        first, *rest = str(error).splitlines()
        what = first.partition(": ")[2]
        return "; ".join([what, *(line.strip() for line in rest)])
    return ""


def _precision_problems(given: dict[str, Any]) -> list[tuple[str, str]]:
    precision = given.get("precision", "32")
    if isinstance(precision, Precision):
        return []
    if isinstance(precision, bool) or not isinstance(precision, (str, int)):
        return [("precision", f"got {_brief(precision)}; allowed: {', '.join(PRECISIONS)}")]
    line = _as_line("precision", precision)
    return [("precision", line)] if line else []


def _device_problems(given: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        fields = ("accelerator", "devices", "num_nodes")
        find_environment(*(given.get(f, TrainerArguments.model_fields[f].default) for f in fields))
    except PacelineError as error:
        name = "accelerator" if "accelerator=" in str(error) else "devices"
        return [(name, "; ".join(line.strip() for line in str(error).splitlines()))]
    return []


def _together(arguments: TrainerArguments) -> list[tuple[str, str]]:
    problems = []
    if arguments.global_batch_size is not None and arguments.accumulate != 1:
        problems.append(("accumulate", "follows from global_batch_size; give one of the two"))
    keys = [c.state_key for c in arguments.callbacks]
    doubled = sorted({k for k in keys if keys.count(k) > 1})
    if doubled:
        problems.append(("callbacks", f"two of {doubled[0]}; give each a name="))
    return problems


def elapsed_limit(max_time: str | timedelta | None) -> float | None:
    """``max_time`` in seconds."""
    return None if max_time is None else float(Duration.parse(max_time).amount)
