"""``validate``, ``test`` and ``predict`` of Lightning's trainer."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from ..... import PacelineError
from ...translation.saved import Loaded
from ..core import LightningModule
from .given import as_datamodule
from .last_checkpoint import newest_file
from .view import TrainerView


class Evaluations(TrainerView):
    """Each runs on a module, or on that of the last fit, as it is or with the weights of a checkpoint."""

    _module: Any = None

    @abstractmethod
    def _prepare(self, name: str, model: Any, datamodule: Any) -> tuple[Any, Any]:
        """The adapter and the data of a stage."""

    def validate(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """One pass over validation data; a dictionary of values for each dataloader."""
        return self._evaluate("validate", model, dataloaders, ckpt_path, datamodule, weights_only)

    def test(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """One pass over test data; a dictionary of values for each dataloader."""
        return self._evaluate("test", model, dataloaders, ckpt_path, datamodule, weights_only)

    def predict(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """What ``predict_step`` returns for each batch, in the order of the data."""
        dataloaders, datamodule = as_datamodule(dataloaders, datamodule)
        adapter, data, weights = self._prepared("predict", model, datamodule, ckpt_path, weights_only)
        self.loaded["predict_dataloader"] = dataloaders
        keep = return_predictions is not False
        found = self.ours.predict(adapter, dataloaders, weights, keep=keep, datamodule=data)
        if not keep:
            return None
        if self.session is None or not self.session.several:
            return found
        parts: dict[int, list[Any]] = {}
        for number, output in found:
            parts.setdefault(number, []).append(output)
        return [parts[number] for number in sorted(parts)]

    def _evaluate(
        self,
        name: str,
        model: Any,
        dataloaders: Any,
        ckpt_path: Any,
        datamodule: Any,
        weights_only: bool | None,
    ) -> list[dict[str, float]]:
        dataloaders, datamodule = as_datamodule(dataloaders, datamodule)
        adapter, data, weights = self._prepared(name, model, datamodule, ckpt_path, weights_only)
        self.loaded[f"{name}_dataloader"] = dataloaders
        values = getattr(self.ours, name)(adapter, dataloaders, weights, datamodule=data)
        results: list[dict[str, float]] = self.session.values.results(values)
        if self.is_global_zero:
            row = {name: value for one in results for name, value in one.items()}
            for logger in self.loggers:
                logger.log_evaluation(row | {"epoch": self.current_epoch}, self.ours.global_step)
        return results

    def _prepared(
        self, name: str, model: Any, datamodule: Any, ckpt_path: Any, weights_only: bool | None
    ) -> tuple[Any, Any, Any]:
        """The adapter, the data and which weights: without a model the best ones of the last fit."""
        weights: Any = ckpt_path
        earlier = newest_file(self.checkpoint_callbacks) if ckpt_path == "last" else None
        if earlier is not None and self.ours.folder is None:  # of an earlier process
            weights = earlier
        elif ckpt_path in ("best", "last") or (model is None and ckpt_path is None and self._saves):
            run = self.ours.run
            weights = run.latest if ckpt_path == "last" else run.best or run.latest
        if weights is None and model is None and self._writes_none:
            raise PacelineError(
                f"{name}() takes the best checkpoint, and ModelCheckpoint(save_top_k=0) writes none",
                code="checkpoint-not-found",
                fix=f"{name}(model, ...) evaluates the weights as they are",
            )
        if weights is None and ckpt_path is not None:
            raise PacelineError(
                f"{name}(ckpt_path={ckpt_path!r}): no fit has written a checkpoint",
                code="checkpoint-not-found",
            )
        model = model if model is not None else self._module
        if model is None:
            raise TypeError(f"{name} takes a LightningModule where none was trained before")
        prepared = self._prepare(name, model, datamodule or self.datamodule)
        self._ckpt_path = weights if weights is None or weights is ckpt_path else self._file_of(weights)
        loads = None if weights is None else Loaded(weights, weights_only, self.checkpoint_io)
        self.session.loads = loads
        if loads is not None and self.checkpoint_io is not None and loads.file:
            model.load_state_dict(loads.file["state_dict"])
            return (*prepared, None)
        return (*prepared, None if weights is None else self.session.loads.path)

    def _file_of(self, folder: Path) -> Any:
        """The ``.ckpt`` file of a checkpoint of the last fit; the folder itself where it has none."""
        found = (one._files.path_of(Path(folder).name) for one in self.checkpoint_callbacks)
        return next(filter(None, found), folder)

    @property
    def _writes_none(self) -> bool:
        kept = [one.save_top_k for one in self.checkpoint_callbacks]
        return bool(kept) and not any(kept)

    @property
    def _saves(self) -> bool:
        return bool(self.checkpoint_callbacks) and self.ours.folder is not None
