"""Folders of runs that nobody trained: planted rows, configuration and log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

ENVIRONMENT = {"host": "box", "torch": "2.13.0", "started": "2026-01-02T03:04:05+0000", "world": 2}


def write_run(
    folder: Path,
    rows: Iterable[Mapping[str, Any]] = (),
    *,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    log: str = "",
) -> Path:
    """A run folder with these files."""
    folder.mkdir(parents=True)
    trainer = {"strategy": "ddp", "precision": "bf16", "accelerator": "auto", "seed": 0}
    config = {"name": folder.parent.name, "trainer": trainer} | dict(config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "env.json").write_text(json.dumps(ENVIRONMENT | dict(environment or {})))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "log.txt").write_text(log)
    return folder


def rows_of(losses: Iterable[Any], **more: Any) -> list[dict[str, Any]]:
    """A row for each training loss, 10 steps and 2 seconds apart, 5 to an epoch."""
    return [
        {
            "step": 10 * number,
            "epoch": (number - 1) // 5,
            "time": 2.0 * number,
            "samples": 320 * number,
            "train/loss": loss,
            **more,
        }
        for number, loss in enumerate(losses, 1)
    ]
