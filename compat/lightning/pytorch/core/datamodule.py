"""``LightningDataModule``, with Lightning's names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .....trainer.batch_hooks import BatchHooks
from ...translation.configured import build
from ...translation.data_methods import DataMethods
from ...translation.hyperparameters import HyperparametersMixin
from ...translation.saved import Loaded

T = TypeVar("T", bound="LightningDataModule")


class LightningDataModule(HyperparametersMixin, DataMethods, BatchHooks):
    """Dataloaders and how to prepare them. Every method is optional.

    Source: https://lightning.ai/docs/pytorch/stable/data/datamodule.html

    Example:
        >>> import paceline.compat.lightning as L
        >>> class Numbers(L.LightningDataModule):
        ...     def setup(self, stage):
        ...         self.data = [(torch.randn(4, 2), torch.randn(4, 1))]
        ...     def train_dataloader(self):
        ...         return self.data
    """

    trainer: Any = None
    name: str | None = None
    prepare_data_per_node: bool = True
    allow_zero_length_dataloader_with_multiple_devices: bool = False
    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"

    def __init__(self) -> None:
        super().__init__()

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""

    def on_exception(self, exception: BaseException) -> None:
        """An error ended the run."""

    @classmethod
    def load_from_checkpoint(
        cls: type[T],
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> T:
        """Build a data module with the arguments and the state that a ``.ckpt`` file has of it.

        Args:
            checkpoint_path: The file.
            map_location: Accepted: what is read is on the CPU.
            hparams_file: A YAML file of constructor arguments; those in the checkpoint come first.
            weights_only: False: objects of any class are read, which runs code of theirs.
            **kwargs: Constructor arguments that replace the recorded ones.
        """
        file = Loaded(checkpoint_path, weights_only).file
        recorded = {} if hparams_file is None else yaml.safe_load(Path(hparams_file).read_text()) or {}
        recorded |= file.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
        name = file.get(cls.CHECKPOINT_HYPER_PARAMS_NAME, "kwargs")
        given = (recorded if name in (None, "kwargs") else {name: recorded}) | kwargs
        taken = inspect.signature(cls).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values()) or "_instantiator" in given
        made: T = build(cls, {name: value for name, value in given.items() if takes_all or name in taken})
        if cls.__qualname__ in file:
            made.load_state_dict(file[cls.__qualname__])
        return made

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **options: Any,
    ) -> LightningDataModule:
        """A data module over datasets; the training data is shuffled."""
        from torch.utils.data import DataLoader, IterableDataset

        def loader(dataset: Any, shuffle: bool = False) -> Any:
            if isinstance(dataset, (list, tuple)):
                return [loader(one, shuffle) for one in dataset]
            shuffles = shuffle and not isinstance(dataset, IterableDataset)
            return DataLoader(dataset, batch_size=batch_size, shuffle=shuffles, num_workers=num_workers)

        made = cls(**options)
        given = {
            "train": train_dataset,
            "val": val_dataset,
            "test": test_dataset,
            "predict": predict_dataset,
        }
        for kind, dataset in given.items():
            if dataset is not None:
                setattr(made, f"{kind}_dataloader", lambda d=dataset, k=kind: loader(d, k == "train"))
        return made
