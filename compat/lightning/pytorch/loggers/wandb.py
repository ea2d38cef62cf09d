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
        entity: The user or team; this one and the next are arguments of ``wandb.init``.
        group: Of runs.
        job_type: As ``wandb.init``'s.
        tags: Labels of the run.
        notes: A text.
        config: Values beside the run's configuration.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``.
        resume: Accepted: a run that resumes continues under its id.
        reinit: As ``wandb.init``'s.
        save_code: As ``wandb.init``'s.
        settings: What ``wandb.Settings`` takes.
        **options: Further arguments of ``wandb.init``.
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
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        notes: str | None = None,
        config: dict[str, Any] | str | None = None,
        mode: str | None = None,
        resume: bool | str | None = None,
        reinit: bool | str | None = None,
        save_code: bool | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given = {
            "entity": entity,
            "group": group,
            "job_type": job_type,
            "tags": tags,
            "notes": notes,
            "config": config,
            "reinit": reinit,
            "save_code": save_code,
            "settings": settings,
            **options,
        }
        given = {key: value for key, value in given.items() if value is not None}
        self._made = ours.WandB(project, "offline" if offline else mode, name=name, **given)

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
