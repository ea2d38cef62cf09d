"""Weights & Biases."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import TEXT_OR_NONE, Kind, check_arguments, one_of, refuse_unknown
from ...errors import PacelineError
from ...other_trainers import called_here
from .media import Histogram, Image, Media, Table, Text, with_fewer_bins
from .tracker import Ended, TrackedRun, Tracker

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_TAGS = Kind(lambda: tuple[str, ...], "strings in a list")
_SETTINGS = Kind(lambda: Mapping[str, Any], "a dict, of what wandb.Settings takes")
_MOST_BINS = 512  # of wandb.Histogram
_OURS = ("id", "resume", "reinit")
_KNOWN = ("project", "mode", "entity", "tags", "name", "settings", "arguments of wandb.init")
_QUIET = {
    "console": "off",  # standard output stays as it is
    "silent": True,
    "init_timeout": 15.0,
    "finish_timeout": 20.0,
    "x_transaction_log_flush_interval": 1.0,  # what a kill can cost of a run that is offline
}
_EXIT_CODES: dict[Ended, int] = {"finished": 0, "failed": 1, "killed": 255}


class WandB(Tracker):
    """Sends the run to Weights & Biases, or keeps it in ``wandb/`` of the run folder while offline.

    Each row is one ``run.log`` with ``step``, ``epoch``, ``time``, ``samples`` and ``tokens`` beside its
    values: charts are over ``step``, and the others can be chosen as their x axis. A run that resumes
    continues under its id. The package is ``pip install 'paceline[wandb]'``.

    Args:
        project: The project; ``WANDB_PROJECT``, or the run's name.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``; ``WANDB_MODE``, or online. ``wandb sync``
            uploads what was kept offline.
        entity: The user or team.
        tags: Labels of the run.
        name: The run's name there; by default that of its folder, ``<name>/<n>``.
        settings: What ``wandb.Settings`` takes; ``{"finish_timeout": 0}`` waits for uploads to end.
        **options: Further arguments of ``wandb.init``: ``group``, ``notes`` ...

    Raises:
        PacelineError: for arguments that are not right; at the start of a fit where wandb is not installed.

    Example:
        >>> trainer = Trainer(loggers=WandB("digits", mode="offline", tags=["baseline"]))
    """

    package = "wandb"
    shows = (Image, Histogram, Table, Text)

    def __init__(
        self,
        project: str | None = None,
        mode: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
        name: str | None = None,
        settings: Mapping[str, Any] = {},
        **options: Any,
    ) -> None:
        super().__init__()
        wrong = [option for option in options if called_here("WandB", option)]
        refuse_unknown("WandB", wrong, _KNOWN)
        check_arguments(
            "WandB",
            project=(project, TEXT_OR_NONE),
            mode=(mode, one_of(None, "online", "offline", "disabled")),
            entity=(entity, TEXT_OR_NONE),
            tags=(tags, _TAGS),
            name=(name, TEXT_OR_NONE),
            settings=(settings, _SETTINGS),
        )
        taken = [option for option in _OURS if option in options]
        if taken:
            raise PacelineError(
                f"WandB chooses {taken[0]} itself, so that a run that resumes continues under its id",
                code="conflicting-arguments",
                fix="fit(resume='auto') continues a run; a new fit is a new one",
            )
        self.project, self.name_there = project, name
        self._given = {"mode": mode, "entity": entity, "tags": list(tags) or None} | options
        self._settings = dict(settings)
        self._session: Any = None

    def on_fit_start(self, trainer: TrainerView) -> None:
        super().on_fit_start(trainer)
        if trainer.is_global_zero and sys.stdin is not None and sys.stdin.isatty():
            self._log_in()

    def _log_in(self) -> None:
        """Ask for the key before training, where ``wandb.init`` would ask in the middle of it."""
        import wandb

        mode = self._given["mode"] or os.environ.get("WANDB_MODE") or "online"
        if mode == "online" and not os.environ.get("WANDB_API_KEY"):
            # What is wrong is reported at the first row, as for a server that is away.
            with _hooks_kept(), suppress(Exception):
                wandb.login()

    def open(self, run: TrackedRun) -> str:
        import wandb

        settings = {key: value for key, value in _QUIET.items() if key in wandb.Settings.model_fields}
        options = {key: value for key, value in self._given.items() if value is not None}
        project = self.project or os.environ.get("WANDB_PROJECT") or run.project
        with _hooks_kept():
            self._session = wandb.init(
                **{
                    "project": project,
                    "name": self.name_there or run.name,
                    "dir": None if run.folder is None else str(run.folder),
                    "config": run.config,
                    "id": run.run_id,
                    "resume": None if run.run_id is None else "allow",
                    "reinit": "create_new",  # beside other runs of this process
                    "allow_val_change": True,
                    "settings": settings | self._settings,
                }
                | options
            )
        self._session.define_metric("*", step_metric="step")
        self.place = _place(self._session)
        return str(self._session.id)

    def send(self, row: dict[str, float]) -> None:
        # Without wandb's own step: it drops rows whose step is not above the last one's.
        self._session.log(dict(row))

    def send_media(self, row: dict[str, float], name: str, media: Media) -> None:
        self._session.log(row | {name: _as_wandb(media)})

    def close(self, ended: Ended) -> None:
        session, self._session = self._session, None
        session.finish(exit_code=_EXIT_CODES[ended])


@contextmanager
def _hooks_kept() -> Iterator[None]:
    """The service of wandb replaces these when it starts; its hook prints a traceback that we print too."""
    before = {name: getattr(sys, name) for name in ("exit", "excepthook")}
    try:
        yield
    finally:
        for name, function in before.items():
            owner = type(getattr(getattr(sys, name), "__self__", None))
            if owner.__module__.partition(".")[0] == "wandb":
                setattr(sys, name, function)


def _place(session: Any) -> str:
    if not session.offline:
        return str(session.url or "")
    folder = session.settings.sync_dir
    return f"run {session.id} is in {folder}; `wandb sync` uploads it" if folder else ""


def _as_wandb(media: Media) -> Any:
    import wandb

    if isinstance(media, Image):
        from PIL import Image as pillow

        return wandb.Image(pillow.fromarray(media.pixels), caption=media.caption or None)
    if isinstance(media, Histogram):
        return wandb.Histogram(np_histogram=with_fewer_bins(media, _MOST_BINS))
    if isinstance(media, Table):
        rows = [list(row) for row in media.rows]
        return wandb.Table(columns=list(media.columns), data=rows, allow_mixed_types=True)
    text = f'<pre style="white-space: pre-wrap">{html.escape(media.text)}</pre>'
    return wandb.Html(text, data_is_not_path=True)
