"""The estimate against ``max_memory_allocated`` of an accelerator, within 10 %.

Run as a script it is the job: python test_gpu.py FOLDER NAME...  -> FOLDER/NAME.json
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import Trainer, tools
from paceline.callbacks import Callback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator"),
]
SECONDS = 240
CASES = {
    "single": ("single", "gpt", "32"),
    "single-bf16": ("single", "gpt", "bf16"),
    "single-vit": ("single", "vit", "32"),
    "ddp": ("ddp", "gpt", "32"),
    "fsdp": ("fsdp", "gpt", "bf16"),
}


def models() -> Any:
    spec = importlib.util.spec_from_file_location("models", Path(__file__).with_name("models.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_and_batch(model: str) -> tuple[Any, Any]:
    """Large enough that what the libraries of the device allocate for themselves does not count."""
    if model == "vit":
        return models().ViT(768, 12), models().ViT.batch(256)
    return models().GPT(1024, 12), models().GPT.batch(64)


class Peak(Callback):
    def on_step_start(self, trainer, batches):
        if trainer.global_step == 2:
            torch.accelerator.reset_peak_memory_stats()

    def on_step_end(self, trainer, outputs):
        self.found = torch.accelerator.max_memory_allocated()


def measure(name: str) -> dict[str, int]:
    strategy, model, precision = CASES[name]
    module, batch = module_and_batch(model)
    peak = Peak()
    trainer = Trainer(
        strategy=strategy,
        precision=precision,
        accelerator="gpu",
        devices=1,
        max_steps=3,
        callbacks=[peak],
        progress=False,
        checkpoint=False,
        loggers=False,
        run_dir=None,
    )
    held = tools.estimate(trainer, module, batch).row(strategy).bytes
    trainer.fit(module, [batch] * 3)
    return {"estimated": held.total, "measured": peak.found}


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    with (folder / "output").open("w") as output:
        command = [sys.executable, __file__, str(folder), *CASES]
        subprocess.run(command, stdout=output, stderr=output, timeout=SECONDS, env=environment)

    def of(name: str) -> dict[str, int]:
        written = folder / f"{name}.json"
        assert written.exists(), (folder / "output").read_text()[-4000:]
        return json.loads(written.read_text())

    return of


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_within_10_percent_of_max_memory_allocated(found, name):
    one = found(name)
    assert one["estimated"] == pytest.approx(one["measured"], rel=0.1)


if __name__ == "__main__":
    for given in sys.argv[2:]:
        Path(sys.argv[1], f"{given}.json").write_text(json.dumps(measure(given)))
