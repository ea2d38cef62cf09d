"""Where data comes from: fit's arguments, then the DataModule, then the module; and the feeds over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import PacelineError
from ..datamodule import DataModule
from ..loops.evaluation_loop import PHASES, STEPS
from ..module import is_overridden
from .device_transfer import make_transfer
from .factory import is_several, make_feed
from .feed import Feed, FeedSettings

if TYPE_CHECKING:
    from ..trainer import Trainer


def as_datamodule(given: Any, datamodule: Any) -> tuple[Any, Any]:
    """(dataloader, DataModule): a DataModule given in the place of a dataloader is one all the same."""
    return (None, given) if isinstance(given, DataModule) else (given, datamodule)


def find_data(given: Any, kind: str, datamodule: Any, module: Any) -> Any:
    """The dataloader of ``kind`` (train, val, test, predict), or None."""
    if given is not None:
        return given
    for owner in (datamodule, module):
        method = getattr(owner, f"{kind}_dataloader", None)
        found = method() if callable(method) else None
        if found is not None:
            return found
    return None


def settings_for(trainer: Trainer, stage: str, limit: int | float | None) -> FeedSettings:
    """The feed settings of a run's stage; evaluation takes micro-batches one by one."""
    environment, arguments = trainer.strategy.environment, trainer.settings
    training = stage == "fit"
    return FeedSettings(
        seed=arguments.seed,
        rank=environment.rank,
        world=environment.world,
        accumulate=arguments.accumulate if training else 1,
        in_turn=trainer.ranks_in_turn if training else 1,
        global_batch=arguments.global_batch_size if training else None,
        limit=limit,
        on_error=_on_error(arguments.on_data_error, stage),
        # Without a global batch size a step grows with the ranks, and an epoch of so many with it.
        limit_per_rank=training and arguments.global_batch_size is None,
        transfer=make_transfer(environment.device, trainer.strategy.precision.input_dtype),
        signals=trainer.signals,
        say=trainer.say,
        gather=trainer.strategy.gather,
    )


def _on_error(policy: str, stage: str) -> str:
    """Of predictions none is left out: they stand in the order of the data."""
    return "retry" if stage == "predict" and policy.startswith("skip") else policy


def training_feed(trainer: Trainer, data: Any, saved_global_batch: int) -> Feed:
    """The feed over the training data.

    Args:
        saved_global_batch: A resumed run's global batch, which holds unless another is asked for.

    Raises:
        PacelineError: without data, and for several dataloaders.
    """
    if data is None:
        raise PacelineError(
            "there is no training data",
            allowed="fit(module, dataloader), a DataModule, or train_dataloader on the module",
        )
    if is_several(data):
        raise PacelineError(
            "training takes one dataloader",
            got=f"a {type(data).__name__} of {len(data)}",
            fix="join the datasets: ConcatDataset for one after the other, or a Dataset that returns "
            "a sample of each",
        )
    arguments = trainer.settings
    overfit = arguments.overfit_batches
    limit = overfit or arguments.limit_train_batches
    settings = replace(settings_for(trainer, "fit", limit), fixed_order=bool(overfit))
    if arguments.accumulate > 1 and not trainer.module.automatic_optimization:
        raise PacelineError(
            "accumulate is not possible with manual optimization: the module steps by itself",
            got=f"accumulate={arguments.accumulate}",
            fix="call optimizer.step() in training_step every so many batches",
        )
    feed = make_feed(data, settings)
    keeps = saved_global_batch and not arguments.global_batch_size and feed.step_size is not None
    if keeps and feed.step_size != saved_global_batch:
        trainer.say(f"the checkpoint's global batch of {saved_global_batch} is kept")
        feed = make_feed(data, replace(settings, global_batch=saved_global_batch))
    if feed.micro_batches > 1 and not trainer.module.automatic_optimization:
        raise PacelineError(
            "with manual optimization a step is one batch: the module steps by itself",
            got=f"{feed.micro_batches} micro-batches in a step",
            fix="give the loader the whole global batch as its batch_size",
        )
    return feed


def evaluation_feeds(trainer: Trainer, stage: str, data: Any) -> dict[str, Feed]:
    """The feeds over validation, test or prediction data, by name; one unnamed one is ``""``."""
    arguments = trainer.settings
    overfit = arguments.overfit_batches if trainer.stage == "fit" else 0
    limit = overfit or getattr(arguments, f"limit_{PHASES[stage]}_batches")
    if arguments.fast_dev_run:
        limit = 1
    settings = replace(settings_for(trainer, stage, limit), fixed_order=True)
    if not is_several(data):
        return {"": make_feed(data, settings)}
    named = data if isinstance(data, Mapping) else {str(i): one for i, one in enumerate(data)}
    return {str(name): make_feed(one, settings) for name, one in named.items()}


def require_step(trainer: Trainer, stage: str) -> None:
    """Refuse to evaluate with a step that was not written."""
    name = STEPS[stage]
    if not is_overridden(trainer.module, name):
        raise PacelineError(
            f"{type(trainer.module).__name__} has no {name}",
            fix=f"write def {name}(self, batch, batch_idx)",
        )
