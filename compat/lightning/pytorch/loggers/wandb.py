"""``WandbLogger`` with Lightning's arguments, and the client of wandb."""

from __future__ import annotations

import os
from typing import Any

from .logger import Logger, plain_hparams, prefixed, rank_zero_experiment

_STEP = "trainer/global_step"


class WandbLogger(Logger):
    """Weights & Biases, with the client that ``experiment`` gives.

    ``paceline.callbacks.WandB`` writes in a thread, and continues a run that is resumed by itself.

    Args:
        name: The run's name there.
        save_dir: Where its files are.
        version: The run's id.
        offline: Keep it in ``save_dir``; ``wandb sync`` uploads it.
        project: The project; ``WANDB_PROJECT`` or ``lightning_logs`` unless given.
        log_model: Only False: checkpoints stay in the run folder.
        dir: As ``save_dir``.
        id: As ``version``.
        anonymous: Accepted.
        experiment: A run of wandb's that exists already.
        prefix: Before all names.
        checkpoint_name: Accepted.
        add_file_policy: Accepted.
        entity: The user or team; this one and the next are arguments of ``wandb.init``.
        group: Of runs.
        job_type: As ``wandb.init``'s.
        tags: Labels of the run.
        notes: A text.
        config: Values beside the run's configuration.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``.
        resume: As ``wandb.init``'s, ``"allow"`` unless given.
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
            "name": name,
            "project": project or os.environ.get("WANDB_PROJECT", "lightning_logs"),
            "dir": None if (save_dir or dir) is None else os.fspath(save_dir or dir),
            "id": version or id,
            "resume": "allow" if resume is None else resume,
            "mode": "offline" if offline else mode,
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
        self._arguments = {key: value for key, value in given.items() if value is not None}
        self._experiment, self._prefix = experiment, prefix

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: the run's id, and not the run."""
        again = {"id": self.version, "resume": "allow"} if self._experiment is not None else {}
        arguments = self._arguments | again
        return super().__getstate__() | {"_experiment": None, "_arguments": arguments}

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of wandb, begun when it is first asked for; one that is under way is taken.

        Raises:
            ModuleNotFoundError: where wandb is not installed.
        """
        if self._experiment is None:
            import wandb

            if wandb.run is None:
                if "dir" in self._arguments:
                    os.makedirs(self._arguments["dir"], exist_ok=True)
                self._experiment = wandb.init(**self._arguments)
            else:
                self._experiment = wandb.run
            self._experiment.define_metric(_STEP)
            self._experiment.define_metric("*", step_metric=_STEP, step_sync=True)
        return self._experiment

    @property
    def name(self) -> str | None:
        return self._arguments["project"]  # type: ignore[no-any-return]

    @property
    def version(self) -> str | None:
        """The run's id; None before the run has begun, where none was given."""
        return self._arguments.get("id") if self._experiment is None else self._experiment.id

    @property
    def save_dir(self) -> str | None:
        return self._arguments.get("dir")

    @property
    def log_dir(self) -> None:
        """None: ``save_dir`` is the folder."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Values for the run's configuration, without secrets.

        Args:
            params: A mapping or namespace; what is no plain data is not sent.
            *args: Accepted.
            **kwargs: Accepted.
        """
        self.experiment.config.update(plain_hparams(params), allow_val_change=True)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Values at a step, ``trainer/global_step``."""
        named = prefixed(metrics, self._prefix)
        self.experiment.log(named if step is None else {**named, _STEP: step})

    def watch(
        self, model: Any, log: str | None = "gradients", log_freq: int = 100, log_graph: bool = True
    ) -> None:
        """Gradients and weights of a model, as ``wandb.watch`` logs them."""
        self.experiment.watch(model, log=log, log_freq=log_freq, log_graph=log_graph)

    def log_table(
        self,
        key: str,
        columns: Any = None,
        data: Any = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """A table, of rows or of a data frame."""
        import wandb

        self.log_metrics({key: wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step)

    log_text = log_table

    def log_image(self, key: str, images: list[Any], step: int | None = None, **options: Any) -> None:
        """Images; each option is a list with one value for each of them, such as ``caption``."""
        self._log_media("Image", key, images, step, options)

    def log_audio(self, key: str, audios: list[Any], step: int | None = None, **options: Any) -> None:
        """Sounds; options as for images."""
        self._log_media("Audio", key, audios, step, options)

    def log_video(self, key: str, videos: list[Any], step: int | None = None, **options: Any) -> None:
        """Videos; options as for images."""
        self._log_media("Video", key, videos, step, options)

    def _log_media(
        self, kind: str, key: str, media: list[Any], step: int | None, options: dict[str, list[Any]]
    ) -> None:
        import wandb

        each = [{name: values[at] for name, values in options.items()} for at in range(len(media))]
        made = [getattr(wandb, kind)(one, **given) for one, given in zip(media, each, strict=True)]
        self.log_metrics({key: made}, step)
