"""Reads back what experiment trackers have kept of runs, through the trackers' packages."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.callbacks import MLflow, Trackio, WandB
from paceline.callbacks.loggers.series import read_rows

KINDS = ("wandb", "mlflow", "trackio")
POSITION = ("epoch", "time", "samples", "tokens")
_BLOCK, _RECORD = 32768, struct.Struct("<IHB")  # of the log format of LevelDB, in which wandb writes


def skip_without(*packages: str) -> pytest.MarkDecorator:
    """Skip a test where one of them is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


ALL = skip_without(*KINDS)
EACH = [pytest.param(kind, marks=skip_without(kind)) for kind in KINDS]


def same(found: Any, wanted: Any) -> bool:
    """Whether these are the same points, in any order; NaN is NaN."""
    return np.array_equal(np.array(sorted(found)), np.array(sorted(wanted)), equal_nan=True)


def isolate(folder: Path, set_variable: Any = os.environ.__setitem__) -> None:
    """Have the trackers write below this folder and look for no account; before they are imported."""
    for name in (
        "WANDB_CONFIG_DIR",
        "WANDB_CACHE_DIR",
        "WANDB_DATA_DIR",
        "WANDB_DIR",
        "TRACKIO_DIR",
        "HF_HOME",
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        set_variable(name, str(folder / name))
    set_variable("NETRC", str(folder / "no-netrc"))
    set_variable("HF_HUB_OFFLINE", "1")
    set_variable("WANDB_ERROR_REPORTING", "false")
    set_variable("MLFLOW_DISABLE_TELEMETRY", "true")


def make(kind: str, **options: Any) -> Any:
    """A logger that needs no network."""
    if kind == "wandb":
        return WandB(**{"mode": "offline"} | options)
    return (MLflow if kind == "mlflow" else Trackio)(**options)


def make_database(path: Path) -> None:
    """Put an empty database of MLflow's here, where it would make one, which takes it seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(_empty_database())


@functools.cache
def _empty_database() -> bytes:
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
        return Path(folder, "mlflow.db").read_bytes()


@dataclass
class Kept:
    """What a tracker has of a run.

    Attributes:
        points: Step and value of each scalar, by name, in the order in which they are kept.
        media: By name: what it is, as the tracker describes it, the file where there is one.
        ended: How the sessions ended, in the tracker's words.
    """

    id: str
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    ended: list[Any] = field(default_factory=list)


def expected(folder: Path, kind: str) -> dict[str, list[tuple[int, float]]]:
    """The points of metrics.jsonl, as a tracker names them."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(folder / "metrics.jsonl"):
        for name, value in row.items():
            there = f"position/{name}" if kind != "wandb" and name in POSITION else name
            if name != "step":
                found.setdefault(there, []).append((row["step"], float(value)))
    return found


def read(kind: str, folder: Path, project: str = "") -> Kept:
    """What a tracker has of the run in a folder.

    Args:
        project: Trackio's; by default the run's name.
    """
    run_id = json.loads((folder / f"{kind}.json").read_text())["run_id"]
    if kind == "wandb":
        return _read_wandb(folder / "wandb", run_id)
    if kind == "mlflow":
        return _read_mlflow(folder.parent.parent, run_id)
    return _read_trackio(project or folder.parent.name, run_id)


# -- wandb ---------------------------------------------------------------------------------------


def _read_wandb(folder: Path, run_id: str) -> Kept:
    """All sessions: each has a folder of the second it began, with a suffix where that exists."""
    kept = Kept(run_id)
    paths = sorted(folder.glob(f"*run-*-{run_id}*/run-{run_id}.wandb"))
    deadline = time.monotonic() + 60
    while not any(record.HasField("exit") for record in wandb_records(paths[-1])):
        assert time.monotonic() < deadline, "wandb's service has not written the file yet"
        time.sleep(0.02)
    for path in paths:
        for record in wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                assert record.run.run_id == run_id
                kept.name = record.run.display_name
                kept.config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            elif kind == "exit":
                kept.ended.append(record.exit.exit_code)
            elif kind == "history":
                row = _wandb_row(record.history.item)
                _take(kept, int(row["step"]), row, path.parent / "files")
    return kept


def _wandb_row(items: Any) -> dict[str, Any]:
    """The values by name; those of media are dicts."""
    row: dict[str, Any] = {}
    for item in items:
        *outer, last = [item.key] if item.key else item.nested_key
        place = row
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)
    return row


def wandb_records(path: Path) -> list[Any]:
    """Those that are whole: wandb's service may be writing the file, in blocks of 32 kB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole, found = path.read_bytes(), 7, b"", []  # 7: the file's own header
    while place + _RECORD.size <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD.size:
            place += left
            continue
        _, length, kind = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        if place + length > len(data):
            break
        whole += data[place : place + length]
        place += length
        if kind in (1, 4):  # the last part of a record, or all of it
            found.append(Record.FromString(whole))
            whole = b""
    return found


def _take(kept: Kept, step: int, row: dict[str, Any], files: Path) -> None:
    for name, value in row.items():
        if isinstance(value, dict):
            if "path" in value:
                value = value | {"path": files / value["path"]}
            kept.media[name] = value | {"step": step}
        elif isinstance(value, str):
            value = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}[value]
            kept.points.setdefault(name, []).append((step, float(value)))
        elif not name.startswith("_") and name != "step":
            kept.points.setdefault(name, []).append((step, float(value)))


# -- mlflow --------------------------------------------------------------------------------------


def _read_mlflow(runs: Path, run_id: str) -> Kept:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{runs / 'mlflow.db'}")
    run = client.get_run(run_id)
    kept = Kept(run_id, run.info.run_name, run.data.params, ended=[run.info.status])
    for name in run.data.metrics:
        points = [(point.step, point.value) for point in client.get_metric_history(run_id, name)]
        kept.points[name] = points
    for folder in ("images", "tables", "texts"):
        here = runs / "mlartifacts" / run_id / "artifacts" / folder
        for path in sorted(here.rglob("*.*")):
            kept.media[f"{folder}/{path.relative_to(here)}"] = path
    return kept


# -- trackio -------------------------------------------------------------------------------------


def _read_trackio(project: str, run_id: str) -> Kept:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    [run] = [run for run in trackio.Api().runs(project) if run.id == run_id]
    kept = Kept(run_id, run.name, run.config)
    for row in SQLiteStorage.get_logs(project, run.name, max_points=None, run_id=run_id):
        values = {name: value for name, value in row.items() if name not in ("step", "timestamp")}
        files = Path(os.environ["TRACKIO_DIR"]) / "media"
        values = {
            name: value | {"path": value["file_path"]} if "file_path" in value_of(value) else value
            for name, value in values.items()
        }
        _take(kept, row["step"], values, files)
    return kept


def value_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
