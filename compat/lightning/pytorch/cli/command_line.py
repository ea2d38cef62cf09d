"""``LightningCLI``: a trainer, a module and its data from arguments and configuration files."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, Namespace, class_from_function
from torch.optim import Optimizer

from ..... import PacelineError, __version__
from ...translation.configured import recording
from ...translation.hooks import overrides
from ...translation.saved import Loaded
from ..core import LightningDataModule, LightningModule
from ..trainer import Trainer, seed_everything
from ..trainer.given import as_list
from .classes import ReduceLROnPlateau, adding_class, instantiate_class, made_by
from .parser import AUTOMATIC, LightningArgumentParser
from .save_config import SaveConfigCallback

ArgsType = list[str] | dict[str, Any] | Namespace | None
_DATA = {"model", "dataloaders", "datamodule"}


class LightningCLI:
    """Reads arguments and configuration files, builds trainer, module and data module, and runs a method.

    ``python main.py fit --config config.yaml --trainer.max_epochs 3``; the methods are ``fit``,
    ``validate``, ``test`` and ``predict``. A subclass may override any of its methods, and have
    ``before_fit``, ``after_fit`` and the like, or a ``fit`` in the place of the trainer's.

    Source: https://lightning.ai/docs/pytorch/stable/cli/lightning_cli.html

    Args:
        model_class: The module's class, or a function that returns a module; None: ``--model`` names it.
        datamodule_class: The same for data; None: ``--data`` may name it.
        save_config_callback: Writes the configuration beside the logs; None: nothing is written.
        save_config_kwargs: Arguments of that.
        trainer_class: The trainer's class, or a function that returns one.
        trainer_defaults: Other defaults of the trainer; ``callbacks`` are added to those of a run.
        seed_everything_default: The seed unless one is given; True: the one of ``seed_everything``; False:
            nothing is seeded.
        parser_kwargs: Arguments of ``parser_class``, or of each subcommand's by its name.
        parser_class: What reads.
        subclass_mode_model: Whether ``--model`` names a subclass of ``model_class``.
        subclass_mode_data: The same for data.
        args: In the place of those of the process.
        run: Whether a method is run; False: ``cli.trainer``, ``cli.model``, ``cli.datamodule`` are made.
        auto_configure_optimizers: Whether ``--optimizer`` and ``--lr_scheduler`` make what
            ``configure_optimizers`` returns.
        load_from_checkpoint_support: Whether modules record their part of the configuration in the place of
            the objects that they get.

    Attributes:
        config: What was read.
        config_init: The same with objects.
        subcommand: The method that is run; None without one.
        parser: What reads.
        trainer: The trainer.
        model: The module.
        datamodule: The data module; None without one.

    Example:
        >>> import paceline.compat.lightning as L
        >>> class Line(L.LightningModule):
        ...     def __init__(self, width: int = 2):
        ...         super().__init__()
        ...         self.layer = nn.Linear(width, 1)
        >>> cli = LightningCLI(Line, run=False, args=["--model.width=4", "--trainer.max_epochs=2"])
        >>> cli.model.layer.in_features, cli.trainer.max_epochs
        (4, 2)
    """

    trainer: Trainer
    model: LightningModule
    datamodule: LightningDataModule | None

    def __init__(
        self,
        model_class: type[LightningModule] | Callable[..., LightningModule] | None = None,
        datamodule_class: type[LightningDataModule] | Callable[..., LightningDataModule] | None = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: type[Trainer] | Callable[..., Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | None = None,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: ArgsType = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
        load_from_checkpoint_support: bool = True,
    ) -> None:
        self.model_class, self.datamodule_class = model_class, datamodule_class
        self._model_class = model_class or LightningModule
        self._datamodule_class = datamodule_class or LightningDataModule
        self.subclass_mode_model = model_class is None or subclass_mode_model
        self.subclass_mode_data = datamodule_class is None or subclass_mode_data
        self.save_config_callback, self.save_config_kwargs = save_config_callback, save_config_kwargs or {}
        self.trainer_class, self.trainer_defaults = trainer_class, trainer_defaults or {}
        self.seed_everything_default = seed_everything_default
        self.parser_kwargs, self.parser_class = parser_kwargs or {}, parser_class
        self.auto_configure_optimizers = auto_configure_optimizers
        self.load_from_checkpoint_support = load_from_checkpoint_support
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        self._subcommand_method_arguments: dict[str, list[str]] = {}

        commands = self.subcommands()
        main = {name: value for name, value in self.parser_kwargs.items() if name not in commands}
        of_commands = {name: value for name, value in self.parser_kwargs.items() if name in commands}
        self.setup_parser(run, main, of_commands)
        self.parse_arguments(self.parser, args)
        self.subcommand: str | None = self.config["subcommand"] if run else None
        self._parse_ckpt_path()
        self._set_seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        self.after_instantiate_classes()
        if self.subcommand is not None:
            self._run_subcommand(self.subcommand)

    # -- what can be given ---------------------------------------------------------------------

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The methods of the trainer that can be run, and which of their arguments are not asked for."""
        fit = {"model", "train_dataloaders", "val_dataloaders", "datamodule"}
        return {"fit": fit, "validate": _DATA, "test": _DATA, "predict": _DATA}

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser with ``--config`` alone."""
        parser = self.parser_class(**({"dump_header": [f"paceline=={__version__}"]} | kwargs))
        about = "Path to a configuration file; of several the later ones win."
        parser.add_argument("-c", "--config", action=ActionConfigFile, help=about)
        return parser

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Make ``self.parser`` with all that can be given."""
        self.parser = self.init_parser(**main_kwargs)
        if not add_subcommands:
            self._add_arguments(self.parser)
            return
        made = self.trainer_class
        trainer: Any = made if isinstance(made, type) else class_from_function(made)
        commands = self.parser.add_subcommands()
        for name in self.subcommands():
            about = (inspect.getdoc(getattr(trainer, name)) or "").partition("\n")[0]
            given = {"description": about} | subparser_kwargs.get(name, {})
            self._subcommand_parsers[name] = self._prepare_subcommand_parser(trainer, name, **given)
            commands.add_subcommand(name, self._subcommand_parsers[name], help=about)

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        parser = self.init_parser(**kwargs)
        self._add_arguments(parser)
        skipped = set(self.subcommands()[subcommand])
        added = parser.add_method_arguments(klass, subcommand, skip=skipped)
        self._subcommand_method_arguments[subcommand] = added
        return parser

    def _add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_default_arguments_to_parser(parser)
        self.add_core_arguments_to_parser(parser)
        self.add_arguments_to_parser(parser)
        if self.auto_configure_optimizers:
            if not parser._optimizers:
                parser.add_optimizer_args()
            if not parser._lr_schedulers:
                parser.add_lr_scheduler_args()
        self.link_optimizers_and_lr_schedulers(parser)

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--seed_everything``."""
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="The seed; true takes PL_GLOBAL_SEED, else 0; false seeds nothing.",
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--trainer``, ``--model`` and ``--data``."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        defaults = {f"trainer.{k}": v for k, v in self.trainer_defaults.items() if k != "callbacks"}
        parser.set_defaults(defaults)
        parser.add_lightning_class_args(self._model_class, "model", subclass_mode=self.subclass_mode_model)
        parser.add_lightning_class_args(
            self._datamodule_class,
            "data",
            subclass_mode=self.subclass_mode_data,
            required=self.datamodule_class is not None,  # a module may have the dataloaders
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Override it to add arguments, link them, or set defaults."""

    @staticmethod
    def link_optimizers_and_lr_schedulers(parser: LightningArgumentParser) -> None:
        """Link optimizers and schedules to the arguments that they were added for."""
        for key, (kind, target) in (parser._optimizers | parser._lr_schedulers).items():
            if target == AUTOMATIC:
                continue
            if isinstance(kind, tuple):
                parser.link_arguments(key, target)
            else:
                parser.link_arguments(key, target, compute_fn=adding_class(kind))

    # -- what was given ------------------------------------------------------------------------

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Read into ``self.config``."""
        if args is not None and len(sys.argv) > 1:
            warnings.warn(
                f"LightningCLI(args=...) is read, and those of the process are not: {sys.argv[1:]}",
                stacklevel=3,
            )
        structured = isinstance(args, (dict, Namespace))
        self.config = parser.parse_object(args) if structured else parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """What the module of ``--ckpt_path`` kept by ``save_hyperparameters`` replaces what was given."""
        path = self._get(self.config, "ckpt_path") if self.subcommand else None
        if path is None or not Path(path).exists():
            return
        found = Loaded(path).hyperparameters
        if not found:
            return
        if "_class_path" in found:
            found = {"class_path": found.pop("_class_path"), "dict_kwargs": found}
        try:
            self.config = self.parser.parse_object({self.subcommand: {"model": found}}, self.config)
        except SystemExit:
            sys.stderr.write(f"{path} was written by a module with other arguments\n")
            raise

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if seed is not False:
            chosen = seed_everything(None if seed is True else seed, workers=True)
            self.config.get(str(self.subcommand), self.config)["seed_everything"] = chosen

    @cached_property
    def config_dump(self) -> dict[str, Any]:
        """The configuration as plain data, links included, as it is when modules are made."""
        dumped = self.parser.dump(self.config, skip_link_targets=False, skip_unset=False, format="yaml")
        found: dict[str, Any] = yaml.safe_load(dumped)
        return found if self.subcommand is None else found[self.subcommand]

    # -- objects -------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        """Override it to change ``self.config``."""

    def instantiate_classes(self) -> None:
        """Make module, data module and trainer."""
        recorders = []
        if self.load_from_checkpoint_support:
            for key, maker, base, named in (
                ("model", self.model_class, LightningModule, self.subclass_mode_model),
                ("data", self.datamodule_class, LightningDataModule, self.subclass_mode_data),
            ):
                made_by_function = maker is not None and not isinstance(maker, type)
                record = recording(key, self.config_dump.get(key) or {})
                recorders.append((record, made_by(maker, base), named or made_by_function))
        self.config_init = self.parser.instantiate(self.config, instantiators=recorders)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def after_instantiate_classes(self) -> None:
        """Override it to change what was made."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the trainer.

        Args:
            kwargs: Arguments of it that replace those that were given.
        """
        given = dict(self._get(self.config_init, "trainer", {})) | kwargs
        keys = self._parser(self.subcommand).callback_keys
        return self._instantiate_trainer(given, [self._get(self.config_init, key) for key in keys])

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> Trainer:
        if "callbacks" in config:
            added = [*callbacks, *as_list(self.trainer_defaults.get("callbacks"))]
            if self.save_config_callback and not config.get("fast_dev_run"):
                parser = self._parser(self.subcommand)
                read = self.config.get(str(self.subcommand), self.config)
                added.append(self.save_config_callback(parser, read, **self.save_config_kwargs))
            config["callbacks"] = [*as_list(config["callbacks"]), *added]
        return self.trainer_class(**config)

    @staticmethod
    def configure_optimizers(
        lightning_module: LightningModule, optimizer: Optimizer, lr_scheduler: Any = None
    ) -> Any:
        """What the module's ``configure_optimizers`` returns under ``--optimizer``; to be overridden.

        Args:
            lightning_module: The module.
            optimizer: The optimizer.
            lr_scheduler: The schedule; None without one.
        """
        if lr_scheduler is None:
            return optimizer
        if isinstance(lr_scheduler, ReduceLROnPlateau):
            schedule = {"scheduler": lr_scheduler, "monitor": lr_scheduler.monitor}
            return {"optimizer": optimizer, "lr_scheduler": schedule}
        return [optimizer], [lr_scheduler]

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Have the module configure the optimizer and the schedule that were given, if any."""
        if not self.auto_configure_optimizers:
            return
        parser = self._parser(subcommand)
        optimizers = [key for key, (_, target) in parser._optimizers.items() if target == AUTOMATIC]
        schedules = [key for key, (_, target) in parser._lr_schedulers.items() if target == AUTOMATIC]
        if not optimizers:
            return
        if len(optimizers) > 1 or len(schedules) > 1:
            raise PacelineError(
                "LightningCLI configures one optimizer and one schedule by itself",
                code="not-offered",
                got=", ".join(optimizers + schedules),
                fix='link_to="model.first" and the like for each, and configure_optimizers in the module',
            )
        optimizer_init = self._class_and_arguments(optimizers[0], parser._optimizers)
        if optimizer_init is None:
            return
        schedule_init = (
            self._class_and_arguments(schedules[0], parser._lr_schedulers) if schedules else None
        )
        if overrides(self.model, "configure_optimizers", LightningModule):
            own = f"{type(self.model).__name__}.configure_optimizers"
            warnings.warn(f"{own} is not used: {optimizers[0]} of the command line is", stacklevel=2)

        def configure_optimizers(module: LightningModule) -> Any:
            optimizer = instantiate_class(module.parameters(), optimizer_init)
            schedule = None if schedule_init is None else instantiate_class(optimizer, schedule_init)
            return self.configure_optimizers(module, optimizer=optimizer, lr_scheduler=schedule)

        vars(self.model)["configure_optimizers"] = MethodType(configure_optimizers, self.model)

    def _class_and_arguments(self, key: str, added: dict[str, tuple[Any, str]]) -> dict[str, Any] | None:
        kind, found = added[key][0], self._get(self.config_init, key)
        found = found.as_dict() if isinstance(found, Namespace) else found
        return (found or None) if isinstance(kind, tuple) else adding_class(kind)(found)

    # -- the run -------------------------------------------------------------------------------

    def _run_subcommand(self, name: str) -> None:
        arguments = self._prepare_subcommand_kwargs(name)
        for step in (f"before_{name}", name, f"after_{name}"):
            method = getattr(self, step, getattr(self.trainer, name) if step == name else None)
            if method is not None:
                method(**(arguments if step == name else {}))

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        given = self.config_init[subcommand]
        names = self._subcommand_method_arguments[subcommand]
        arguments = {name: given[name] for name in names if name in given} | {"model": self.model}
        return arguments if self.datamodule is None else arguments | {"datamodule": self.datamodule}

    def _parser(self, subcommand: str | None) -> LightningArgumentParser:
        return self.parser if subcommand is None else self._subcommand_parsers[subcommand]

    def _get(self, config: Any, key: str, default: Any = None) -> Any:
        """A value of the subcommand's configuration."""
        return config.get(str(self.subcommand), config).get(key, default)
