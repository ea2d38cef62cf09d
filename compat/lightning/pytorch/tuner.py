"""``Tuner``: searches for a learning rate and a batch size, each by a trial fit of a copy of the module."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ....errors import PacelineError
from .callbacks import BatchSizeFinder, Callback, LearningRateFinder
from .trainer import Trainer
from .trainer.given import as_datamodule
from .utilities.memory import is_oom_error

_KEPT = 0.98  # of the average of losses, in each step
_QUIET = {
    "max_time": None,
    "min_epochs": None,
    "min_steps": None,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "val_check_interval": None,
    "check_val_every_n_epoch": 1,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}


_ONCE = ("prepare_data", "setup", "configure_model", "on_fit_start", "on_fit_end", "teardown")


class _LRFinder:
    """What ``lr_find`` found.

    Attributes:
        mode: How the rate rose: ``"exponential"`` or ``"linear"``.
        lr_min: The first rate.
        lr_max: The last one.
        num_training: Steps at most.
        results: ``"lr"``: the rate of each step, ``"loss"``: the average loss up to it.
    """

    def __init__(self, mode: str, lr_min: float, lr_max: float, num_training: int) -> None:
        self.mode, self.lr_min, self.lr_max, self.num_training = mode, lr_min, lr_max, num_training
        self.results: dict[str, list[float]] = {}
        self._optimal_idx: int | None = None

    def rate(self, step: int) -> float:
        """The rate of a step, from 0."""
        low, high, part = self.lr_min, self.lr_max, (step + 1) / self.num_training
        if not step:
            return low
        return low * (high / low) ** part if self.mode == "exponential" else low + part * (high - low)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the loss falls fastest; None with fewer than two losses to compare.

        Args:
            skip_begin: Steps at the beginning that do not count.
            skip_end: Steps at the end that do not count.
        """
        given = zip(self.results["lr"], self.results["loss"], strict=True)
        steps = list(enumerate(given))[skip_begin:-skip_end]
        steps = [(index, pair) for index, pair in steps if torch.isfinite(torch.tensor(pair[1]))]
        self._optimal_idx = None
        if len(steps) < 2:
            return None
        rates, losses = (torch.tensor([pair[part] for _, pair in steps]) for part in (0, 1))
        steepest = int(torch.gradient(losses, spacing=[rates])[0].argmin())
        self._optimal_idx = steps[steepest][0]
        return self.results["lr"][self._optimal_idx]

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """A figure of matplotlib, of the loss over the rate.

        Args:
            suggest: Mark the suggestion.
            show: Show it too.
            ax: Axes to draw into; new ones unless given.
        """
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.plot(self.results["lr"], self.results["loss"])
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("Learning rate")
        ax.set_ylabel("Loss")
        at = self._optimal_idx if suggest and self.suggestion() is not None else None
        if at is not None:
            ax.plot(self.results["lr"][at], self.results["loss"][at], "o", color="red")
        if show:
            plt.show()
        return ax.figure


class _Sweep(Callback):
    """Sets the rate of each step, notes the losses, and ends the trial where they rise too high."""

    def __init__(self, search: _LRFinder, most: float | None, optimizer: dict[str, Any] | None) -> None:
        self.search, self.most, self.optimizer = search, most, optimizer
        self.average = self.best = 0.0
        self.rates: list[float] = []
        self.losses: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.optimizer is not None:
            trainer.optimizers[0].load_state_dict(self.optimizer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        rate = self.search.rate(trainer.global_step)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.rates.append(rate)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if not outputs:
            self.losses.append(float("nan"))
            return
        step, loss = trainer.global_step, float(outputs["loss"])
        self.average = _KEPT * self.average + (1 - _KEPT) * loss
        smoothed = self.average / (1 - _KEPT ** (step + 1))
        ends = self.most is not None and step > 1 and smoothed > self.most * self.best
        if trainer.strategy.broadcast(ends):
            trainer.should_stop = True
        self.best = smoothed if step == 1 else min(self.best, smoothed)
        self.losses.append(smoothed)


class _Samples(Callback):
    """Notes how many samples the training data has; infinitely many where that is unknown."""

    count = math.inf

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        loader = trainer.train_dataloader
        counted = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        self.count = len(loader.dataset) if counted else math.inf


class Tuner:
    """Searches before a fit; the trainer and the module stay as they are, but for what is found.

    Args:
        trainer: Its settings are those of the trials.

    Example:
        >>> import paceline.compat.lightning as L
        >>> from paceline.compat.lightning.pytorch.tuner import Tuner
        >>> tuner = Tuner(L.Trainer(max_epochs=2))
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> _LRFinder | None:
        """Train a copy of the module while the learning rate rises.

        Args:
            model: The module.
            train_dataloaders: As ``fit`` takes them.
            val_dataloaders: Accepted: trials do not validate.
            dataloaders: Accepted.
            datamodule: As ``fit`` takes it.
            method: ``"fit"``.
            min_lr: The rate of the first step.
            max_lr: That of the last.
            num_training: Steps.
            mode: ``"exponential"`` or ``"linear"``.
            early_stop_threshold: End where the average loss is so many times the lowest; None does not.
            update_attr: Set the module's rate to the suggestion.
            attr_name: The attribute or hyperparameter; ``lr`` or ``learning_rate`` unless given.

        Returns:
            The search; None under ``fast_dev_run``.

        Raises:
            PacelineError: where the module has no such attribute, and for another method.
        """
        if not self._searches("lr_find", method):
            return None
        name = (
            _attribute(model, [attr_name] if attr_name else ["lr", "learning_rate"]) if update_attr else ""
        )
        search = _LRFinder(mode, min_lr, max_lr, num_training)
        begun = self._trainer.optimizers if self._trainer.ours._fit is not None else []
        state = copy.deepcopy(begun[0].state_dict()) if begun else None
        sweep = _Sweep(search, early_stop_threshold, state)
        trial = self._try(model, train_dataloaders, datamodule, num_training, sweep)
        count = min(len(sweep.rates), len(sweep.losses))
        found = {"lr": sweep.rates[:count], "loss": sweep.losses[:count]}
        search.results = trial.strategy.broadcast(found)
        rate = search.suggestion() if update_attr else None
        if rate is not None:
            _set(model, name, rate)
        return search

    def scale_batch_size(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int | None:
        """Train copies of the module on larger and larger batches, and keep the largest size that fits.

        Args:
            model: The module.
            train_dataloaders: A ``DataLoader``; without one the module or the data module makes it, by the
                size in ``batch_arg_name``.
            val_dataloaders: Accepted: trials do not validate.
            dataloaders: Accepted.
            datamodule: As ``fit`` takes it.
            method: ``"fit"``.
            mode: ``"power"`` doubles the size; ``"binsearch"`` searches between the last two then.
            steps_per_trial: Steps of each trial.
            init_val: The first size.
            max_trials: Trials at most.
            batch_arg_name: The attribute, or hyperparameter, of module or data module, which is set.
            margin: By which part ``"binsearch"`` makes the result smaller.
            max_val: The largest size.

        Returns:
            The size; None under ``fast_dev_run``.

        Raises:
            PacelineError: where neither has such an attribute, for another method, on several ranks,
                and where nothing fits.
        """
        if not self._searches("scale_batch_size", method):
            return None
        if self._trainer.world_size > 1:
            raise PacelineError(
                "a batch size is searched for on one device",
                code="search-not-possible",
                got=f"{self._trainer.world_size} ranks",
                fix="search with Trainer(devices=1), and train with the size that it finds",
            )
        loaders, datamodule = as_datamodule(train_dataloaders, datamodule)
        owner = model if _has(model, batch_arg_name) or datamodule is None else datamodule
        _attribute(owner, [batch_arg_name])
        data = _Samples()

        def works(size: int) -> bool:
            _set(owner, batch_arg_name, size)
            return self._fits(model, _sized(loaders, size), datamodule, steps_per_trial, data)

        fits = _largest(works, data, init_val, max_val, max_trials, mode == "power")
        if mode == "binsearch":
            fits = max(int(fits * (1 - margin)), 1)
        _set(owner, batch_arg_name, fits)
        return fits

    def _searches(self, name: str, method: str) -> bool:
        if method != "fit":
            raise PacelineError(
                f"{name} searches in a fit alone", code="search-not-possible", got=f"method={method!r}"
            )
        return not self._trainer.fast_dev_run

    def _fits(self, model: Any, loaders: Any, datamodule: Any, steps: int, data: _Samples) -> bool:
        try:
            self._try(model, loaders, datamodule, steps, data)
        except Exception as error:
            if not is_oom_error(error):
                raise
            return False
        return True

    def _try(self, model: Any, loaders: Any, datamodule: Any, steps: int, *callbacks: Callback) -> Trainer:
        """A fit of a copy that leaves nothing; within a fit, what that has set up is set up."""
        trial: Trainer = object.__new__(type(self._trainer))
        ours = self._trainer.ours
        model = copy.deepcopy(model)
        vars(model)["configure_callbacks"] = list
        if datamodule is not None and ours.stage == "fit":
            datamodule = copy.copy(datamodule)
            vars(datamodule).update(dict.fromkeys(_ONCE, _nothing))
        if ours._fit is not None:
            vars(model).update(dict.fromkeys(_ONCE, _nothing))
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
            given = self._trainer.given | _QUIET | {"max_steps": steps, "default_root_dir": folder}
            trial._set_up(given, [*callbacks], [], self._trainer.profiler)
            Trainer.fit(trial, model, loaders, datamodule=datamodule)
            trial.strategy.barrier()  # ranks share the folder of rank 0
        return trial


def _largest(
    works: Callable[[int], bool], data: _Samples, first: int, most: int, trials: int, is_rough: bool
) -> int:
    """The largest size that works, by doubling it, and unless ``is_rough`` by halves between the last two.

    Raises:
        PacelineError: where none does.
    """
    size, fits, fails = first, 0, most + 1
    for _ in range(trials):
        if works(size):
            fits = size
        else:
            fails = size
        size = min(2 * size, most) if fails > most else (fits + fails) // 2
        if size <= fits or fits >= data.count or (is_rough and 0 < fits < fails <= most):
            break
    if not fits:
        raise PacelineError(
            "no batch size fits into memory",
            code="search-not-possible",
            got=f"batches of {fails} at least",
            fix="a smaller model",
        )
    return fits


def _nothing(*_: Any) -> None:
    """In the place of a hook that was called."""


def _has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "hparams", {})


def _attribute(owner: Any, names: list[str]) -> str:
    found = next((name for name in names if _has(owner, name)), None)
    if found is None:
        raise PacelineError(
            f"{type(owner).__name__} has no attribute or hyperparameter {' or '.join(names)} to set",
            code="search-not-possible",
            fix="its name: lr_find(attr_name=...), scale_batch_size(batch_arg_name=...)",
        )
    return found


def _set(owner: Any, name: str, value: Any) -> None:
    if hasattr(owner, name):
        setattr(owner, name, value)
    if name in getattr(owner, "hparams", {}):
        owner.hparams[name] = value


def _sized(loaders: Any, size: int) -> Any:
    """A loader with batches of another size; None as it is."""
    if not isinstance(loaders, DataLoader):
        return loaders
    options = {n: getattr(loaders, n) for n in ("num_workers", "collate_fn", "pin_memory", "drop_last")}
    return DataLoader(loaders.dataset, size, sampler=loaders.sampler, **options)


LearningRateFinder.tuner = BatchSizeFinder.tuner = Tuner
