"""The parts of Lightning's trainer: ranks, callbacks, loggers, and where they write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .....callbacks import Progress
from .....trainer.data.feed import limited
from ...translation.arguments import length_of


class TrainerParts:
    """Read from ours, and from what the trainer was given."""

    given: dict[str, Any]
    ours: Any
    callbacks: list[Any]
    loggers: list[Any]
    loaded: dict[str, Any]
    fit_loop: Any
    log_every_n_steps: Any
    should_stop: Any
    training: Any
    checkpoint_io: Any = None
    _ckpt_path: Any = None

    # -- ranks ---------------------------------------------------------------------------------

    @property
    def global_rank(self) -> int:
        """The number of this process among all."""
        return int(self.ours.rank)

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return int(self.ours.strategy.environment.local_rank)

    @property
    def node_rank(self) -> int:
        """The number of this machine."""
        return self.global_rank // max(self.world_size // self.num_nodes, 1)

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return int(self.ours.world_size)

    @property
    def num_nodes(self) -> int:
        """How many machines there are."""
        return int(self.given["num_nodes"])

    @property
    def num_devices(self) -> int:
        """Processes on each machine."""
        return max(self.world_size // self.num_nodes, 1)

    @property
    def device_ids(self) -> list[int]:
        """The devices of this machine's processes."""
        return list(range(self.num_devices))

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """Which part of the data a ``DistributedSampler`` of this rank would have; None on one device."""
        if self.world_size == 1:
            return None
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def _accelerator_connector(self) -> SimpleNamespace:
        """What programs read of it, private as it is."""
        return SimpleNamespace(
            is_distributed=self.world_size > 1,
            use_distributed_sampler=self.given["use_distributed_sampler"],
            _parallel_devices=[self.ours.strategy.device] * self.num_devices,
            cluster_environment=SimpleNamespace(
                global_rank=lambda: self.global_rank,
                local_rank=lambda: self.local_rank,
                node_rank=lambda: self.node_rank,
                world_size=lambda: self.world_size,
            ),
        )

    @property
    def _logger_connector(self) -> SimpleNamespace:
        return SimpleNamespace(should_update_logs=self._logs_now())

    def _logs_now(self) -> bool:
        """Whether the step under way is one of every ``log_every_n_steps``; True where none is."""
        every = self.log_every_n_steps
        if not self.training or every == 0:
            return bool(every)
        step = self.fit_loop.epoch_loop._batches_that_stepped + 1
        return bool(step % every == 0 or self.should_stop)

    @property
    def _detect_anomaly(self) -> bool:
        return bool(self.given["detect_anomaly"])

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return bool(self.ours.is_global_zero)

    # -- callbacks, loggers, files -------------------------------------------------------------

    def _of(self, kind: str) -> list[Any]:
        return [one for one in self.callbacks if any(c.__name__ == kind for c in type(one).__mro__)]

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """All ``ModelCheckpoint`` callbacks."""
        return self._of("ModelCheckpoint")

    @property
    def checkpoint_callback(self) -> Any:
        """The first of them; None without one."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """All ``EarlyStopping`` callbacks."""
        return self._of("EarlyStopping")

    @property
    def early_stopping_callback(self) -> Any:
        """The first of them; None without one."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Any:
        """What shows progress; None without it."""
        shown = [*self._of("TQDMProgressBar"), *self._of("RichProgressBar")]
        ours = [one for one in self.ours.callbacks if isinstance(one, Progress)]
        return next(iter([*shown, *ours]), None)

    @property
    def logger(self) -> Any:
        """The first logger; None without one."""
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> str | None:
        """Where loggers write: the version's folder of the first one; without any ``default_root_dir``."""
        return self.logger.log_dir or self.logger.save_dir if self.loggers else self.default_root_dir

    @property
    def default_root_dir(self) -> str:
        """Where runs are written."""
        given = self.given["default_root_dir"]
        return str(Path.cwd() if given is None else given)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that the stage was given; None without one."""
        return None if self._ckpt_path is None else str(self._ckpt_path)

    # -- data of evaluations -------------------------------------------------------------------

    @property
    def test_dataloaders(self) -> Any:
        """The data of the last test; None before the first."""
        return self.loaded.get("test_dataloader")

    @property
    def predict_dataloaders(self) -> Any:
        """The data of the last prediction; None before the first."""
        return self.loaded.get("predict_dataloader")

    @property
    def num_test_batches(self) -> list[float]:
        """Batches of a test, of each dataloader."""
        return _batches(self.test_dataloaders, self.given["limit_test_batches"])

    @property
    def num_predict_batches(self) -> list[float]:
        """Batches of a prediction, of each dataloader."""
        return _batches(self.predict_dataloaders, self.given["limit_predict_batches"])


def _batches(loaders: Any, limit: Any) -> list[float]:
    if loaders is None:
        return []
    several = loaders.values() if isinstance(loaders, Mapping) else loaders
    several = several if isinstance(loaders, (Mapping, list, tuple)) else [loaders]
    lengths = map(length_of, several)
    return [math.inf if found is None else limited(found, limit) for found in lengths]
