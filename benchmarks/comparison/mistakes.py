"""Mistakes that people make, each as an edit of the programs or an argument, and what comes of them."""

from __future__ import annotations

import json
from pathlib import Path

from program import HERE, PROGRAMS, Ended, Found, Program, read_printed, read_records

LOSS = {
    "paceline": 'return self.net(**batch)["loss"]',
    "lightning": 'loss = self.net(**batch)["loss"]',
    "accelerate": 'loss = net(**batch)["loss"]',
    "by_hand": 'loss = net(**batch)["loss"]',
}
HOOK = "net = task.Net()\nnet.register_forward_hook(lambda net, given, found: found | {'loss': %s})\n"
EPOCHS = {"paceline": "max_epochs", "lightning": "max_epochs", "transformers": "num_train_epochs"}


def _loss(end: str, hook: str) -> dict[str, tuple[str, str]]:
    edits = {trainer: (text, text.replace('["loss"]', end)) for trainer, text in LOSS.items()}
    return edits | {"transformers": ("net = task.Net()\n", HOOK % hook)}


def _everywhere(line: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(PROGRAMS, ("import task\n", f"import task\n{line}\n"))


EDITS: dict[str, dict[str, tuple[str, str]]] = {
    "the loss is detached": _loss('["loss"].detach()', "found['loss'].detach()"),
    "a loss for each sample": _loss('["logits"][:, 0]', "found['logits'][:, 0]"),
    "the optimizer has one of two layers": {
        "paceline": ("AdamW(self.", "AdamW(self.net.layers[3]."),
        "lightning": ("AdamW(self.", "AdamW(self.net.layers[3]."),
        "accelerate": ("AdamW(net.", "AdamW(net.layers[3]."),
        "by_hand": ("AdamW(net.", "AdamW(net.layers[3]."),
    },
    "a misspelled argument": {name: (f"{text}=", f"{text[:-1]}=") for name, text in EPOCHS.items()}
    | {"accelerate": ("dataloader_config=", "data_loader_config=")},
    "a number of epochs in words": {
        name: (f"{text}=options.epochs", f'{text}="three"') for name, text in EPOCHS.items()
    },
    'strategy="dpp"': {
        "paceline": ('strategy=options.strategy if task.WORLD > 1 else "auto"', 'strategy="dpp"'),
        "lightning": (
            'strategy=sharded if options.strategy == "fsdp" else "ddp" if task.WORLD > 1 else "auto"',
            'strategy="dpp"',
        ),
    },
    "precision bf-16": {
        "paceline": ('accelerator="cpu",', 'accelerator="cpu", precision="bf-16",'),
        "lightning": ('accelerator="cpu",', 'accelerator="cpu", precision="bf-16",'),
        "accelerate": ("cpu=True,", 'cpu=True, mixed_precision="bf-16",'),
    },
    "the best by a value that nobody logs": {
        "paceline": ('Checkpoint(f"{options.save}st")', 'Checkpoint(monitor="val/f1")'),
        "lightning": ("save_last=True,", 'save_last=True, monitor="val_f1",'),
        "transformers": (
            "save_steps=options.save,",
            'save_steps=options.save, eval_strategy="steps", eval_steps=options.save,'
            ' metric_for_best_model="f1", load_best_model_at_end=True,',
        ),
    },
    "inputs of bytes": _everywhere('task.Samples.kind = __import__("torch").uint8'),
    "a label without a class": _everywhere("task.Samples.classes = 5"),
}
ARGUMENTS = {
    "no samples": ["--samples 0"],
    "resumed with a wider model": [
        "--epochs 1 --pause 0.2 --fault kill:8",
        "--epochs 1 --resume --width 64",
    ],
}
MISTAKES = (*EDITS, *ARGUMENTS)


def mistakes(program: Program) -> Found:
    """What the program does with each mistake in it, but for those that its trainer has no setting for."""
    source, jobs = program.source, {}
    for number, name in enumerate(MISTAKES):
        if name in EDITS and program.trainer not in EDITS[name]:
            continue
        folder = program.folder / f"mistake-{number}"
        folder.mkdir()
        file = folder / program.file.name
        file.write_text(edited(source, program.trainer, name))
        steps = ARGUMENTS.get(name, ["--epochs 1"])
        jobs[name] = [[str(folder), str(file), arguments] for arguments in steps]
    listed = program.folder / "jobs.json"
    listed.write_text(json.dumps([job for steps in jobs.values() for job in steps]))
    package = {"by_hand": "torch"}.get(program.trainer, program.trainer)
    program.source = (HERE / "forks.py").read_text()
    program(f"{package} {listed}", "forks", deadline=1200)
    ends = iter(json.loads(listed.read_text()))
    found = {}
    for name, steps in jobs.items():
        code, child = [next(ends) for _ in steps][-1]
        folder = Path(steps[-1][0])
        records = [one for one in read_records(folder / "records.jsonl") if one["pid"] == child]
        found[name] = _answer(Ended(code, 0, records, read_printed(folder)))
    return found


def edited(source: str, trainer: str, name: str) -> str:
    """The program with that mistake, where it is one of the text."""
    if name not in EDITS:
        return source
    before, after = EDITS[name][trainer]
    if source.count(before) != 1:
        raise ValueError(f"{trainer}, {name}: {source.count(before)} times {before!r}")
    return source.replace(before, after)


def _answer(run: Ended) -> Found:
    printed = run.printed[run.printed.find("Traceback (most recent") :] if run.code else ""
    lines = printed.strip().splitlines()
    return {"code": run.code, "updates": run.updates, "lines": len(lines), "said": run.said}
