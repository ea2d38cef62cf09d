"""Fine-tuning by this trainer beside TRL: the losses of each step, tokens per second, memory, lines.

python benchmarks/finetuning.py [NAME...] [--rounds 5] [--json benchmarks/results/finetuning.json]

The programs are in ``side_by_side/finetuning/``: a file of settings for this trainer, and a program for
TRL, of which what both have by default is not written. Both train the same small Llama on the same samples
in the same order for 20 steps of 16, in float32, with a checkpoint at the end and TensorBoard; LoRA from
one adapter, a reward model from the same head. Each is a separate process, one after another, round by
round; medians are shown. Tokens are all of the samples, those of prompts too; the first step is not timed.
Lines are those that are neither empty nor a comment.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import lines_of

PROGRAMS = Path(__file__).parent / "side_by_side" / "finetuning"
NAMES = ("sft", "lora", "dpo", "kto", "orpo", "reward")
SAMPLES = 320
STEPS = 20


def prepare(folder: Path) -> dict[str, int]:
    """Write models, an adapter and samples; how many tokens a step has, by program."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    from paceline.recipes.data.tiny_models import tiny_conversations, tiny_llama, tiny_tokenizer

    torch.manual_seed(7)
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    model.config.pad_token_id = tokenizer.pad_token_id
    # TRL's ORPO begins an answer's text as it begins a prompt's
    tokenizer.backend_tokenizer.post_processor = None
    model.save_pretrained(folder / "model")
    scored = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1)
    scored.save_pretrained(folder / "model-with-score")
    adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    adapted.save_pretrained(folder / "adapter")
    for name in ("model", "model-with-score", "adapter"):
        tokenizer.save_pretrained(folder / name)
    files: dict[str, list[Any]] = {name: [] for name in ("samples", "pairs", "texts", "labelled")}
    for number, (asked, answer) in enumerate(tiny_conversations()[0][:SAMPLES]):
        other = answer | {"content": " ".join(reversed(answer["content"].split()))}
        chosen = answer | {"content": " ".join(answer["content"].split())}
        pair = {"chosen": [chosen], "rejected": [other]}
        files["samples"].append({"prompt": [asked], "completion": [answer]})
        files["pairs"].append({"prompt": [asked]} | pair)
        texts = {name: f" {part[0]['content']}" for name, part in pair.items()}
        files["texts"].append({"prompt": asked["content"]} | texts)
        is_good = number % 3 > 0
        single = {"completion": [chosen if is_good else other], "label": is_good}
        files["labelled"].append({"prompt": [asked]} | single)
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    return {name: _tokens(tokenizer, records) for name, records in files.items()}


def _tokens(tokenizer: Any, records: list[dict[str, Any]]) -> int:
    """Of all samples, with what the chat template adds."""
    texts = []
    for record in records:
        for name in ("completion", "chosen", "rejected"):
            if name in record and isinstance(record[name], str):
                texts.append(record["prompt"] + record[name])
            elif name in record:
                chat = [*record["prompt"], *record[name]]
                texts.append(tokenizer.apply_chat_template(chat, tokenize=False))
    return sum(len(tokenizer(text)["input_ids"]) for text in texts)


def by_paceline(name: str, folder: Path) -> dict[str, Any]:
    """The losses of a run, its seconds after the first step, and its peak of resident memory."""
    memory = _run([sys.executable, "-m", "paceline", "fit", str(PROGRAMS / f"{name}.yaml")], folder)
    (run,) = (folder / "paceline").glob("*/1")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "train/loss" in row]
    seconds = rows[-1]["time"] - rows[0]["time"]
    return {"losses": [row["train/loss"] for row in rows], "seconds": seconds, "memory": memory}


def by_trl(name: str, folder: Path) -> dict[str, Any]:
    """The same of a program for TRL."""
    memory = _run([sys.executable, __file__, "--watch", str(PROGRAMS / f"{name}_trl.py")], folder)
    return json.loads((folder / "found.json").read_text()) | {"memory": memory}


def _run(command: list[str], folder: Path) -> float:
    """Run a command in a folder; the peak of its resident memory in MiB."""
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | quiet, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command}:\n{output.read_text()[-3000:]}")
    return usage.ru_maxrss / 1024


def watch(program: str) -> None:
    """Run a program for TRL, and write down what it finds: its log rounds losses."""
    from transformers import Trainer

    losses: list[float] = []
    ends: list[float] = []
    step_of, create_optimizer = Trainer.training_step, Trainer.create_optimizer

    def training_step(self: Any, *arguments: Any, **more: Any) -> Any:
        loss = step_of(self, *arguments, **more)
        losses.append(float(loss))
        return loss

    def created(self: Any, *arguments: Any) -> Any:
        optimizer = create_optimizer(self, *arguments)
        optimizer.register_step_post_hook(lambda *_: ends.append(time.perf_counter()))
        return optimizer

    Trainer.training_step, Trainer.create_optimizer = training_step, created  # type: ignore[method-assign]
    runpy.run_path(program)
    parts = len(losses) // STEPS  # micro-batches of a step, each divided by their number
    steps = [sum(losses[at : at + parts]) for at in range(0, len(losses), parts)]
    Path("found.json").write_text(json.dumps({"losses": steps, "seconds": ends[-1] - ends[0]}))


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Both sides of a program, one after another."""
    found: dict[str, list[dict[str, Any]]] = {"paceline": [], "trl": []}
    with tempfile.TemporaryDirectory() as work:
        (prepared := Path(work, "prepared")).mkdir()
        tokens = prepare(prepared)
        for number in range(rounds):
            for side, measure in (("paceline", by_paceline), ("trl", by_trl)):
                folder = shutil.copytree(prepared, Path(work, f"{side}-{number}"))
                found[side].append(measure(name, folder))
    data = next(line for line in (PROGRAMS / f"{name}.yaml").read_text().splitlines() if "data:" in line)
    count = tokens[data.split()[1].removesuffix(".jsonl")] * (STEPS - 1) / STEPS
    ours, theirs = (found[side][0]["losses"] for side in found)
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    result: dict[str, Any] = {
        "steps": STEPS,
        "first": ours[0],
        "last": ours[-1],
        "apart": max(abs(one - other) for one, other in zip(ours, theirs, strict=True)),
    }
    for side, runs in found.items():
        seconds = statistics.median(one["seconds"] for one in runs)
        program = PROGRAMS / (f"{name}.yaml" if side == "paceline" else f"{name}_trl.py")
        result[side] = {
            "tokens_per_second": count / seconds,
            "memory_mib": statistics.median(one["memory"] for one in runs),
            "lines": lines_of(program),
        }
    return result


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: of a pair of numbers the second is TRL's."""
    lines = [
        "| | loss of the first and last step | furthest apart | tokens per second | MiB | lines |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        pairs = [
            f"{one['paceline'][key]:,.0f} / {one['trl'][key]:,.0f}"
            for key in ("tokens_per_second", "memory_mib", "lines")
        ]
        losses = f"{one['first']:.4f}, {one['last']:.4f}"
        lines.append(f"| {name} | {losses} | {one['apart']:.1e} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--watch"]:
        watch(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    there = options.json is not None and options.json.exists()
    results: dict[str, Any] = json.loads(options.json.read_text()) if there else {}
    for name in options.names or NAMES:
        results[name] = compare(name, options.rounds)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
