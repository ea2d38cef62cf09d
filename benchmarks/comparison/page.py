"""``docs/evidence/comparison.md``: ``page.md`` with what was found by ``run.py`` and for speed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from program import HERE, PROGRAMS, Found

PAGE = HERE.parents[1] / "docs" / "evidence" / "comparison.md"
README = HERE.parents[1] / "README.md"
_IN_README = ("resume", "sigkill", "evaluation", "nan", "same")
NAMES = {
    "paceline": "**paceline**",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "transformers": "Hugging Face Trainer",
    "by_hand": "hand-written loop",
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
    samples = "same samples" if found["same samples"] else "other samples"
    if found["difference"] == 0:
        return f"{samples}, weights identical bit for bit"
    return f"{samples}, weights differ by {_size(found['difference'])}"


def evaluation(found: Found) -> str:
    exact, value = found["exact"], found["found"]
    wrong = [key for key in exact if value[key] is None or abs(exact[key] - value[key]) > 1e-6]
    if not wrong:
        return "both exact"
    parts = [f"{key} {value[key]:.3f} instead of {exact[key]:.3f}" for key in wrong]
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
        why = _shortened(failed[0]["said"]) or _ended(failed[0]["code"])
        return f"{len(failed)} of {len(found)} do not resume: {why}"
    wrong = [one for one in found.values() if one["difference"] != 0]
    lost = max(one["lost"] for one in found.values())
    differ = (
        f"; {len(wrong)} of {len(found)} end with other weights"
        if wrong
        else ", weights identical bit for bit"
    )
    return f"all resume, at most {_steps(lost)} lost{differ}"


def nan(found: Found) -> str:
    if found["code"]:
        return (
            f"stops before the bad update (step 7), {_ended(found['code'])}"
            if found["updates"] == 6
            else (f"stops after {_steps(found['updates'])}, {_ended(found['code'])}")
        )
    if found["code"] is None:
        return f"hangs after {_steps(found['updates'])}"
    end = "weights NaN" if found["NaN at the end"] else "weights finite"
    return f"keeps training to the end, exit code 0, {end}"


def world(found: Found) -> str:
    asked, none = found["2 of 4"], found["none of 2"]
    parts = []
    for one, ranks in ((asked, 4), (none, 2)):
        samples, different = one["samples of a step"], one["of which different"]
        if not one["trained"]:
            parts.append("an error")
        elif different < samples:
            parts.append("separate runs on the same samples")
        else:
            parts.append(f"trains on {ranks}, {samples} samples a step")
    return "; ".join(parts)


def same(found: Found) -> str:
    parts = []
    for samples, one in found.items():
        total = one["steps"][0]
        if one["difference"] is not None and one["difference"] < 1e-4:
            parts.append(f"{samples}: equal to {_size(one['difference'])}")
        else:
            differ = f"different samples in {total - one['steps of the same samples']} of {total} steps"
            parts.append(f"{samples}: {differ}, weights differ by {_size(one['difference'])}")
    return "; ".join(parts)


def checkpoint(found: Found) -> str:
    for name in ("DDP", "FSDP", "one device"):
        if name not in found or not found[name]["steps"]:
            return f"{name} does not start: {found.get(name, {}).get('said', '')[:90]}"
    if not found["FSDP"]["sharded"]:
        return "FSDP has no effect on a CPU: nothing is sharded"
    at = [found[name]["first step"] for name in ("FSDP", "one device")]
    if found["difference"] is not None and found["difference"] < 1e-4:
        return f"continues at steps {at[0] + 1} and {at[1] + 1}, equal to {_size(found['difference'])}"
    return f"continues with other samples, weights differ by {_size(found['difference'])}"


ROWS: dict[str, tuple[str, Callable[[Found], str]]] = {
    "resume": ("killed in the middle of an epoch and resumed", resume),
    "evaluation": ("metrics over 7 samples on 2 ranks", evaluation),
    "sigterm": ("SIGTERM", sigterm),
    "sigkill": ("killed while a checkpoint is written", sigkill),
    "nan": ("the loss becomes NaN on one rank", nan),
    "world": ("2 devices asked for, 4 started; no number given, 2 started", world),
    "same": ("1 rank and 2, same global batch size", same),
    "checkpoint": ("DDP, then FSDP, then one device", checkpoint),
}


def cell(row: str, found: Found) -> str:
    """What a table says of what was found: without the marked lines, and with them."""
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


def _speed() -> str:
    overhead = _results("overhead")["result"]["off"]
    throughput = _results("throughput")["result"]
    names = {
        "paceline": "paceline",
        "lightning": "Lightning",
        "accelerate": "Accelerate",
        "transformers": "Transformers",
    }
    microseconds = [f"+{overhead[name]['over_raw_us']:.0f}" for name in names.values()]
    rows = [
        [
            "microseconds of a step over the hand-written loop, tiny model, CPU",
            *microseconds,
            f"{overhead['raw']['us_per_step']:.0f} in all",
        ]
    ]
    for model, title in (("cnn", "a small CNN"), ("vit", "ViT-Tiny"), ("gpt", "a small GPT")):
        values = [throughput[model].get(name, {}).get("of_by_hand") for name in names]
        rows.append([f"{title}, CPU, samples per second", *(f"{v:.2f}" if v else "" for v in values), "1"])
    rows.append([*_gpu_row(names), "1"])
    return _table(["", *NAMES.values()], rows)


def _gpu_row(trainers: Iterable[str]) -> list[str]:
    gpu = _results("gpu")
    found = gpu["throughput.py --models gpt --rounds 1"]
    values = [found.get(name, {}).get("of_by_hand") for name in trainers]
    title = f"speed of a GPT on one {gpu['about']['device']}, {gpu['about']['date']}, one round"
    return [
        title,
        *(f"{value:.3f} of a hand-written loop" if value else "not measured" for value in values),
    ]


def _shortened(said: str) -> str:
    return textwrap.shorten(said, 160, placeholder=" ...").replace("|", "\\|").replace("<", "&lt;")


def _mistakes(found: dict[str, dict[str, Found]]) -> str:
    rows = []
    answers = {trainer: cells["with"] for trainer, cells in found.items()}
    for mistake in answers["paceline"]:
        row = [mistake]
        for trainer in answers:
            one = answers[trainer].get(mistake)
            row.append("" if one is None else _answer(one))
        rows.append(row)
    return _table(["mistake", *(NAMES[trainer] for trainer in found)], rows)


def _answer(one: Found) -> str:
    if one["code"] is None:
        return "hangs"
    if not one["code"]:
        return f"**silent**: exit code 0 after {_steps(one['updates'])}"
    return f"{_shortened(one['said'])} ({one['updates']} updates, {one['lines']} lines)"


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    rows = [
        [
            title,
            *(cell(row, results["rows"][row][trainer]) for trainer in PROGRAMS),
            f"`--row {row}`",
        ]
        for row, (title, _) in ROWS.items()
        if row in results["rows"]
    ]
    rows.append(["lines of the program", *(str(lines_of(HERE / file)) for file in PROGRAMS.values()), ""])
    programs = [
        [NAMES[name], f"`benchmarks/comparison/{file}`", f"`--trainer {name}`"]
        for name, file in PROGRAMS.items()
    ]
    text = (HERE / "page.md").read_text().replace("DATE", results["date"]).replace("VERSIONS", versions)
    text = text.replace("PROGRAMS", _table(["trainer", "program", "with `run.py`"], programs))
    text = text.replace("OVERVIEW", _table(["", *NAMES.values(), "shown by"], rows))
    text = text.replace("MISTAKES", _mistakes(results["rows"]["mistakes"]))
    return text.replace("SPEED", _speed())


def readme(results: dict[str, Any]) -> str:
    """The README, with some rows of the trainers as their documentation has them, without further lines."""
    trainers = [name for name in PROGRAMS if name != "by_hand"]
    rows = []
    for row in _IN_README:
        title, say = ROWS[row]
        found = [results["rows"][row][name] for name in trainers]
        plain = [one.get("without", one["with"]) for one in found]
        if row == "same":  # of its two counts of samples the one that does not divide
            plain = [dict([*one.items()][-1:]) for one in plain]
        rows.append([title, *map(say, plain)])
    rows.append(_gpu_row(trainers))
    table = _table(["", *(NAMES[name] for name in trainers)], rows)
    marked = r"(?<=<!-- comparison -->\n).*(?=<!-- end -->)"
    return re.sub(marked, lambda _: f"\n{table}\n\n", README.read_text(), flags=re.DOTALL)
