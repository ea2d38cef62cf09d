"""The base of configurations: what every recipe's ``Config`` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr

from ..trainer.trainer import Trainer
from .trainer_section import merged_callbacks, read_trainer
from .violations import Problems, report_of


class RunConfig(BaseModel):
    """A configuration with a section for the Trainer; subclass it for a recipe's own settings.

    Fields are typed as pydantic reads them; a string below a field describes it. An unknown key, and a
    value of another type, are errors that name the key, its file and line, and the nearest right key.

    Example:
        >>> class Config(RunConfig):
        ...     epochs: int = 3
        ...     '''Passes over the training data.'''
        >>> trainer = Config(trainer={"precision": "bf16"}).make_trainer(max_epochs=2, name="example")
        >>> trainer.settings.max_epochs, trainer.settings.precision
        (2, 'bf16')
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    _recipe: str | None = PrivateAttr(default=None)
    _place: Callable[[str], str] = PrivateAttr(default=str)
    """A dotted key with the place that its value comes from, for messages."""

    trainer: dict[str, Any] = {}
    """Arguments of the Trainer. They take precedence over those that the recipe chooses."""

    def make_trainer(self, **defaults: Any) -> Trainer:
        """A Trainer, whose runs have this configuration in their config.yaml.

        Args:
            **defaults: Its arguments, as far as ``trainer`` does not give others. Callbacks of both are
                taken; one of ``trainer`` replaces those of its class.

        Raises:
            PacelineError: one report of all arguments that are not right.
        """
        given = self._arguments()
        arguments = defaults | given
        if defaults.get("callbacks") and given.get("callbacks"):
            arguments["callbacks"] = merged_callbacks(defaults["callbacks"], given["callbacks"])
        from .. import Trainer as CurrentTrainer  # another class where a command runs this again

        trainer: Trainer = CurrentTrainer(**arguments)
        trainer.settings.source = self.recorded()
        return trainer

    def _arguments(self) -> dict[str, Any]:
        """The Trainer's arguments of this configuration; objects are for one Trainer each."""
        problems: Problems = []
        given = read_trainer(self.trainer, "trainer", problems)
        if problems:
            raise report_of(f"{self._place(path)}: {text}" for path, text in problems)
        return given

    def recorded(self) -> dict[str, Any]:
        """What a run's config.yaml keeps, so that ``paceline fit`` can run it again."""
        recipe = {} if self._recipe is None else {"recipe": self._recipe}
        return recipe | self.model_dump(mode="json", exclude_none=self._recipe is None)
