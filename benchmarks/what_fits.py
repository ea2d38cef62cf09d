"""What fits where: the memory of fine-tuning models of 1, 8 and 70 billion parameters, as estimated.

    python benchmarks/what_fits.py [--json benchmarks/results/what_fits.json] [--only 1B] [--page FILE]

Each model is a Llama of the public sizes, on the meta device; each row a preset of ``llm-finetune`` with
the changes that the table names. ``--page`` writes the table of the JSON into a page, and no more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from paceline.config import for_shapes
from paceline.recipes import llm_finetune
from paceline.tools import estimate

GIB = 2**30
DEVICES = 8
SIZES: dict[str, dict[str, Any]] = {  # of Llama 3.2 1B, 3.1 8B and 3.1 70B
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80},
}
HEADS = {"1B": 32, "8B": 32, "70B": 64}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "batch_size=1 gradient_checkpointing=true": {"batch_size": 1, "gradient_checkpointing": True},
}
BEGIN, END = "<!-- python benchmarks/what_fits.py -->\n", "<!-- end -->"


def needed(size: str, preset: str, changes: dict[str, Any]) -> dict[str, float]:
    """GiB on each of eight devices, by strategy; of ``single`` on one."""
    with tempfile.TemporaryDirectory() as folder:
        LlamaConfig(
            vocab_size=128_256,
            num_attention_heads=HEADS[size],
            num_key_value_heads=8,
            tie_word_embeddings=size == "1B",
            **SIZES[size],
        ).save_pretrained(folder)
        settings = llm_finetune.PRESETS[preset] | changes | {"model": folder}
        settings["trainer"] = settings["trainer"] | {"accelerator": "cpu", "devices": 1, "run_dir": None}
        with for_shapes():
            made = llm_finetune.build(llm_finetune.Config(**settings))
            found = estimate(made.trainer, made.module, made.train, devices=DEVICES, memory="80GiB")
    names = ("single", "ddp", "fsdp", "deepspeed_stage_3")
    return {name: round(found.row(name).needed / GIB, 1) for name in names}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | preset | changed | 1 device | 8, ddp | 8, fsdp | 8, ZeRO 3 | fits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        sizes = row["gib"]
        changed = "" if row["changes"] == "as it is" else f"`{row['changes']}`"
        numbers = " | ".join(f"{sizes[name]:g}" for name in ("single", "ddp", "fsdp", "deepspeed_stage_3"))
        where = ", ".join(fits(sizes)) or "none"
        lines.append(f"| {row['model']} | `{row['preset']}` | {changed} | {numbers} | {where} |")
    return "\n".join(lines) + "\n"


def fits(sizes: dict[str, float]) -> list[str]:
    """The smallest devices of 24 and 80 GiB on which a run fits, alone and as eight, where it takes 95%."""
    divided = min(sizes[name] for name in ("ddp", "fsdp", "deepspeed_stage_3"))
    found = []
    for count, size in ((1, sizes["single"]), (DEVICES, divided)):
        found += [f"{count} x {memory}" for memory in (24, 80) if size <= 0.95 * memory][:1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows = json.loads(given.json.read_text())["rows"] if given.page else []
    sizes = [] if given.page else [given.only] if given.only else [*SIZES]
    for size in sizes:
        for preset in llm_finetune.PRESETS:
            for name, changes in list(CHANGES.items())[size == "70B" :]:
                rows.append({"model": size, "preset": preset, "changes": name})
                rows[-1]["gib"] = needed(size, preset, changes)
                print(rows[-1], flush=True)
    if given.json and not given.page:
        given.json.write_text(json.dumps({"devices": DEVICES, "rows": rows}, indent=2) + "\n")
    if given.page:
        before, _, rest = given.page.read_text().partition(BEGIN)
        given.page.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2])
    print(table(rows))


if __name__ == "__main__":
    main()
