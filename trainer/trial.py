"""A short training run on a copy of the module: the module, generators and data stay as they are.

``batch_size="auto"``, and the searches and ``check_invariance`` of ``paceline.tools`` are made of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..callbacks import Callback
from ..errors import PacelineError
from ..strategies import Single, Strategy
from .data.combined_loader import CombinedLoader
from .rng import generators_of, putting_back, untouched

_KEPT = (
    *("precision", "accelerator", "devices", "num_nodes", "seed", "deterministic", "clip_grad_norm"),
    *(
        "fp32_precision",
        "channels_last",
        "clip_grad_value",
        "accumulate",
        "global_batch_size",
        "on_data_error",
        "sync_batchnorm",
        "debug",
    ),
    "name",
)


def run_trial(
    trainer: Any,
    module: Any,
    data: tuple[Any, Any],
    steps: int,
    callback: Callback,
    *,
    change_loader: Callable[[Any], Any] | None = None,
    alone: bool = False,
    **arguments: Any,
) -> Any:
    """Train a copy of the module for a few steps; nothing is written or counted.

    Weights, random generators and streams with a ``state_dict`` are restored.

    Args:
        trainer: The user's, whose arguments the copy is trained with.
        module: A copy of it is trained.
        data: The training dataloader and the DataModule, as ``fit`` takes them.
        steps: Optimizer steps at most, over as many epochs as they need.
        callback: Watches the trial.
        change_loader: Gives the dataloader to read in place of the user's.
        alone: Train on this rank, as if there were no other.
        **arguments: Of the Trainer, in place of the user's.

    Returns:
        The Trainer that did it.

    Raises:
        PacelineError: for data that can be read once only; and what ``fit`` raises.
    """
    settings, keeper = trainer.settings, _DataKeeper()
    given = {name: getattr(settings, name) for name in _KEPT} | arguments
    run = getattr(trainer, "trial_class", type(trainer))(
        **given,
        strategy=copy.copy(settings.strategy),  # an object that was given keeps its own settings
        max_steps=steps,
        log_every=1,
        limit_val_batches=0,
        validate_every=None,
        callbacks=[keeper, callback],
        progress=False,
        loggers=False,
        checkpoint=False,
        run_dir=None,
    )
    strategy = run.strategy
    if alone:
        here = replace(strategy.environment, rank=0, world_size=1, local_world_size=1)
        strategy = Single(
            activation_checkpointing=strategy.activations.checkpointing,
            activation_offload=strategy.activations.offload,
        )
        strategy.attach(here, run.strategy.precision)
    run._compute_with(strategy, quiet=True)
    loader, datamodule = data
    module, datamodule = copy.deepcopy(module), copy.copy(datamodule)
    if change_loader is not None:
        loader = None if loader is None else change_loader(loader)
        for owner in (module, datamodule):
            own = getattr(owner, "train_dataloader", None)
            if callable(own):
                vars(owner)["train_dataloader"] = partial(_changed, own, change_loader)
    with untouched(own_device(strategy)):
        try:
            run.fit(module, loader, datamodule=datamodule)
        finally:
            keeper.put_back()
    return run


def own_device(strategy: Strategy) -> torch.device:
    """The device of this process; the process that is to start the ranks touches none but the CPU."""
    return torch.device("cpu") if strategy.environment.starts else strategy.device


def _changed(own: Callable[[], Any], change: Callable[[Any], Any]) -> Any:
    loader = own()
    return None if loader is None else change(loader)


class _DataKeeper(Callback):
    """Restores the state of what a trial reads: of streams, samplers and their generators."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []

    def on_fit_start(self, trainer: Any) -> None:
        data = trainer._fit.feed.data
        for source in data.named.values() if isinstance(data, CombinedLoader) else [data]:
            owners = [source]
            if isinstance(source, DataLoader):  # the trial reads through a copy of it
                batches = source.batch_sampler
                owners = [source.dataset, source.sampler, batches, getattr(batches, "sampler", None)]
                generators = generators_of(source, source.sampler, batches)
                self._calls += [putting_back(generator) for generator in generators]
            stateful = [o for o in owners if hasattr(o, "state_dict") and hasattr(o, "load_state_dict")]
            if isinstance(source, Iterator) and not stateful:
                raise PacelineError(
                    "a trial would use this data up: it can be read once only",
                    code="data-read-once",
                    got=type(source).__name__,
                    fix="a DataLoader, or a list of batches",
                )
            for owner in stateful:
                self._calls.append(partial(owner.load_state_dict, copy.deepcopy(owner.state_dict())))

    def put_back(self) -> None:
        """Restore what was kept."""
        for call in self._calls:
            call()


# -- loaders with another batch size -----------------------------------------------------------


def batch_size_of(loader: Any) -> int | None:
    """The batch size of a loader that can be asked for another one; else None."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        size: int | None = loader.batch_size
        return size
    return sampler.batch_size if type(sampler) is BatchSampler else None


def with_batch_size(loader: Any, size: int, drop_last: bool | None = None) -> DataLoader[Any]:
    """A copy of a loader of ``batch_size_of``, with another batch size.

    Args:
        loader: Stays as it is.
        size: The samples in a batch.
        drop_last: None: as the loader has it.
    """
    duplicate: DataLoader[Any] = copy.copy(loader)
    batches: Any = loader.batch_sampler
    drops = batches.drop_last if drop_last is None else drop_last
    sampler = BatchSampler(batches.sampler, size, drops)
    vars(duplicate).update(batch_size=size, drop_last=drops, batch_sampler=sampler)
    return duplicate
