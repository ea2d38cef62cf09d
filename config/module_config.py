"""A run without a recipe: a module, or a model with a loss, and its data, all by import path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError
from torch.utils.data import DataLoader, IterableDataset

from ..errors import PacelineError, nearest
from ..trainer.datamodule import DataModule
from ..trainer.module import TrainModule
from ..trainer.module_parts.model_steps import OWN_NAMES, made_optimizer
from ..trainer.rng import seed_generators
from .class_settings import read_part
from .classes import FUNCTION, ClassSpec, attempt, check_call, find_target, read_class
from .experiment import Experiment
from .names import provided_to, slots
from .recipe import Recipe
from .run_config import RunConfig
from .signatures import name_of
from .sources import CLASS
from .violations import Problems, booleans_as_numbers, report_of, violations

_PHASES = ("train", "val", "test", "predict")


class LoaderConfig(BaseModel):
    """How datasets become dataloaders: arguments of ``torch.utils.data.DataLoader``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    batch_size: PositiveInt = 32
    """Samples in a micro-batch."""
    num_workers: NonNegativeInt = 0
    """Processes that read."""
    shuffle: bool = True
    """Whether the training data is shuffled; other data never is."""
    drop_last: bool = False
    """Skip the samples of an incomplete last step in training."""
    pin_memory: bool = False
    """Copy batches into pinned memory, for accelerators."""
    persistent_workers: bool = False
    """Keep the workers from one epoch to the next."""
    collate_fn: str | None = None
    """The import path of a function that makes a batch of samples."""


class ModuleConfig(RunConfig):
    """Settings of a run that a config describes by itself.

    A class is its import path, or a mapping with it under ``class`` and arguments; classes of
    ``torch.optim``, ``torch.optim.lr_scheduler``, ``torch.nn`` and the functions of
    ``torch.nn.functional`` need no path, and neither do the schedules ``constant``, ``linear``, ``cosine``
    and ``wsd``.
    """

    module: str | dict[str, Any] | None = None
    """A ``TrainModule`` class."""
    model: str | dict[str, Any] | None = None
    """In the place of ``module``: any ``nn.Module`` class, for ``TrainModule.of``."""
    loss: str | dict[str, Any] | None = None
    """Of a ``model``: a function of (predictions, targets)."""
    optimizer: str | dict[str, Any] | None = None
    """Of a ``model``, or of a ``module`` without ``configure_optimizers``."""
    scheduler: str | dict[str, Any] | None = None
    """Of the optimizer."""
    metrics: dict[str, str | dict[str, Any]] | None = None
    """Of a ``model``, by name: functions of (predictions, targets), or torchmetrics classes."""
    weight: str | None = None
    """Of a ``model``: a function of the batch that gives what its loss counts."""
    data: str | dict[str, Any] | None = None
    """A DataModule class, a function that returns one or dataloaders, or datasets under ``train``, ``val``,
    ``test`` and ``predict`` with settings of their dataloaders."""


def check_parts(values: Mapping[str, Any], problems: Problems) -> None:
    """Check what a config says of module and data; nothing is built.

    Args:
        values: All of the config.
        problems: Takes what is wrong.
    """
    _Parts(values, problems)


def build(config: ModuleConfig) -> Experiment:
    """Build what the config names.

    Raises:
        PacelineError: for what cannot be trained.
    """
    problems: Problems = []
    parts = _Parts(config.model_dump(exclude_none=True), problems)
    if problems:
        raise report_of(f"{path}: {text}" for path, text in problems)
    trainer = config.make_trainer()
    seed_generators(trainer.settings.seed)  # initial weights, and what a dataset draws when it is built
    with trainer.ranks.main_process_first(per_node=True), _building("data"):  # which may be downloaded now
        data = parts.build_data()
    with _building("module" if config.module is not None else "model"):
        module = parts.build_module()
    return Experiment(trainer, module, **data)


@contextmanager
def _building(key: str) -> Iterator[None]:
    """Say in an error of the user's code what was built."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while building {key}, as the config says")
        raise


MODULE_RECIPE = Recipe(
    None, ModuleConfig, build, about="A module or a model, and its data, by import path."
)
"""What a config without a recipe is for."""


class _Parts:
    """What a config says of module and data, read from its values; ``None`` for what it does not have."""

    def __init__(self, values: Mapping[str, Any], problems: Problems) -> None:
        self._values, self._problems = values, problems
        named = [name for name in ("module", "model") if values.get(name) is not None]
        if len(named) != 1:
            text = "give one of module and model" + (", not both" if named else ": what is to be trained")
            problems.append((named[-1] if named else "module", text))
        self._module = self._class("module")
        self._model = self._class("model")
        self._loss = self._function("loss")
        self._optimizer = self._part("optimizer")
        self._scheduler = self._part("scheduler")
        self._metrics = {
            name: self._function("metrics", value, f"metrics.{name}")
            for name, value in self._mapping("metrics").items()
        }
        for name in OWN_NAMES & set(self._metrics):
            self._problems.append((f"metrics.{name}", "has the name of a value that every step has"))
        self._weight = self._function("weight")
        self._check_together()
        self._data = self._read_data()
        if self._values.get("data") is None and self._needs_data():
            self._problems.append(
                ("data", "there is none: a DataModule, a function that returns dataloaders, or datasets")
            )

    def _needs_data(self) -> bool:
        """Whether there is something to train, and it defines no dataloaders."""
        target = self._module.target if self._module is not None else None
        is_module = isinstance(target, type) and issubclass(target, TrainModule)
        return self._model is not None or (is_module and not hasattr(target, "train_dataloader"))

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        return value if isinstance(value, Mapping) else {}

    def _class(self, key: str) -> ClassSpec | None:
        value = self._values.get(key)
        return None if value is None else read_class(value, slots()[key], key, self._problems)

    def _function(self, key: str, value: Any = None, path: str | None = None) -> ClassSpec | None:
        """A function, with arguments where it has some, or a class whose objects are called."""
        value, path = self._values.get(key) if path is None else value, path or key
        if value is None:
            return None
        found = find_target(value, slots()[key], path, self._problems)
        if found is None:
            return None
        target, given = found
        is_class = isinstance(target, type)
        provided = 0 if is_class else 2  # predictions and targets, or the batch
        arguments = check_call(target, given, provided, path, self._problems, is_partial=not is_class)
        return None if arguments is None else ClassSpec(target, arguments, is_partial=not is_class)

    def _part(self, key: str) -> ClassSpec | None:
        value = self._values.get(key)
        return None if value is None else read_part(key, value, key, self._problems)

    def _check_together(self) -> None:
        if self._values.get("scheduler") is not None and self._values.get("optimizer") is None:
            self._problems.append(("scheduler", "there is no optimizer that it could change"))
        module = self._module.target if self._module is not None else None
        if isinstance(module, type) and not issubclass(module, TrainModule):
            fix = "give it as model, with a loss and an optimizer, or subclass TrainModule"
            self._problems.append(("module", f"{name_of(module)} is no TrainModule; {fix}"))
        if module is None:
            return
        for key in ("loss", "metrics", "weight"):
            if self._values.get(key) is not None:
                self._problems.append((key, "is for a model; a module has its own steps"))
        own = getattr(module, "configure_optimizers", TrainModule.configure_optimizers)
        has_own = own is not TrainModule.configure_optimizers
        for key in ("optimizer", "scheduler"):
            if self._values.get(key) is not None and isinstance(module, type) and has_own:
                text = f"{name_of(module)}.configure_optimizers makes its own: set its arguments, module.lr"
                self._problems.append((key, text))

    def build_module(self) -> TrainModule:
        """The module to train."""
        optimizer = None if self._optimizer is None else replace(self._optimizer, is_partial=True).build()
        if self._module is not None:
            module: Any = self._module.build()
            if not isinstance(module, TrainModule):
                raise PacelineError(
                    "module: the function returned no TrainModule", code="wrong-object", got=module
                )
            if optimizer is not None:
                vars(module)["configure_optimizers"] = lambda: self._configured(module, optimizer)
            return module
        assert self._model is not None
        return TrainModule.of(
            self._model.build(),
            _made(self._loss),
            optimizer,
            self._schedule(),
            {name: _made(metric) for name, metric in self._metrics.items()},
            _made(self._weight),
        )

    def _configured(self, module: TrainModule, optimizer: Any) -> Any:
        found = made_optimizer(optimizer, module)
        schedule = self._schedule()
        if schedule is None:
            return found
        schedule = schedule(found) if callable(schedule) else schedule
        return {"optimizer": found, "lr_scheduler": schedule}

    def _schedule(self) -> Any:
        spec = self._scheduler
        if spec is None:
            return None
        return spec.build if provided_to(slots()["scheduler"], spec.target) else spec.build()

    def _read_data(self) -> Any:
        value = self._values.get("data")
        if value is None or isinstance(value, str) or (isinstance(value, Mapping) and CLASS in value):
            return self._class("data")
        if not isinstance(value, Mapping):
            return None
        sets = {
            phase: read_class(value[phase], slots()["dataset"], f"data.{phase}", self._problems)
            for phase in _PHASES
            if value.get(phase) is not None
        }
        options = {key: one for key, one in value.items() if key not in _PHASES}
        loader: LoaderConfig | None = None
        problems: Problems = []
        try:
            loader = LoaderConfig(**options)
        except ValidationError as error:
            problems = violations(error, options, lambda _: [*_PHASES, *LoaderConfig.model_fields])
        else:
            problems = booleans_as_numbers(options, loader)
            if loader.collate_fn is not None:
                attempt(lambda: FUNCTION.find(str(loader.collate_fn)), "collate_fn", problems)
        self._problems += [(f"data.{key}", text) for key, text in problems]
        if not sets:
            self._problems.append(("data", f"has none of {', '.join(_PHASES)}, and no class"))
        return loader, sets

    def build_data(self) -> dict[str, Any]:
        """The data arguments of an ``Experiment``."""
        if self._data is None:
            return {}
        if isinstance(self._data, ClassSpec):
            return _as_data(self._data.build())
        loader, sets = self._data
        return {phase: _dataloader(spec.build(), phase, loader) for phase, spec in sets.items()}


def _made(spec: ClassSpec | None) -> Any:
    return None if spec is None else spec.build()


def _as_data(found: Any) -> dict[str, Any]:
    """What a function for the data may return."""
    if isinstance(found, DataModule):
        return {"datamodule": found}
    if hasattr(found, "train_dataloader"):
        raise PacelineError(
            "data: this has dataloaders, and is no DataModule",
            code="wrong-object",
            got=f"the class {type(found).__name__}",
            fix=f"class {type(found).__name__}(paceline.DataModule)",
        )
    if isinstance(found, Mapping):
        unknown = [str(name) for name in found if name not in _PHASES]
        if unknown:
            raise _no_data(f"a dict of {', '.join(map(str, found))}", nearest(unknown[0], _PHASES))
        return dict(found)
    if isinstance(found, tuple) and 1 <= len(found) <= len(_PHASES):
        return dict(zip(_PHASES, found, strict=False))
    if hasattr(found, "__iter__") and not isinstance(found, (str, tuple)):
        return {"train": found}
    raise _no_data(found)


def _no_data(got: Any, meant: str | None = None) -> PacelineError:
    return PacelineError(
        "data: this gives no data",
        code="wrong-object",
        got=got,
        allowed="a DataModule, a dataloader, a tuple (train, val), or a dict of train, val, test, predict",
        meant=meant,
    )


def _dataloader(found: Any, phase: str, options: LoaderConfig) -> Any:
    if not (hasattr(found, "__getitem__") or isinstance(found, IterableDataset)):
        return found  # a dataloader, or batches
    training = phase == "train"
    arguments = options.model_dump(exclude={"shuffle", "drop_last", "collate_fn"})
    if options.collate_fn is not None:
        arguments["collate_fn"] = FUNCTION.find(options.collate_fn)
    if training and not isinstance(found, IterableDataset):
        arguments |= {"shuffle": options.shuffle, "drop_last": options.drop_last}
    return DataLoader(found, **arguments)
