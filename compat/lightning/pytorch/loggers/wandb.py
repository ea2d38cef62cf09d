"""``WandbLogger`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .logger import Logger, refused_experiment


class WandbLogger(Logger):
    """Weights & Biases.

    Args:
        name: The run's name there.
        save_dir: Accepted.
        version: Accepted: a run keeps its id in the run folder.
        offline: Keep it in the run folder.
        project: The project.
        log_model: Only False: checkpoints stay in the run folder.
        dir: Accepted, as are the next six.
        id: Accepted.
        anonymous: Accepted.
        experiment: Accepted.
        prefix: Accepted.
        checkpoint_name: Accepted.
        add_file_policy: Accepted.
        **options: Further arguments of ``wandb.init``; ``entity``, ``tags``, ``group`` ...
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: Any = ".",
        version: str | None = None,
        offline: bool = False,
        project: str | None = None,
        log_model: Any = False,
        dir: Any = None,
        id: str | None = None,
        anonymous: bool | None = None,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        add_file_policy: str | None = None,
        **options: Any,
    ) -> None:
        self._made = ours.WandB(project, "offline" if offline else None, name=name, **options)

    def ours(self, trainer: Any) -> Any:
        return self._made

    @property
    def experiment(self) -> Any:
        """The client is used in the thread that writes rows.

        Raises:
            PacelineError: always, with what to call.
        """
        raise refused_experiment(self)

    def watch(self, *args: Any, **kwargs: Any) -> None:
        """Accepted: ``paceline.callbacks.Norms`` writes norms of gradients and weights."""
