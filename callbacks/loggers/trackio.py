"""Trackio."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...common.argument_checks import TEXT_OR_NONE, check_arguments
from .media import Histogram, Image, Media, Table, Text, unique
from .series import POSITION
from .tracker import Ended, TrackedRun, Tracker


class Trackio(Tracker):
    """Sends the run to Trackio: its database on this machine, a Space of Hugging Face, or a server.

    ``epoch``, ``time``, ``samples`` and ``tokens`` of a row are the metrics ``position/epoch`` and so on. A
    run that resumes continues under its id. ``trackio show`` opens the dashboard. The package is
    ``pip install 'paceline[trackio]'``.

    Args:
        project: The project; by default the run's name.
        space_id: The Space, ``"user/name"``; ``TRACKIO_SPACE_ID``.
        server_url: Or a server of trackio; ``TRACKIO_SERVER_URL``. With neither, rows go into
            ``TRACKIO_DIR``, by default in the cache folder of Hugging Face.
        group: A group of runs that belong together.
        name: The run's name there; by default that of its folder, ``<name>/<n>``.

    Raises:
        PacelineError: for arguments that are not right; at the start of a fit where trackio is not
            installed.

    Example:
        >>> trainer = Trainer(loggers=Trackio("digits"))
    """

    package = "trackio"
    shows = (Image, Histogram, Table, Text)

    def __init__(
        self,
        project: str | None = None,
        space_id: str | None = None,
        server_url: str | None = None,
        group: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        given = {"project": project, "space_id": space_id, "server_url": server_url}
        given |= {"group": group, "name": name}
        check_arguments("Trackio", **{key: (value, TEXT_OR_NONE) for key, value in given.items()})
        self.project, self.space_id, self.server_url = project, space_id, server_url
        self.group, self.name_there = group, name
        self._session: Any = None

    def open(self, run: TrackedRun) -> str:
        import trackio

        usual = {
            "project": self.project or run.project,
            "name": self.name_there or run.name,
            "group": self.group,
            "config": run.config,
        }
        remote = self.space_id or self.server_url
        if remote or os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"):
            self._session = trackio.init(
                **usual,
                space_id=self.space_id,
                server_url=self.server_url,
                resume="never" if run.run_id is None else "allow",
                auto_log_gpu=False,
                auto_log_cpu=False,
                embed=False,
            )
        else:
            # Not through init: it prints, and finds a run by its name, which two folders may share.
            self._session = trackio.Run(url=None, client=None, run_id=run.run_id, **usual)
            self.place = f'`trackio show --project "{usual["project"]}"` shows the run {usual["name"]}'
        return str(self._session.id)

    def send(self, row: dict[str, float]) -> None:
        self._session.log(_named(row), step=int(row["step"]))

    def send_media(self, row: dict[str, float], name: str, media: Media) -> None:
        self._session.log(_named(row) | {name: _as_trackio(media)}, step=int(row["step"]))

    def close(self, ended: Ended) -> None:
        session, self._session = self._session, None
        session.finish()


def _named(row: dict[str, float]) -> dict[str, Any]:
    names = {key: f"position/{key}" for key in POSITION}
    return {names.get(key, key): value for key, value in row.items() if key != "step"}


def _as_trackio(media: Media) -> Any:
    import trackio

    if isinstance(media, Image):
        return trackio.Image(media.pixels, caption=media.caption or None)
    if isinstance(media, Histogram):
        return trackio.Histogram(np_histogram=(np.array(media.counts), np.array(media.edges)))
    if isinstance(media, Table):
        return trackio.Table(columns=unique(media.columns), data=[list(row) for row in media.rows])
    return trackio.Markdown(media.text)
