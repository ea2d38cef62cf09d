"""Running a step for the sake of the other ranks: nothing it logs, counts or changes is kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..metrics.logger import MetricLogger
from ..metrics.metric_objects import metric_parts, set_state, update_count
from ..metrics.store import MetricStore


@contextmanager
def nothing_kept(module: nn.Module, logger: MetricLogger, store: MetricStore) -> Iterator[None]:
    """Restore buffers and metric objects, and drop what is logged.

    Args:
        module: Its buffers and metric objects are as before afterwards.
        logger: The logger of the run.
        store: Where the step would have logged to.
    """
    scratch = MetricStore(store.phase, store.log_line)
    scratch.set_loader(store.loader_name)
    scratch.weight = 1
    # Copied: a metric may add to its state in place.
    metrics = {
        path: (copy.deepcopy(dict(m.metric_state)), update_count(m))
        for path, m in metric_parts(module).items()
    }
    with logger.logging_to(scratch), _same_buffers(module):
        yield
    for path, (state, count) in metrics.items():
        set_state(module.get_submodule(path), state, count)
    store.objects.update(scratch.objects)  # all ranks compute the same objects


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    kept = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
