"""Running a step for the sake of the other ranks: nothing it logs, counts or changes is kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from ..metrics.store import MetricStore, metric_parts

if TYPE_CHECKING:
    from ..session import Session


@contextmanager
def nothing_kept(trainer: Session, store: MetricStore) -> Iterator[None]:
    """Put buffers and metric objects back as they were, and drop what is logged."""
    module = trainer.module
    scratch = MetricStore(store.phase, trainer.say)
    scratch.set_loader(store.loader_name)
    scratch.weight = 1
    # Copied: a metric may add to its state in place.
    metrics = {
        path: (copy.deepcopy(dict(m.metric_state)), m._update_count)
        for path, m in metric_parts(module).items()
    }
    with trainer.logging_to(scratch), _same_buffers(module):
        yield
    for path, (state, count) in metrics.items():
        metric = module.get_submodule(path)
        for key, value in state.items():
            setattr(metric, key, value)
        metric._update_count = count
    store.objects.update(scratch.objects)  # all ranks compute the same objects


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    kept = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
