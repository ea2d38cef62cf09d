"""``SaveConfigCallback``: the configuration beside the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from ..... import PacelineError
from ...translation.hooks import overrides
from ..callbacks import Callback
from .parser import LightningArgumentParser


class SaveConfigCallback(Callback):
    """Writes the configuration to ``trainer.log_dir`` when the first stage begins.

    Args:
        parser: Which read it.
        config: What it read.
        config_filename: The file's name.
        overwrite: Whether a file of this name is replaced.
        multifile: Whether configurations in files of their own are written so again.
        save_to_log_dir: Whether it is written there; without it override ``save_config``.

    Raises:
        ValueError: where it would do nothing.
    """

    def __init__(
        self,
        parser: LightningArgumentParser,
        config: Namespace,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        self.parser, self.config, self.config_filename = parser, config, config_filename
        self.overwrite, self.multifile, self.save_to_log_dir = overwrite, multifile, save_to_log_dir
        self.already_saved = False
        if not save_to_log_dir and not overrides(self, "save_config", SaveConfigCallback):
            raise ValueError("SaveConfigCallback(save_to_log_dir=False) does nothing; override save_config")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.already_saved:
            return
        if self.save_to_log_dir:
            self._write(trainer)
        if trainer.is_global_zero:
            self.save_config(trainer, pl_module, stage)
        self.already_saved = True

    def _write(self, trainer: Any) -> None:
        path = Path(trainer.log_dir) / self.config_filename
        exists = trainer.strategy.broadcast(trainer.is_global_zero and path.exists())
        if exists and not self.overwrite:
            raise PacelineError(
                "the configuration file of another run exists",
                code="file-exists",
                got=str(path),
                fix='LightningCLI(save_config_kwargs={"overwrite": True}), or save_config_callback=None',
            )
        if trainer.is_global_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.parser.save(
                self.config, str(path), skip_unset=False, overwrite=self.overwrite, multifile=self.multifile
            )

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Override it to write the configuration elsewhere too; on rank 0 only."""
