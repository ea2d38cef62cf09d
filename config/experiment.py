"""What ``paceline fit`` runs: a Trainer, a module and its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trainer.module import TrainModule
from ..trainer.run.run import Run
from ..trainer.trainer import Trainer


@dataclass
class Experiment:
    """What a recipe's ``build`` returns.

    Attributes:
        trainer: As ``RunConfig.make_trainer`` makes it.
        module: What is trained.
        train: The training dataloader.
        val: The validation dataloader, or several in a list or dict.
        test: Likewise for ``test``; those of ``val`` where there is none.
        predict: Likewise for ``predict``.
        datamodule: A ``DataModule`` with the dataloaders that are not given here.

    Example:
        >>> trainer = Trainer(max_steps=2, progress=False, run_dir=None)
        >>> run = Experiment(trainer, Net(), train_loader, val_loader).fit()
        >>> trainer.global_step
        2
    """

    trainer: Trainer
    module: TrainModule
    train: Any = None
    val: Any = None
    test: Any = None
    predict: Any = None
    datamodule: Any = None

    def fit(self, resume: str | Path | None = None) -> Run:
        """Train; ``resume`` as ``Trainer.fit`` takes it."""
        return self.trainer.fit(
            self.module, self.train, self.val, datamodule=self.datamodule, resume=resume
        )

    def evaluate(self, verb: str, weights: Any, **more: Any) -> Any:
        """Validate, test or predict.

        Args:
            verb: Which of them.
            weights: As ``Trainer.validate`` takes them.
            **more: Other arguments of the verb.
        """
        data = {
            "validate": self.val,
            "test": self.test or self.val,
            "predict": self.predict or self.test or self.val,
        }
        data_or_module = {} if data[verb] is not None else {"datamodule": self.datamodule}
        return getattr(self.trainer, verb)(
            self.module, data[verb], weights=weights, **data_or_module, **more
        )
