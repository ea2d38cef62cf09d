"""One row of the table for language models, as recipes train them: a line of JSON is printed.

    python benchmarks/language.py NAME [--dry]

Tokens are random, and so are weights. The first ten steps are not timed. The FLOPs of a token are
6 N + 12 L d T, with N parameters but those of positions, L layers of width d and rows of T tokens
(https://github.com/karpathy/nanoGPT, ``estimate_mfu``); with adapters 4 N + 8 L d T, as no gradients of
the weights are computed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from throughput import DEVICE, FAST, Clock
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.commands.targets import load_target
from paceline.config import Experiment
from paceline.recipes.llm_finetune import FineTune
from paceline.recipes.networks.causal_lm import abilities_of
from paceline.tools import estimate

WARM_UP, STEPS = 10, 30
LLAMA = "Llama 8B, LoRA"

GPT2 = ["preset=gpt2", "trainer.global_batch_size=128"]
WIDE = ["preset=gpt2", "batch_size=8", "length=2048", "trainer.global_batch_size=8"]
WIDE += ["model.width=4096", "model.depth=4", "model.heads=32", "optimizer=adamw"]
GPTS: dict[str, list[str]] = {
    "gpt2": GPT2,
    "gpt2, documents joined": [*GPT2, "separate=false"],
    # https://github.com/karpathy/autoresearch: depth 8, 524,288 tokens a step, rows of 2,048
    "depth 8": [
        *GPT2,
        "model.width=512",
        "model.depth=8",
        "model.heads=4",
        "length=2048",
        "batch_size=64",
        "trainer.global_batch_size=256",
    ],
    "wide": WIDE,
    "wide, fp8": [*WIDE, "trainer.precision=fp8"],
}
DRY = ["batch_size=2", "length=64", "model.width=64", "model.depth=2", "model.heads=2", "workers=0"]
DRY += ["trainer.global_batch_size=4", "trainer.compile=false", "trainer.precision=bf16"]
LLAMA_8B = {  # the shape of Llama 3
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LLAMA_DRY = LLAMA_8B | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Ticks(Callback):
    """Has a clock of the steps, which begins when it is made."""

    def __init__(self, warm_up: int, last: int) -> None:
        self.clock = Clock(warm_up, last)

    def on_step_end(self, trainer: Any, outputs: Any) -> None:
        self.clock.tick()


class Adapters(FineTune):
    """The recipe's module with LoRA of rank 16 on a Llama of random weights in bf16, made on the device."""

    def __init__(self, shape: dict[str, Any], learning_rate: float = 1e-4) -> None:
        TrainModule.__init__(self)
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        optimization = {"learning_rate": learning_rate, "warmup": "3%"}
        self.hparams.update(optimization=optimization)
        with DEVICE or contextlib.nullcontext():
            model = LlamaForCausalLM(LlamaConfig(use_cache=False, **shape)).to(torch.bfloat16)
            lora = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
            self.model = get_peft_model(model, lora)
        self.able = abilities_of(self.model)
        self.label_smoothing, self.liger = 0.0, False


class Row(NamedTuple):
    """What is trained, and the tokens and FLOPs of a step."""

    experiment: Experiment
    tokens: int
    flops: float


def gpt(name: str, warm_up: int, last: int, folder: Path, dry: bool) -> Row:
    """The recipe, on random tokens in documents of 600 on average, as those of FineWeb have."""
    draw = np.random.default_rng(0)
    count = 20_000 if dry else 40_000_000
    tokens = draw.integers(0, 50256, count, np.uint16)
    tokens[draw.integers(0, count, count // 600)] = 50256
    for part in ("train", "val"):
        tokens[: count if part == "train" else 20_000].tofile(folder / f"{part}.bin")
    settings = [*GPTS[name], *(DRY if dry else []), f"data={folder}", f"steps={last}"]
    settings += [f"trainer.run_dir={folder}/runs", "trainer.validate_every=100000st"]
    settings += ['trainer.loggers=["-curves"]']  # the folder is deleted, as soon as the run has ended
    ticks = {"class": "language.Ticks", "warm_up": warm_up, "last": last}
    loaded = load_target("gpt", None, [*settings, f"trainer.callbacks={json.dumps([ticks])}"])
    config = loaded.checked()
    experiment = loaded.recipe.build_experiment(config)
    parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
    shape, tokens_of_step = config.model, config.trainer["global_batch_size"] * config.length
    of_token = 6 * parameters + 12 * shape.depth * shape.width * config.length
    return Row(experiment, tokens_of_step, tokens_of_step * of_token)


def llama(warm_up: int, last: int, folder: Path, dry: bool) -> Row:
    """LoRA on Llama 3 8B's shape: rows of 4,096 tokens, two at a time, 32 in a step, no clipping, as in
    https://github.com/NVIDIA-NeMo/Automodel, ``docs/performance-summary.mdx``."""
    shape, length, rows = (LLAMA_DRY, 64, 4) if dry else (LLAMA_8B, 4096, 32)
    tokens = torch.randint(shape["vocab_size"], (rows * last, length))
    places = torch.arange(length)
    samples = [{"input_ids": row, "targets": row.roll(-1), "position_ids": places} for row in tokens]
    trainer = Trainer(
        precision="bf16",
        compile=False if dry else "blocks",
        max_steps=last,
        global_batch_size=rows,
        checkpoint=False,
        callbacks=[Ticks(warm_up, last)],
        loggers=["-curves"],
        run_dir=folder / "runs",
    )
    module = Adapters(shape)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    width = shape["num_hidden_layers"] * shape["hidden_size"]
    experiment = Experiment(trainer, module, DataLoader(samples, batch_size=2))
    return Row(experiment, rows * length, rows * length * (4 * parameters + 8 * width * length))


def measure(name: str, dry: bool) -> dict[str, float | None]:
    """Trains, and gives what it took."""
    warm_up, last = (1, 3) if dry else (3, 6) if name == LLAMA else (WARM_UP, STEPS)
    with tempfile.TemporaryDirectory() as place:
        if name == LLAMA:
            row = llama(warm_up, last, Path(place), dry)
        else:
            row = gpt(name, warm_up, last, Path(place), dry)
        trainer, module, data = (getattr(row.experiment, name) for name in ("trainer", "module", "train"))
        expected = estimate(trainer, module, data).row("single").bytes.total
        row.experiment.fit()
        ticks: Any = next(one for one in trainer.callbacks if type(one).__name__ == "Ticks")
    clock = ticks.clock
    return {
        "tokens_per_second": round(row.tokens / clock.seconds),
        "flops_per_second": row.flops / clock.seconds,
        "memory_gib": round(torch.accelerator.max_memory_allocated() / 2**30, 2) if FAST else None,
        "estimated_gib": round(expected / 2**30, 2),
        "first_step_s": round(clock.first, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=[*GPTS, LLAMA])
    parser.add_argument("--dry", action="store_true", help="tiny, to see that it works")
    given = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        found = measure(given.name, given.dry)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
