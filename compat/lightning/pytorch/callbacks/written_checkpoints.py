"""What a ``ModelCheckpoint`` has written: ``best_model_path`` and the like."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint_files import CheckpointFiles

_SHOWN = ("best_model_path", "best_model_score", "current_score", "last_model_path", "best_k_models")


class WrittenCheckpoints:
    """Part of ``ModelCheckpoint``. What an earlier Trainer has written is shown until a fit begins."""

    monitor: str | None
    mode: str
    save_top_k: int
    _files: CheckpointFiles
    _made: Any = None
    _run: Any = None
    _of_earlier: dict[str, Any] = {}

    def written(self) -> dict[str, Any]:
        """All that is shown, by name."""
        return {name: getattr(self, name) for name in _SHOWN}

    def state_dict(self) -> dict[str, Any]:
        """What programs read of a checkpoint's ``callbacks``; a resumed run has its own."""
        names = ("monitor", "dirpath", *_SHOWN, "kth_best_model_path", "kth_value")
        return {name: getattr(self, name) for name in names}

    @property
    def _has_begun(self) -> bool:
        """Whether a fit writes here, or has; else what an earlier trainer's wrote is shown."""
        return self._made is not None and not self._of_earlier

    @property
    def _folder(self) -> Path | None:
        folder = None if self._run is None else self._run.ours.folder
        return None if folder is None else Path(folder) / "checkpoints"

    @property
    def _saved(self) -> list[str]:
        """Those that Lightning would have written too, the newest last."""
        return self._files.named(self._made._kept.saved)

    def _path(self, name: str | None) -> str:
        if name is None or self._folder is None:
            return ""
        self._made.wait()  # a path that is given is that of a file which exists
        return self._files.path_of(name) or str(self._folder / name)

    @property
    def best_model_path(self) -> str:
        """The best checkpoint; the latest where no value is monitored; "" where there is none."""
        if not self._has_begun:
            return str(self._of_earlier.get("best_model_path", ""))
        if self.save_top_k == 0:
            return ""
        if self.monitor is not None:
            return self._path(self._made._kept.best)
        return self._path(next(reversed(list(self._files.paths) or self._made._kept.saved), None))

    @property
    def best_model_score(self) -> Tensor | None:
        """The best value; None before the first."""
        if not self._has_begun:
            return self._of_earlier.get("best_model_score")
        score = self._made.best_score if self.monitor is not None and self.save_top_k else None
        return None if score is None else torch.tensor(score)

    @property
    def current_score(self) -> Tensor | None:
        """The last value that was among the best; None before the first."""
        if not self._has_begun:
            return self._of_earlier.get("current_score")
        return None if self._made.score is None else torch.tensor(self._made.score)

    @property
    def last_model_path(self) -> str:
        """``last.ckpt`` with ``save_last``; else "".

        The newest checkpoint is always kept: ``fit(..., ckpt_path="last")`` finds it.
        """
        if not self._has_begun:
            return str(self._of_earlier.get("last_model_path", ""))
        if self._files.last_path:
            self._made.wait()
        if not self._files.last_path or self._files.problem is None:
            return self._files.last_path
        return self._path(next(reversed(self._made._kept.saved), None))

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        """The best ones with their values, in the order in which they were written."""
        if not self._has_begun:
            return dict(self._of_earlier.get("best_k_models", {}))
        return {self._path(name): torch.tensor(value) for name, value in sorted(self._made._kept.ranked)}

    @property
    def kth_value(self) -> Tensor:
        """Its value; infinite, and worse than any, while there is none."""
        path = self.kth_best_model_path
        worst = math.inf if self.mode == "min" else -math.inf
        return self.best_k_models[path] if path else torch.tensor(worst)

    @property
    def kth_best_model_path(self) -> str:
        """The worst of the best ones, the earliest of equal ones; "" while more are wanted."""
        models = self.best_k_models
        worst = max if self.mode == "min" else min
        is_full = bool(models) and len(models) >= self.save_top_k
        return worst(models, key=lambda path: float(models[path])) if is_full else ""
