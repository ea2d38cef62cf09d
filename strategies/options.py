"""What a user is asked about a strategy: its options in words, and what a config file says of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..errors import PacelineError
from .ddp import DDP
from .deepspeed.config import read_config
from .deepspeed.engine import DeepSpeed
from .dtypes.precision_names import PRECISIONS
from .fsdp import FSDP, HSDP
from .single import Single


class Option(NamedTuple):
    """One argument of a strategy, as a question.

    Args:
        name: The argument.
        kind: What is answered: yes or no, a count, one of the choices, or a file.
        question: The question.
        default: The answer that leaves the strategy as it is.
        help: What it means.
        choices: What may be answered, where ``kind`` is ``"choice"``.
    """

    name: str
    kind: Literal["switch", "count", "choice", "file"]
    question: str
    default: Any
    help: str
    choices: tuple[Any, ...] = ()


CHOICES = {
    "auto": "single on one device, ddp on several, or one that shards where the states do not fit",
    "single": "one device",
    "ddp": "each rank holds the whole model, gradients are averaged",
    "fsdp": "parameters, gradients and optimizer state are sharded over the ranks",
    "hsdp": "sharded within groups of ranks, replicated between them: for many machines",
    "deepspeed": "ZeRO: optimizer state, gradients and parameters sharded by stage",
}
"""The strategies that are offered, each in a few words."""

_RECOMPUTE = Option(
    "activation_checkpointing",
    "switch",
    "Compute activations again in backward",
    False,
    "Saves memory: the activations of the model's repeated blocks are not kept, and computed again.",
)
_SHARDED = (
    Option(
        "reshard_after_forward",
        "switch",
        "Free gathered parameters between forward and backward",
        True,
        "No keeps them: less communication, more memory.",
    ),
    Option(
        "cpu_offload",
        "switch",
        "Keep the shards in the host's memory",
        False,
        "For models whose shards do not fit; slower. Optimizers then update on the CPU.",
    ),
    _RECOMPUTE,
)
OPTIONS: dict[str, tuple[Option, ...]] = {
    "fsdp": _SHARDED,
    "hsdp": (
        Option(
            "replicate",
            "count",
            "Groups of ranks that hold the same shards",
            None,
            "It divides the number of ranks; usually the number of machines.",
        ),
        *_SHARDED,
    ),
    "deepspeed": (
        Option(
            "config",
            "file",
            "DeepSpeed's JSON file, or none",
            None,
            "Its options that are no arguments here; stage, batch sizes and precision are the Trainer's.",
        ),
        Option(
            "stage",
            "choice",
            "ZeRO stage",
            2,
            "0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters are sharded.",
            (0, 1, 2, 3),
        ),
        Option(
            "offload",
            "switch",
            "Keep the optimizer's state in the host's memory",
            False,
            "Under stage 3 the parameters too. Saves memory; slower.",
        ),
        _RECOMPUTE,
    ),
}
_CLASSES: dict[str, type] = {
    "single": Single,
    "ddp": DDP,
    "fsdp": FSDP,
    "hsdp": HSDP,
    "deepspeed": DeepSpeed,
}


def precisions(strategy: str) -> tuple[str, ...]:
    """The precisions that a strategy has, by name."""
    if strategy == "deepspeed":
        return tuple(name for name in PRECISIONS if name not in ("64", "fp16-true"))
    return PRECISIONS


def configured(strategy: str, options: dict[str, Any]) -> Any:
    """A strategy as a config file has it: its name, or a mapping of its class and arguments.

    Args:
        strategy: A name of ``CHOICES``.
        options: Its arguments; those with their default are not written.

    Raises:
        PacelineError: for arguments that it does not take.

    Example:
        >>> configured("fsdp", {"cpu_offload": True})
        {'class': 'FSDP', 'cpu_offload': True}
    """
    known = {option.name: option for option in OPTIONS.get(strategy, ())}
    given = {name: value for name, value in options.items() if known[name].default != value}
    if "stage" in options and not {"config", "activation_checkpointing"} & set(given):
        return f"{strategy}_stage_{options['stage']}" + ("_offload" if options.get("offload") else "")
    if not given:
        return strategy
    kind = _CLASSES[strategy]
    given = {name: value for name, value in options.items() if name in given or name == "stage"}
    kind(**given)
    return {"class": kind.__name__, **given}


def settled(options: dict[str, Any]) -> set[str]:
    """The options that need no answer after these: a file states them, or they have no meaning.

    Raises:
        PacelineError: for a file that cannot be read.
    """
    names = {"offload"} if options.get("stage") == 0 else set()
    if options.get("config") is not None:
        stated = read_config(options["config"]).get("zero_optimization", {}).get("stage")
        names |= {"stage"} if stated is not None else set()
        names |= {"offload"} if stated == 0 else set()
    return names


def check_option(name: str, value: Any, ranks: int | None) -> None:
    """Refuse a value of an option that cannot be used.

    Args:
        name: The option.
        value: Its value.
        ranks: The number of ranks; None where that is not known.

    Raises:
        PacelineError: for a file that cannot be read, and for groups of unequal sizes.
    """
    if name == "config":
        read_config(value)
    if name == "replicate" and ranks is not None and ranks % value:
        raise PacelineError(
            f"{ranks} ranks cannot be divided into {value} groups of one size", code="number-of-ranks"
        )


def check_ranks(strategy: str, ranks: int | None) -> None:
    """Refuse several ranks under the strategy of one device.

    Raises:
        PacelineError: for them.
    """
    if strategy == "single" and ranks is not None and ranks > 1:
        raise PacelineError(
            f"single is for one device, and there are {ranks} ranks", code="strategy-not-suited", fix="ddp"
        )
    if strategy == "hsdp" and ranks == 1:
        raise PacelineError(
            "hsdp is for two ranks or more", code="strategy-not-suited", got="1 rank", fix="single, or fsdp"
        )
