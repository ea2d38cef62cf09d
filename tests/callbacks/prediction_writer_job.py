"""Writes predictions on three ranks, into the folder it is started in. python prediction_writer_job.py"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from test_prediction_writer import Stream, loader, predict
from torch.utils.data import DataLoader

from paceline import PacelineError
from paceline.callbacks import PredictionWriter


def main() -> None:
    cases = {
        "ordered": loader(23),
        "shuffled": loader(23, shuffle=True),
        "few": loader(2),
        "stream": DataLoader(Stream(), 2),
    }
    for name, data in cases.items():
        predict(PredictionWriter(f"{name}.jsonl"), data=data, devices=3, strategy="ddp")
    try:
        predict(PredictionWriter("few.jsonl"), data=loader(), devices=3, strategy="ddp")
    except PacelineError as error:
        Path(f"refused-{os.environ['RANK']}").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
