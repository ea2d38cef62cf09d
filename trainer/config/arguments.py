"""The Trainer's arguments: type, range, default and meaning of each.

tests/make_api.py writes the meanings into ``Trainer``'s docstring and docs/api; what an error says
is allowed is from here too. pydantic is imported here, at the first construction and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from ...callbacks.base import Callback
from ...callbacks.defaults import LOGGERS
from ...callbacks.loggers.logger import Logger
from ...callbacks.monitors.profiler import Profiler
from ...common.remote_paths import is_remote
from ...durations import Duration
from ...strategies import PRECISIONS, STRATEGIES, Strategy
from ..faults.watchdog import PHASES
from ..rng import default_seed
from ..runtime.compilation import BLOCKS, MODES, read_setting
from ..utils.paths import as_path


def elapsed_limit(max_time: str | timedelta | None) -> float | None:
    """``max_time`` in seconds."""
    return None if max_time is None else float(Duration.parse(max_time).amount)


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
    if number and (1 <= value < 2**20 or value == -1):
        return value
    if isinstance(value, str) and (value == "auto" or (value != "0" and _are_ids(value.split(",")))):
        return value
    if isinstance(value, (list, tuple)) and value and _are_ids(value):
        return value
    raise ValueError("devices")


def _are_ids(parts: Any) -> bool:
    return all(type(p) in (int, str) and str(p).strip().isdecimal() for p in parts)


def _folder(value: Any) -> Any:
    return value if value is None or is_remote(value) else as_path(value, "run_dir")


def _as_list(value: Any) -> Any:
    if isinstance(value, Callback):
        return [value]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _seed(value: Any) -> Any:
    return default_seed() if value is None else value


def _compile(value: Any) -> Any:
    if value is not False:
        read_setting(value)
    return value


def _profile(value: Any) -> Any:
    if isinstance(value, (bool, Profiler)):
        return value
    raise ValueError("a switch")


def _as_loggers(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, bool) else _as_list(value)


def _logger(value: Any) -> Any:
    if isinstance(value, Logger) or (isinstance(value, str) and value in OFF):
        return value
    raise ValueError("a logger")


def _argument(default: Any, meaning: str, allowed: str = "True, False", **limits: Any) -> Any:
    """A field.

    Args:
        default: Its default.
        meaning: What it is; several in a row with one meaning are described together.
        allowed: What an error says may be given.
        **limits: Limits that pydantic checks.
    """
    return Field(default, description=meaning, json_schema_extra={"allowed": allowed}, **limits)


_Number = Annotated[int, BeforeValidator(_no_bool)]
_Count = Annotated[_Number, Field(ge=1)]
_CountOrZero = Annotated[_Number, Field(ge=0, strict=True)]
_Amount = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
_Duration = Annotated[Any, BeforeValidator(_duration)]
_Limit = (
    Annotated[_Number, Field(ge=0, strict=True)] | Annotated[float, Field(ge=0, le=1, strict=True)] | None
)
OFF = tuple(f"-{name}" for name in LOGGERS)
"""What leaves one of the default loggers out."""
_A_COUNT = "an integer of at least 1"
_A_COUNT_OR_NONE = _A_COUNT + ", or None"
_AN_AMOUNT = "a number above 0, or None"
_A_LIMIT = "a count (int), a part (float from 0.0 to 1.0), or "
_THE_LIMITS = "The first limit reached ends the run. Without any: one epoch."
_THE_LEAST = (
    "A stop that a callback asks for, such as early stopping, waits until both are reached; signals do not."
)
_LIMITED = (
    "A count (int) or a part (float) of the loader's batches, over all ranks; in training without "
    "``global_batch_size`` each rank has so many."
)
_FOLDERS = (
    "Runs go to ``run_dir/name/<n>``; the name is the module's class unless given. With ``run_dir=None`` "
    "nothing is written."
)


class TrainerArguments(BaseModel):
    """What ``Trainer`` takes."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    _seed_by_default: bool = PrivateAttr(default=False)
    _source: dict[str, Any] | None = PrivateAttr(default=None)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._seed_by_default = given.get("seed") is None

    @property
    def seed_by_default(self) -> bool:
        """Whether the seed was not given to the Trainer: a run that resumes keeps its own."""
        return self._seed_by_default

    @property
    def source(self) -> dict[str, Any] | None:
        """The configuration that the Trainer was made from, as ``paceline fit`` read it."""
        return self._source

    @source.setter
    def source(self, config: dict[str, Any]) -> None:
        self._source = config

    strategy: Annotated[Any, BeforeValidator(_strategy)] = _argument(
        "auto",
        "A name of ``paceline.strategies.STRATEGIES`` or of an installed entry point, or a ``Strategy`` "
        'object. ``"auto"`` is the simplest one for the devices, or one that shards where the model\'s '
        "states do not fit them.",
        ", ".join(STRATEGIES) + ", or an object of paceline.strategies.Strategy",
    )
    precision: Any = _argument(
        "32",
        '``"32"``, ``"bf16"``, ``"fp16"``, ``"64"``, ``"bf16-true"``, ``"fp16-true"``, ``"fp8"``, or a '
        "``Precision`` object.",
        ", ".join(PRECISIONS),
    )
    accelerator: str = _argument(
        "auto",
        '``"auto"``, ``"cpu"``, ``"gpu"`` or a device type ``torch.accelerator`` knows.',
        "auto, cpu, gpu, or a device type that torch.accelerator knows",
        min_length=1,
    )
    devices: Annotated[Any, BeforeValidator(_devices)] = _argument(
        "auto",
        'A count, -1, a list of ids, ``"0,1"`` or ``"auto"``: all accelerators, one CPU process, or the '
        "world a launcher made. ``fit`` starts a rank for each; the script is run in all of them, "
        "a notebook is forked.",
        'a count from 1 on, -1 for all, a list of ids, "0,1" or "auto"',
    )
    num_nodes: _Count = _argument(1, "Machines that take part; each starts ``devices`` ranks.", _A_COUNT)
    numa_affinity: bool = _argument(
        False,
        "While a run lasts, pin each rank to CPUs: those of its accelerator's NUMA node, or on the CPU its "
        "own part of the machine's.",
    )
    max_epochs: _Count | None = _argument(None, _THE_LIMITS, _A_COUNT_OR_NONE)
    max_steps: _Count | None = _argument(None, _THE_LIMITS, _A_COUNT_OR_NONE)
    min_epochs: _Count | None = _argument(None, _THE_LEAST, _A_COUNT_OR_NONE)
    min_steps: _Count | None = _argument(None, _THE_LEAST, _A_COUNT_OR_NONE)
    max_time: Annotated[Any, BeforeValidator(_seconds)] = _argument(
        None,
        'As ``max_epochs``, in time: ``"30min"``, ``"2h"``, a timedelta.',
        'a time such as "30min", "2h", "00:30:00" or a timedelta, or None',
    )
    global_batch_size: _Count | None = _argument(
        None, "Samples in an optimizer step; else batch size x ranks x ``accumulate``.", _A_COUNT_OR_NONE
    )
    accumulate: _Count = _argument(1, "Micro-batches in a step.", _A_COUNT)
    batch_size: Literal["auto"] | None = _argument(
        None,
        '``"auto"``: the samples of a step stay those of the loader\'s batch size, the ranks and '
        "``accumulate``, and each rank takes its part in micro-batches of the largest size that its memory "
        "holds. It is found before step 1, by an estimate and trials; where memory runs out in a later "
        "step, that step is repeated in halves. None: batches of the loader's size.",
        "'auto', or None; a number is the DataLoader's batch_size or global_batch_size",
    )
    clip_grad_norm: _Amount | None = _argument(
        None, "The largest norm of a step's gradients; larger ones are scaled. None: any.", _AN_AMOUNT
    )
    clip_grad_value: _Amount | None = _argument(
        None, "The largest absolute value in a gradient; larger ones are cut. None: any.", _AN_AMOUNT
    )
    validate_every: _Duration = _argument(
        "1ep",
        "A duration; None never validates.",
        'a duration such as 500, "1ep", "0.25ep", "10min", or None for never',
    )
    log_every: _Duration = _argument(
        None,
        "A duration between two log points, 50 steps unless given; step 1 is logged too.",
        'a duration such as 50, "1ep", "30s", or None for every 50 steps',
    )
    sanity_val_batches: _Number = _argument(
        2,
        "Validation batches read before training, -1 for all; nothing of them is logged.",
        "an integer of at least 0, or -1 for all",
        ge=-1,
    )
    reload_dataloaders_every_n_epochs: _CountOrZero = _argument(
        0,
        "Call ``train_dataloader()`` and ``val_dataloader()`` of the DataModule or the module again before "
        "every so many epochs; 0 calls them once.",
        "an integer of at least 0",
    )
    limit_train_batches: _Limit = _argument(None, _LIMITED, _A_LIMIT + "None")
    limit_val_batches: _Limit = _argument(None, _LIMITED, _A_LIMIT + "None")
    limit_test_batches: _Limit = _argument(None, _LIMITED, _A_LIMIT + "None")
    limit_predict_batches: _Limit = _argument(None, _LIMITED, _A_LIMIT + "None")
    fast_dev_run: bool | _CountOrZero = _argument(
        False,
        "An epoch of one step (a number: so many), ended like any other, with as many validation batches; "
        "nothing is written.",
        "True, False, or a number of steps",
    )
    overfit_batches: _Limit = _argument(
        0, "Train (and validate) on the same few batches of the training data every epoch.", _A_LIMIT + "0"
    )
    callbacks: Annotated[list[Callback], BeforeValidator(_as_list)] = _argument(
        [],
        "Added to the default ones; one of the same class (or a subclass) replaces it. A string is the "
        "name of an installed entry point, as in ``loggers``.",
        "objects of paceline.callbacks.Callback, or names of installed entry points",
    )
    progress: bool = _argument(True, "A progress bar on a terminal, plain lines elsewhere; False: neither.")
    checkpoint: bool = _argument(
        True,
        "Checkpoints each epoch and at the end, where ``callbacks`` has no ``Checkpoint``; False: none.",
    )
    record: bool = _argument(
        True,
        "Keep 48 bytes of each step in ``steps.bin`` of the run folder, for ``paceline diff``.",
    )
    loggers: Annotated[
        bool | list[Annotated[Any, BeforeValidator(_logger)]], BeforeValidator(_as_loggers)
    ] = _argument(
        True,
        "Added to the default ones, as ``callbacks`` are: ``metrics.jsonl``, TensorBoard and "
        '``curves.png``; one of the same class replaces it, and ``"-jsonl"``, ``"-tensorboard"`` or '
        '``"-curves"`` in the list leaves one out. False: none at all.',
        "True, False, objects of paceline.callbacks.Logger, names of installed ones, or "
        + ", ".join(map(repr, OFF)),
    )
    nonfinite: str = _argument(
        "raise",
        'For a loss or gradient that is NaN or infinite, on any rank: ``"raise"`` before weights change, '
        'skip that update (``"skip"``, 10 times at most, ``"skip:100"``), or ``"ignore"``. On an '
        'accelerator looking at them waits for the device once a step (``"skip"``: once a micro-batch), '
        'except under ``"raise"`` with a fused optimizer; ``"ignore"`` never waits.',
        "'raise', 'skip', 'skip:100', 'ignore'",
        pattern=r"^(raise|ignore|skip(:[1-9][0-9]*)?)$",
    )
    on_data_error: str = _argument(
        "raise",
        'For a sample that cannot be read and a loader worker that dies: ``"raise"``, naming them; read '
        'again with new workers (``"retry"``, three consecutive times, ``"retry:5"``); or skip samples '
        '(``"skip"``, 10 of a rank at most, ``"skip:100"``), which costs a reduction of one word a step on '
        "several ranks. For DataLoaders of samples; streams are not read again.",
        "'raise', 'retry', 'retry:5', 'skip', 'skip:100'",
        pattern=r"^(raise|(retry|skip)(:[1-9][0-9]*)?)$",
    )
    max_restarts: _Number = _argument(
        0,
        "How often all ranks are started again when one of them has failed; they resume from the run's "
        "newest checkpoint. A ``PacelineError`` is not tried again.",
        "an integer of at least 0",
        ge=0,
    )
    timeouts: Annotated[Any, BeforeValidator(_timeouts)] = _argument(
        None,
        'The longest time without progress, as a duration or by phase (``"start"``, ``"first_step"``, '
        '``"step"``, ``"validation"``: a batch of one, ``"save"``). Then every rank\'s stacks are written, '
        "the late rank is named, and all are ended. None: 30 minutes on several ranks, none on one device; "
        "False: never.",
        'a time such as "10min", times by phase such as {"step": "10min"} (phases: '
        + ", ".join(PHASES)
        + "), None, or False for none",
    )
    debug: bool = _argument(
        False,
        "Check before each of our collectives that all ranks call the same one, and name those that do "
        "not. Costs one more collective each.",
    )
    sync_batchnorm: bool = _argument(
        False, "Batch norms take their statistics over the samples of all ranks."
    )
    profile: Annotated[Any, BeforeValidator(_profile)] = _argument(
        False,
        "Profile steps 7 to 9 of a fit: traces, and the operations that take longest. A "
        "``paceline.callbacks.Profiler`` chooses the steps.",
        "True, False, or an object of paceline.callbacks.Profiler",
    )
    seed: Annotated[_Number, BeforeValidator(_seed)] = _argument(
        None,
        "Seeds torch, ``random`` and numpy when ``fit`` begins, and every epoch's order. None: the seed of "
        "the last ``seed_everything`` before the Trainer was made, else 0; a resumed run keeps its own.",
        "an integer from 0 to 2**63 - 1, or None",
        ge=0,
        lt=2**63,
    )
    deterministic: bool = _argument(
        False, "Torch's deterministic algorithms, while it runs: what has none is an error."
    )
    fp32_precision: Literal["ieee", "tf32", "bf16"] | None = _argument(
        None,
        "How products and convolutions of float32 are computed inside, while it runs, as "
        '``torch.backends.fp32_precision`` has it: ``"ieee"`` is exact float32, ``"tf32"`` faster on '
        'NVIDIA, ``"bf16"`` on some CPUs. None: as torch is set.',
        "ieee, tf32, bf16, or None",
    )
    channels_last: bool = _argument(
        False,
        "Weights of convolutions and 4-D and 5-D tensors of batches get this memory format, in which "
        "convolutions in 16 bits are faster on NVIDIA.",
    )
    compile: Annotated[Any, BeforeValidator(_compile)] = _argument(
        False,
        "True, a mode of ``torch.compile``, or a dict of its arguments: compile the parts that a step "
        'calls, for the time of a run. ``"blocks"``: the blocks that the model repeats.',
        f"True, False, {BLOCKS!r}, a mode ({', '.join(MODES)}), or a dict of torch.compile's arguments",
    )
    run_dir: Annotated[Any, BeforeValidator(_folder)] = _argument(
        "runs", _FOLDERS, "a folder, as a string or a Path; None: nothing is written"
    )
    name: str | None = _argument(
        None,
        _FOLDERS,
        "letters, digits and . _ + = - (no dot first), parts separated by /",
        pattern=r"^[\w+=-][\w.+=-]*(/[\w+=-][\w.+=-]*)*$",
    )


def allowed(name: str) -> str:
    """What may be given for an argument, in words."""
    extra: Any = TrainerArguments.model_fields[name].json_schema_extra
    return str(extra["allowed"])
