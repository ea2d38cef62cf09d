"""Before the first step: whether all ranks are about to do the same."""

from __future__ import annotations

import zlib

from ....errors import PacelineError
from ....strategies.ranks.comparison import same_everywhere
from ...data.feed import Feed
from ...optimization import Optimization
from ...run.config_file import run_config
from ..context import StageContext

_CALLBACKS = "list of callbacks"


def check_ranks(context: StageContext, feed: Feed) -> None:
    """See that all ranks are about to do the same, before they wait for each other in vain.

    Raises:
        PacelineError: on every rank, naming the one that has another module, data or settings.
    """
    if context.ranks.world_size == 1:
        return
    module = context.module
    parts = [f"{name} {list(p.shape)} {p.dtype}" for name, p in module.named_parameters()]
    mine = {
        "module": f"{type(module).__name__} of {len(parts)} parameters, "
        f"checksum of their shapes {zlib.crc32(str(parts).encode()):08x}",
        "training data": str(feed.fingerprint()),
    }
    mine[_CALLBACKS] = ", ".join(callback.state_key for callback in context.callbacks)
    config = run_config(context.directory.name, context.settings, context.strategy, module)
    folder = config["trainer"]["run_dir"] and "a folder"  # rank 0's is taken, whichever the others have
    settings = config["trainer"] | {"run_dir": folder}
    _compare(context, mine | {f"Trainer({name}=...)": str(value) for name, value in settings.items()})


def check_optimizers(context: StageContext, optimization: Optimization) -> None:
    """See that all ranks have the same parameters in the same groups. To be called on all ranks.

    Raises:
        PacelineError: on every rank, naming the one that has others.
    """
    if context.ranks.world_size == 1:
        return
    names = {id(p): name for name, p in context.module.named_parameters()}
    mine = {}
    for number, optimizer in enumerate(optimization.optimizers):
        groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        mine[f"optimizer {number} of configure_optimizers"] = (
            f"{type(optimizer).__name__} with groups of {', '.join(str(len(group)) for group in groups)} "
            f"parameters, checksum of their names {zlib.crc32(str(groups).encode()):08x}"
        )
    _compare(context, {"number of optimizers": str(len(mine)), **mine})


def _compare(context: StageContext, mine: dict[str, str]) -> None:
    if same_everywhere(context.ranks, mine):
        return
    everyone = context.ranks.all_gather(mine)
    for rank, other in enumerate(everyone):
        for what, value in other.items():
            if value != everyone[0][what]:
                raise PacelineError(
                    f"rank {rank} has another {what} than rank 0",
                    code="ranks-differ",
                    got=value[:300],
                    allowed=everyone[0][what][:300],
                    fix="give each rank the same ones, in one order: a callback may ask "
                    "trainer.is_global_zero"
                    if what == _CALLBACKS
                    else "every rank runs the script from its top: seed what it draws, and read the same "
                    "files on all",
                )
