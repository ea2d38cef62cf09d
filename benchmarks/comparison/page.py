"""``docs/evidence/comparison.md``, from what ``run.py`` and the benchmarks of speed have found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from program import HERE, PROGRAMS, Found

PAGE = HERE.parents[1] / "docs" / "evidence" / "comparison.md"
NAMES = {
    "paceline": "**paceline**",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "transformers": "Trainer of transformers",
    "by_hand": "by hand",
}


def _size(value: float | None) -> str:
    return "did not end" if value is None else f"{value:.0e}".replace("e-0", "e-")


def _ended(code: int | None) -> str:
    return "hangs" if code is None else f"exit code {code}"


def _steps(count: int) -> str:
    return f"{count} step" + "s" * (count != 1)


def resume(found: Found) -> str:
    if found["code"]:
        return f"does not resume: {_ended(found['code'])}"
    samples = "the same samples" if found["same samples"] else "other samples"
    if found["difference"] == 0:
        return f"{samples}, equal bit for bit"
    return f"{samples}, weights differ by {_size(found['difference'])}"


def evaluation(found: Found) -> str:
    exact, value = found["exact"], found["found"]
    wrong = [key for key in exact if value[key] is None or abs(exact[key] - value[key]) > 1e-6]
    if not wrong:
        return "both exact"
    parts = [f"{key} {value[key]:.3f} in place of {exact[key]:.3f}" for key in wrong]
    return ", ".join(parts) + "; accuracy exact" * (wrong == ["loss"])


def sigterm(found: Found) -> str:
    parts = []
    for ranks, one in found.items():
        ended = "hangs" if one["code"] is None else f"ends (code {one['code']})"
        saved = "saved" if one["lost"] <= 0 else f"{_steps(one['lost'])} lost"
        parts.append(f"{ranks.replace('1 ranks', '1 rank')}: {ended}, {saved}")
    return "; ".join(parts)


def sigkill(found: Found) -> str:
    failed = [one for one in found.values() if one["code"]]
    if failed:
        return f"{len(failed)} of {len(found)} do not resume: {failed[0]['said'][:80] or _ended(failed[0]['code'])}"
    wrong = [one for one in found.values() if one["difference"] != 0]
    lost = max(one["lost"] for one in found.values())
    differ = f"; {len(wrong)} of {len(found)} end with other weights" if wrong else ", equal bit for bit"
    return f"all resume, at most {_steps(lost)} lost{differ}"


def nan(found: Found) -> str:
    if found["code"]:
        return f"ends before the update (step 7), {_ended(found['code'])}" if found["updates"] == 6 else (
            f"ends after {_steps(found['updates'])}, {_ended(found['code'])}"
        )
    if found["code"] is None:
        return f"hangs after {_steps(found['updates'])}"
    end = "weights NaN" if found["NaN at the end"] else "weights finite"
    return f"trains on to the end, exit code 0, {end}"


def world(found: Found) -> str:
    asked, none = found["2 of 4"], found["none of 2"]
    first = f"an error" if asked["code"] else f"trains on 4 with {asked['samples of a step']} samples a step"
    if none["code"]:
        second = "an error"
    elif none["of which different"] < none["samples of a step"]:
        second = "separate runs on the same samples"
    else:
        second = f"joined, {none['samples of a step']} samples a step"
    return f"{first}; {second}"


def same(found: Found) -> str:
    parts = []
    for samples, one in found.items():
        total = one["steps"][0]
        if one["difference"] is not None and one["difference"] < 1e-4:
            parts.append(f"{samples}: equal to {_size(one['difference'])}")
        else:
            differ = f"{total - one['steps of the same samples']} of {total} steps have other samples"
            parts.append(f"{samples}: {differ}, weights differ by {_size(one['difference'])}")
    return "; ".join(parts)


def checkpoint(found: Found) -> str:
    for name in ("DDP", "FSDP", "one device"):
        if name not in found or not found[name]["steps"]:
            return f"{name} does not start: {found.get(name, {}).get('said', '')[:90]}"
    at = [found[name]["first step"] for name in ("FSDP", "one device")]
    if found["difference"] is not None and found["difference"] < 1e-4:
        return f"continues at steps {at[0] + 1} and {at[1] + 1}, equal to {_size(found['difference'])}"
    return f"continues, weights differ by {_size(found['difference'])}"


ROWS: dict[str, tuple[str, Callable[[Found], str]]] = {
    "resume": ("killed in the middle of an epoch, resumed", resume),
    "evaluation": ("metrics over 7 samples on 2 ranks", evaluation),
    "sigterm": ("SIGTERM", sigterm),
    "sigkill": ("killed while a checkpoint is written", sigkill),
    "nan": ("the loss of a rank is NaN", nan),
    "world": ("2 devices asked for, 4 started; no number given, 2 started", world),
    "same": ("1 rank and 2, the same global batch", same),
    "checkpoint": ("DDP, then FSDP, then one device", checkpoint),
}


def cell(row: str, found: Found | None) -> str:
    """What a table says of what was found: without lines of one's own and, where they change it, with them."""
    if found is None:
        return "not run"
    say = ROWS[row][1]
    with_ = say(found["with"])
    if "without" not in found:
        return with_
    without, lines = say(found["without"]), found["own lines"]
    if without == with_:
        return f"{with_} (also with {_lines(lines)})"
    return f"{without}; with {_lines(lines)}: {with_}"


def _lines(count: int) -> str:
    return f"{count} line" + "s" * (count != 1) + " more"


def lines_of(program: Path) -> int:
    """That are neither empty nor a comment."""
    stripped = [line.strip() for line in program.read_text().splitlines()]
    return len([line for line in stripped if line and not line.startswith("#")])


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _results(name: str) -> Any:
    return json.loads((HERE.parent / "results" / f"{name}.json").read_text())


def _mistakes(found: dict[str, dict[str, Found]]) -> str:
    rows = []
    for mistake in next(iter(found.values())):
        row = [mistake]
        for trainer in found:
            one = found[trainer].get(mistake)
            row.append("" if one is None else _answer(one))
        rows.append(row)
    return _table(["mistake", *(NAMES[trainer] for trainer in found)], rows)


def _answer(one: Found) -> str:
    if one["code"] is None:
        return "hangs"
    if not one["code"]:
        return f"**silent**: exit code 0 after {_steps(one['updates'])}"
    said = one["said"].replace("|", "\\|").replace("<", "&lt;")
    said = said if len(said) <= 110 else said[:107] + "..."
    return f"{said} ({one['updates']} updates, {one['lines']} lines)"


def _speed() -> str:
    overhead = _results("overhead")["result"]["off"]
    throughput = _results("throughput")["result"]
    gpu = _results("gpu")
    on_gpu = gpu["throughput.py --models gpt --rounds 1"]
    names = {"paceline": "paceline", "lightning": "Lightning", "accelerate": "Accelerate", "transformers": "Transformers"}
    microseconds = [f"+{overhead[name]['over_raw_us']:.0f}" for name in names.values()]
    rows = [
        ["microseconds of a step over the loop by hand, tiny model, CPU", *microseconds, f"{overhead['raw']['us_per_step']:.0f} in all"]
    ]
    for model, title in (("cnn", "a small CNN"), ("vit", "ViT-Tiny"), ("gpt", "a small GPT")):
        values = [throughput[model].get(name, {}).get("of_by_hand") for name in names]
        rows.append([f"{title}, CPU, samples per second", *(f"{v:.2f}" if v else "" for v in values), "1"])
    values = [on_gpu.get(name, {}).get("of_by_hand") for name in names]
    rows.append([f"a GPT on one {gpu['about']['device']}, {gpu['about']['date']}, one round", *(f"{v:.3f}" if v else "" for v in values), "1"])
    return _table(["", *NAMES.values()], rows)


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    rows = [
        [title, *(cell(row, results["rows"].get(row, {}).get(trainer)) for trainer in PROGRAMS), f"`--row {row}`"]
        for row, (title, _) in ROWS.items()
    ]
    rows.append(["lines of the program", *(str(lines_of(HERE / file)) for file in PROGRAMS.values()), ""])
    programs = [[NAMES[name], f"`benchmarks/comparison/{file}`", f"`--trainer {name}`"] for name, file in PROGRAMS.items()]
    text = TEXT.replace("DATE", results["date"]).replace("VERSIONS", versions)
    text = text.replace("PROGRAMS", _table(["trainer", "program", "with `run.py`"], programs))
    text = text.replace("OVERVIEW", _table(["", *NAMES.values(), "shown by"], rows))
    text = text.replace("MISTAKES", _mistakes(results["rows"]["mistakes"]))
    return text.replace("SPEED", _speed())


TEXT = """# Against the others

The same training under this trainer, Lightning, Accelerate, the Trainer of transformers and a loop by hand, and what happens to each when
something happens to it. Each trainer has one program, written as its documentation has it, with what it offers for these cases switched on.
A script runs them in processes of their own, does what the row says, and reads from what was recorded what became of it; it also wrote this
page, on DATE, with VERSIONS, on CPUs with gloo. "With 5 lines more" is the same program with lines that the trainer leaves to its user.

PROGRAMS

`python benchmarks/comparison/run.py --row ROW --trainer TRAINER` shows a cell, without the two options all of them, and `--page` writes
this page from `benchmarks/results/comparison.json` (`pip install torchdata` for Lightning's). What is done in each row is in
`benchmarks/comparison/rows.py`.

OVERVIEW

Where others are as good or better, and what the programs need for it:

- **Resume.** All five continue exactly where their programs ask for it. Lightning needs a loader with a state (torchdata's) and a callback for the
  random state; with `trainer.estimated_stepping_batches` in `configure_optimizers` it does not restore the loader's state
  ([its issue](https://github.com/Lightning-AI/pytorch-lightning/issues/20550)), so that its program counts steps by itself. Under Accelerate the script
  counts steps and skips batches (`skip_first_batches`), and gives the loader a generator. transformers resumes exactly as it is.
- **Metrics.** `gather_for_metrics` of Accelerate is exact, and so is a loop that reads every second sample and adds up. In transformers the metrics of
  `compute_metrics` are exact, the loss is not. Lightning's documentation recommends to validate with `devices=1`, which is exact.
- **SIGTERM.** transformers has `enable_jit_checkpoint`, which waits three seconds before it saves. Lightning has `save_on_exception`, which is switched on here,
  Accelerate `set_trigger` and `check_trigger` for a handler of one's own.
- **NaN.** Lightning's switch is `detect_anomaly`, transformers' `debug="underflow_overflow"`; both look at every operation or layer, which is slow. With
  `save_on_exception` too, Lightning's rank with the error waits for the others, so that its program does without it there.
- **Number of ranks.** Accelerate with `split_batches=True` and `use_seedable_sampler=True` takes the same samples on any number of ranks, as long as the
  last step is complete. In the programs of Lightning, of transformers and by hand the batch of a rank is divided in the script.
- **One checkpoint.** By hand, torch's `get_state_dict` and `set_state_dict` do it.

## Mistakes

Each mistake is an edit of the program (`benchmarks/comparison/mistakes.py`): what was printed last, after how many updates, in how many lines.
Empty where a trainer has no such setting. `python benchmarks/comparison/run.py --row mistakes`

MISTAKES

[Errors that help](../promises/errors-that-help.md) has what is promised here.

## Speed

The loop by hand is 1. What was measured and how is on [benchmarks](benchmarks.md): `benchmarks/overhead.py`, `benchmarks/throughput.py` and
`benchmarks/gpu/run.sh`, whose results these are.

SPEED
"""
