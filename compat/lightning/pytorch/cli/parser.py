"""``LightningArgumentParser``: jsonargparse's parser, with methods for modules, optimizers, schedules."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from jsonargparse import (
    ArgumentParser,
    Namespace,
    class_from_function,
    register_unresolvable_import_paths,
    set_parsing_settings,
)
from torch.optim import Optimizer

from ..... import PacelineError
from ..callbacks import Callback
from ..core import LightningDataModule, LightningModule
from ..trainer import Trainer
from .classes import LRSchedulerTypeTuple
from .names import YAML, register, register_omegaconf, with_our_names

register()
register_unresolvable_import_paths(torch)  # some of torch's classes say a module that does not have them
set_parsing_settings(config_read_mode_fsspec_enabled=True)

AUTOMATIC = "AUTOMATIC"
"""What is linked to nothing: ``configure_optimizers`` takes it."""
_KINDS = (Trainer, LightningModule, LightningDataModule, Callback)


class LightningArgumentParser(ArgumentParser):  # type: ignore[misc]
    """Reads arguments, configuration files and the environment.

    Class paths of ``lightning.pytorch`` and ``pytorch_lightning`` mean this package's classes.

    Source: https://lightning.ai/docs/pytorch/stable/cli/lightning_cli_advanced_3.html

    Args:
        *args: As jsonargparse's ``ArgumentParser``.
        description: What ``--help`` prints first.
        env_prefix: Of environment variables: ``PL_FIT__TRAINER__MAX_EPOCHS``.
        default_env: Whether these are read.
        parser_mode: The format of configuration files; by default YAML.
        **kwargs: As jsonargparse's.
    """

    def __init__(
        self,
        *args: Any,
        description: str = "Lightning Trainer command line tool",
        env_prefix: str = "PL",
        default_env: bool = False,
        parser_mode: str = YAML,
        **kwargs: Any,
    ) -> None:
        if parser_mode.startswith("omegaconf"):
            register_omegaconf(parser_mode)
        self.callback_keys: list[str] = []
        self._optimizers: dict[str, tuple[Any, str]] = {}
        self._lr_schedulers: dict[str, tuple[Any, str]] = {}
        super().__init__(
            *args,
            description=description,
            env_prefix=env_prefix,
            default_env=default_env,
            parser_mode=YAML if parser_mode == "yaml" else parser_mode,
            **kwargs,
        )

    def add_lightning_class_args(
        self,
        lightning_class: type | Callable[..., Any],
        nested_key: str,
        subclass_mode: bool = False,
        required: bool = True,
    ) -> list[str]:
        """Add the arguments of a trainer, module, data module or callback.

        Args:
            lightning_class: The class, or a function that returns an object of one.
            nested_key: What they are under: ``--model.width``.
            subclass_mode: Whether ``class_path`` names the class, a subclass of this one.
            required: Whether there has to be one.

        Returns:
            The names that were added.

        Raises:
            PacelineError: for another class.
        """
        made: Any = lightning_class
        if not isinstance(made, type):
            made = class_from_function(made)
        if not issubclass(made, _KINDS):
            raise PacelineError(
                "add_lightning_class_args takes a Trainer, a module, a data module or a Callback",
                code="wrong-object",
                got=lightning_class,
                fix=f"add_class_arguments({getattr(lightning_class, '__name__', 'cls')}, {nested_key!r})",
            )
        if issubclass(made, Callback):
            self.callback_keys.append(nested_key)
        if subclass_mode:
            found = self.add_subclass_arguments(made, nested_key, fail_untyped=False, required=required)
        else:
            instantiate = not issubclass(made, Trainer)
            found = self.add_class_arguments(
                made, nested_key, fail_untyped=False, instantiate=instantiate, sub_configs=True
            )
        return list(found or [nested_key])

    def add_optimizer_args(
        self,
        optimizer_class: type[Optimizer] | tuple[type[Optimizer], ...] = (Optimizer,),
        nested_key: str = "optimizer",
        link_to: str = AUTOMATIC,
    ) -> None:
        """Add the arguments of an optimizer, without its parameters.

        Args:
            optimizer_class: The class; a tuple for any subclass of these.
            nested_key: What they are under.
            link_to: The key of an argument that takes class and arguments; by default they go to
                ``configure_optimizers``.
        """
        self._add(optimizer_class, nested_key, "params")
        self._optimizers[nested_key] = (optimizer_class, link_to)

    def add_lr_scheduler_args(
        self,
        lr_scheduler_class: Any = LRSchedulerTypeTuple,
        nested_key: str = "lr_scheduler",
        link_to: str = AUTOMATIC,
    ) -> None:
        """Add the arguments of a schedule, without its optimizer.

        Args:
            lr_scheduler_class: The class; a tuple for any subclass of these.
            nested_key: What they are under.
            link_to: As for ``add_optimizer_args``.
        """
        self._add(lr_scheduler_class, nested_key, "optimizer")
        self._lr_schedulers[nested_key] = (lr_scheduler_class, link_to)

    def _add(self, kind: Any, key: str, skipped: str) -> None:
        shared: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "skip": {skipped}}
        if isinstance(kind, tuple):
            self.add_subclass_arguments(kind, key, **shared)
        else:
            self.add_class_arguments(kind, key, sub_configs=True, **shared)

    def set_defaults(self, *args: Any, **kwargs: Any) -> None:
        """As jsonargparse's."""
        super().set_defaults(*with_our_names(list(args)), **with_our_names(kwargs))

    def parse_args(self, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        """As jsonargparse's; those of the process without any."""
        if self.default_env:
            prefix = f"{self.env_prefix}_"
            os.environ.update(with_our_names({k: v for k, v in os.environ.items() if k.startswith(prefix)}))
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_args(with_our_names(given), *more, **kwargs)

    def parse_object(self, cfg_obj: Any, *more: Any, **kwargs: Any) -> Any:
        """As jsonargparse's."""
        given = cfg_obj.as_dict() if isinstance(cfg_obj, Namespace) else cfg_obj
        return super().parse_object(with_our_names(given), *more, **kwargs)
