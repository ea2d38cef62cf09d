"""Trains recipes of language models, one case after another, and writes what each step was.

python language_job.py FOLDER CASES

``CASES`` is JSON: by name the arguments of ``train``. Each rank knows the samples of all ranks, so rank 0
writes ``FOLDER/NAME.json``.

Ranks compute the logits of few tokens at once, one device those of all: how many chunks there are, or only
one, differs from rank to rank.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.common.faultpoints import Fault, arm
from paceline.recipes.networks import head_loss
from paceline.trainer.faults import stop_agreement

MODULES = {
    "llm-finetune": "llm_finetune:FineTune",
    "llm-distill": "llm_distill:Distill",
    "dpo": "dpo:DPO",
    "kto": "kto:KTO",
    "reward-model": "reward_model:RewardModel",
}
LOGITS = 50 * 4 * 1024
"""Bytes: of 50 tokens with the tiny tokenizer's vocabulary."""


def train(
    folder: Path,
    recipe: str,
    settings: dict[str, Any],
    stop: int = 0,
    killed: int = 0,
    resume: str | None = None,
) -> dict[str, Any]:
    """Losses by name, and by step the samples of all ranks.

    Args:
        folder: For its run.
        recipe: By its name.
        settings: Its own, and those of the trainer.
        stop: After which step, or the one in which the ranks agree on it; 0: at the end.
        killed: At the end of which step rank 1 ends without a word; 0: of none.
        resume: As ``fit`` takes it.
    """
    file, _, name = MODULES[recipe].partition(":")
    made: Any = importlib.import_module(f"paceline.recipes.{file}")
    seen: dict[int, list[Any]] = {}

    def on_step_end(self: Any, trainer: Any, outputs: Any) -> None:
        facts = trainer.loop.step_facts()
        seen[facts.step] = [*facts.samples]
        if facts.step == stop:
            trainer.stop("enough")

    getattr(made, name).on_step_end = on_step_end
    if killed:
        arm(Fault("step.end", "SIGKILL", killed, 1))
    trainer = {"run_dir": folder, "accelerator": "cpu", "log_every": 1, "progress": False}
    config = made.Config(**settings | {"trainer": trainer | settings["trainer"]})
    run = made.build(config).fit(resume)
    losses = {one: log.values for one, log in run.metrics.items() if one in ("train/loss", "val/loss")}
    return {"losses": losses, "samples": seen}


def main(folder: Path, cases: dict[str, Any]) -> None:
    """All cases."""
    stop_agreement._SECONDS = 0.0  # ranks agree in every step, as though steps took long
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        head_loss.MOST_LOGITS = LOGITS
    for name, case in cases.items():
        found = train(folder / name, **case)
        if os.environ.get("RANK", "0") == "0":
            (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
