"""One checkpoint, every strategy: what any of them wrote on any number of ranks, each other reads.

Equality is transitive: if each strategy holds, bit for bit, what one canonical checkpoint says, and what it
writes later is held by another one, all of them read each other. ``--soak`` tries every pair all the same.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_state
from helpers.pairwise import covering, soaked
from helpers.ranks import run_ranks
from safetensors import safe_open

from paceline.trainer.checkpoint.files import format as checkpoint_files
from paceline.trainer.checkpoint.files.integrity import verify

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("matrix_job.py")
SECONDS, SOAK_SECONDS = 240, 1500
AT, LAST = 7, 10  # two steps before the end of an epoch, one after it
ZERO = [f"deepspeed_stage_{stage}" for stage in range(4)]
IN_PARTS = "deepspeed_stage_3_in_parts"  # its parameters really spread, in several sub-groups
SPLIT = "fsdp_tensor"  # on four ranks each layer is split over two, and sharded over the other two
MANY = ["ddp", "fsdp", "hsdp", *ZERO, IN_PARTS, SPLIT]
LAYOUTS = [(s, 2) for s in MANY] + [(s, 3) for s in MANY if s != ZERO[3]]
LAYOUTS += [(SPLIT, 4), ("hsdp_tensor", 4)]
USUAL_LAYOUTS = [(s, 2) for s in MANY] + [("fsdp", 3), (ZERO[1], 3), (IN_PARTS, 3), ("hsdp_tensor", 4)]
RING = [  # writer, reader: each layout of two and three ranks writes for a size beside its own
    (("ddp", 2), ("fsdp", 3)),
    (("fsdp", 2), (IN_PARTS, 3)),
    (("hsdp", 2), (ZERO[0], 3)),
    ((ZERO[0], 2), ("ddp", 3)),
    ((ZERO[1], 2), ("hsdp", 3)),
    ((ZERO[2], 2), (ZERO[1], 3)),
    ((ZERO[3], 2), ("fsdp", 3)),
    ((IN_PARTS, 2), (ZERO[2], 3)),
    ((SPLIT, 2), ("fsdp", 3)),
    (("hsdp", 2), (SPLIT, 3)),
    (("single", 1), (ZERO[2], 3)),
    (("ddp", 3), (ZERO[1], 1)),
    (("fsdp", 3), ("single", 1)),
    (("hsdp", 3), (ZERO[2], 1)),
    ((ZERO[0], 3), ("fsdp", 1)),
    ((ZERO[1], 3), (ZERO[0], 1)),
    ((ZERO[2], 3), ("hsdp", 1)),
    ((IN_PARTS, 3), ("ddp", 1)),
    (("fsdp", 3), (IN_PARTS, 1)),
    ((SPLIT, 3), ("ddp", 1)),
    (("fsdp", 3), (SPLIT, 4)),
    ((SPLIT, 3), ("hsdp_tensor", 4)),
    ((SPLIT, 4), ("single", 1)),
    (("hsdp_tensor", 4), (ZERO[2], 1)),
]
# Each strategy once as a writer and once as a reader of another size, and what three and four ranks write.
USUAL_RING = [pair for pair in RING if pair[0][1] == 2]
USUAL_RING += [pair for pair in RING if pair[0] in USUAL_LAYOUTS[len(MANY) :] and pair[1][1] == 1]
# Other state than AdamW's two moments, tied weights, other dtypes, frozen parameters in the optimizer.
KINDS = {
    "tied": ({"model": {"optimizer": "sgd", "tied": True}}, MANY),
    "amsgrad": ({"model": {"optimizer": "amsgrad"}}, ["fsdp", ZERO[2], IN_PARTS]),
    "muon": ({"model": {"optimizer": "muon"}}, ["ddp", "fsdp", "hsdp", *ZERO, IN_PARTS, SPLIT]),
    "all-given": ({"model": {"all_given": True}}, ["ddp", "fsdp", ZERO[1], IN_PARTS]),
    "bf16-true": ({"precision": "bf16-true"}, ["fsdp", *ZERO]),
    # One parameter that no step has used: the optimizer has no state for it.
    "unused-first": ({"model": {"unused": "first"}}, ["ddp", "fsdp", *ZERO[:3], IN_PARTS]),
    "unused-last": ({"model": {"unused": "last", "optimizer": "sgd"}}, ["fsdp", ZERO[2], IN_PARTS]),
}
READ_BY = [(strategy, kind) for strategy in MANY for kind in KINDS if strategy in KINDS[kind][1]]
USUAL = covering(READ_BY, each=1)
PRECISIONS = [("adamw", "bf16-true"), ("adamw", "bf16"), ("bf16-true", "32")]
ROUNDED = {"precision": "bf16"}
ROUNDED_STRATEGIES = [ZERO[2], ZERO[3], IN_PARTS]
USUAL_ROUNDED = [ZERO[3]]
ROUNDED_RING = [((ZERO[3], 2), ("fsdp", 3))]
ROUNDED_SOAK = [((ZERO[2], 2), (IN_PARTS, 3)), ((IN_PARTS, 2), (ZERO[2], 3))]
COPIED = ["fsdp"]
COPIED_SOAK = [IN_PARTS, "ddp", ZERO[2]]


def by_choice(usual: list, soak: list) -> list:
    """Parameters of tests, some for ``--soak`` alone."""
    several = [one if isinstance(one, tuple) else (one,) for one in soak]
    return [*usual, *(pytest.param(*one, marks=pytest.mark.soak) for one in several)]


def title(strategy: str, world: int) -> str:
    return f"{strategy}-{world}"


def goes_on(strategy: str, world: int) -> dict:
    """Reads the canonical checkpoint, writes it again, trains on and writes what has become of it."""
    return {"name": title(strategy, world), "strategy": strategy, "source": "adamw-wrote", "last": LAST}


def reads(reader: tuple[str, int], writer: tuple[str, int], what: str = "") -> dict:
    source = title(*writer) + what
    return {"name": f"{title(*reader)}-of-{source}", "strategy": reader[0], "source": f"{source}-wrote"}


def ring(world: int, soak: bool) -> list[dict]:
    """Who reads on so many ranks what was written on others."""
    rounded = ROUNDED_RING + (ROUNDED_SOAK if soak else [])
    found = [reads(r, w) for w, r in (RING if soak else USUAL_RING) if r[1] == world]
    return found + [reads(r, w, "-bf16") | ROUNDED for w, r in rounded if r[1] == world]


def first_cases() -> list[dict]:
    sources = {"adamw": {}} | {kind: settings for kind, (settings, _) in KINDS.items()}
    written = [{"name": n, "strategy": "single", "last": AT} | kind for n, kind in sources.items()]
    forgetful = goes_on("single", 1) | {"name": "forgetful", "forget": True}
    todo = [*written, goes_on("single", 1), forgetful]
    for source, target in PRECISIONS:
        source = f"{source}-wrote"
        todo.append(goes_on("single", 1) | {"name": f"to-{target}", "source": source, "precision": target})
    return todo


def cases_on_two(others: list[tuple[str, str]], soak: bool) -> list[dict]:
    """Each strategy's own checkpoints; and what they read of other state, by strategy and kind."""
    copied = COPIED + (COPIED_SOAK if soak else [])
    todo = [goes_on(s, 2) | ({"background": False} if s in copied else {}) for s in MANY]
    todo += [goes_on(s, 2) | {"name": f"{s}-copied", "background": True} for s in copied]
    rounded = ROUNDED_STRATEGIES if soak else USUAL_ROUNDED
    todo += [goes_on(s, 2) | ROUNDED | {"name": f"{title(s, 2)}-bf16"} for s in rounded]
    return todo + [
        {"name": f"{s}-{kind}", "strategy": s, "source": f"{kind}-wrote"} | KINDS[kind][0]
        for s, kind in others
    ]


def run_job(folder: Path, devices: int, todo: list[dict], seconds: int = SECONDS) -> None:
    run_ranks(JOB, devices, devices, folder, json.dumps(todo), folder=folder, seconds=seconds)


@pytest.fixture(scope="session")
def folder(request, tmp_path_factory) -> Path:
    """Where one device and two, three and four ranks trained, each from what others had written."""
    place = tmp_path_factory.mktemp("matrix")
    run_job(place, 1, first_cases())
    soak = request.config.getoption("--soak")
    run_job(place, 2, cases_on_two(READ_BY if soak else USUAL, soak))
    layouts = LAYOUTS if soak else USUAL_LAYOUTS
    for size in (3, 4):
        todo = [goes_on(s, world) for s, world in layouts if world == size] + ring(size, soak)
        run_job(place, size, todo)
    run_job(place, 1, ring(1, soak))
    return place


def notes(folder: Path, name: str) -> list[dict]:
    """What each rank of a case had to say, none of them an error."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-?.json"))]
    assert found, f"{name} never ran"
    for note in found:
        assert "error" not in note, note["error"]
    return found


@functools.cache
def read(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors, put together from all files by the offsets in their headers, without paceline."""
    parts: dict[str, list[tuple[list[int], torch.Tensor]]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            lies = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():  # noqa: SIM118
                parts.setdefault(name, []).append((lies[name]["saved_offsets"], file.get_tensor(name)))
    found = {}
    for name, pieces in parts.items():
        ends = [[o + s for o, s in zip(at, piece.shape, strict=True)] for at, piece in pieces]
        whole = torch.empty([max(end) for end in zip(*ends, strict=True)], dtype=pieces[0][1].dtype)
        for at, piece in pieces:
            whole[tuple(slice(o, o + s) for o, s in zip(at, piece.shape, strict=True))] = piece
        assert sum(piece.numel() for _, piece in pieces) == whole.numel(), f"{name}: a gap or an overlap"
        found[name] = whole
    return found


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def differences(expected: Path, found: Path) -> list[str]:
    """Tensors that are not the same bit for bit, and parts of the plain state that are not the same."""
    ours, theirs = read(found), read(expected)
    wrong = [f"only in {expected.name}: {name}" for name in theirs.keys() - ours.keys()]
    wrong += [f"only in {found.name}: {name}" for name in ours.keys() - theirs.keys()]
    for name in theirs.keys() & ours.keys():
        one, other = theirs[name], ours[name]
        if one.dtype != other.dtype or one.shape != other.shape:
            wrong.append(f"{name}: {other.dtype} {list(other.shape)}, not {one.dtype} {list(one.shape)}")
        elif bits(one) != bits(other):
            wrong.append(f"{name}: {(one.double() - other.double()).abs().max().item():.3g} apart")
    states = [state_of(folder) for folder in (expected, found)]
    wrong += [
        f"{part}: {states[1][part]}, not {states[0][part]}"
        for part in ("optimizers", "schedulers", "counters", "extra_state")
        if states[1][part] != states[0][part]
    ]
    return sorted(wrong)


@functools.cache
def state_of(checkpoint: Path) -> dict:
    state = stored_state(checkpoint)
    del state["counters"]["elapsed"]
    return state


def same(expected: Path, found: Path) -> None:
    verify(found)
    assert differences(expected, found) == []


def outputs(folder: Path, name: str) -> dict[str, list[float]]:
    """What the first step after the resume computed, sample by sample, on whichever rank."""
    return {k: v for note in notes(folder, name) for k, v in note["outputs"].items()}


def far(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far apart finite tensors are."""
    return {
        name: (found[name].double() - value.double()).abs().max().item()
        for name, value in expected.items()
        if name != "model.odd"
    }


def test_the_canonical_checkpoint_is_what_it_says(folder):
    """Moments of all that is trained, of nothing else; values that only a copy of the bits preserves."""
    found = read(folder / "adamw-wrote")
    trained = {n.removeprefix("optim.0.").removesuffix(".exp_avg") for n in found if ".exp_avg" in n}
    assert "frozen.weight" not in trained
    assert "blocks.1.shift" not in trained
    assert {"gate.weight", "scale", "blocks.2.outer.bias"} < trained
    for name in (n for n in trained if not n.endswith("exp_avg_sq")):
        assert all(found[f"optim.0.{name}.{key}"].any() for key in ("exp_avg", "exp_avg_sq")), name
        assert found[f"optim.0.{name}.step"].item() == AT
    assert found["model.steps"].item() == AT
    assert "model.scratch" not in found
    assert found["model.odd"].isnan().any()
    first, second = state_of(folder / "adamw-wrote")["optimizers"]["0"]["groups"]
    for key in ("lr", "initial_lr", "weight_decay", "betas", "params"):
        assert first[key] != second[key], key


@pytest.mark.parametrize(
    ("strategy", "world"), soaked([("single", 1), *LAYOUTS], [("single", 1), *USUAL_LAYOUTS])
)
def test_what_was_read_is_written_again_bit_for_bit(folder, strategy, world):
    notes(folder, name := title(strategy, world))
    same(folder / "adamw-wrote", folder / f"{name}-read")
    written_by = checkpoint_files.read_manifest(folder / f"{name}-read")["world"]
    about = {"size": world, "strategy": strategy.removesuffix("_in_parts").removesuffix("_tensor")}
    assert written_by == about | (
        {"tensor": 3 if world == 3 else 2} if strategy.endswith("_tensor") else {}
    )
    assert len(list((folder / f"{name}-read").glob("optim-*"))) == world


@pytest.mark.parametrize(("strategy", "world"), soaked(LAYOUTS, USUAL_LAYOUTS))
def test_forward_computes_with_what_was_read(folder, strategy, world):
    expected, found = outputs(folder, "single-1"), outputs(folder, title(strategy, world))
    assert len(expected) == 12
    assert found.keys() == expected.keys()
    for sample, row in expected.items():
        assert found[sample] == pytest.approx(row, rel=0, abs=1e-6), sample


@pytest.mark.fault(23)
@pytest.mark.parametrize(("strategy", "world"), soaked(LAYOUTS, USUAL_LAYOUTS))
def test_training_continues_as_on_one_device(folder, strategy, world):
    expected, found = (read(folder / f"{n}-wrote") for n in ("single-1", title(strategy, world)))
    assert found.keys() == expected.keys()
    apart = far(found, expected)
    assert {name: value for name, value in apart.items() if not value <= 2e-6} == {}
    assert found["model.steps"].item() == LAST
    assert bits(found["model.odd"]) == bits(expected["model.odd"])


def test_the_comparison_would_notice_lost_moments(folder):
    expected, found = (read(folder / f"{name}-wrote") for name in ("single-1", "forgetful"))
    weights = {name: value for name, value in expected.items() if name.startswith("model.")}
    moved = far(read(folder / "adamw-wrote"), weights)
    for name, value in far(found, weights).items():
        if moved[name] > 0 and name != "model.steps":
            assert value > 1e-4, name


@pytest.mark.fault(23)
@pytest.mark.parametrize(("writer", "reader"), soaked(RING, USUAL_RING), ids=lambda layout: title(*layout))
def test_what_each_wrote_another_reads_bit_for_bit(folder, writer, reader):
    notes(folder, name := reads(reader, writer)["name"])
    same(folder / f"{title(*writer)}-wrote", folder / f"{name}-read")


def test_the_ring_has_every_layout_as_a_writer_and_every_strategy_as_a_reader():
    assert {writer for writer, _ in RING} == {*LAYOUTS, ("single", 1)}
    assert {reader for reader, _ in (r for _, r in RING)} == {"single", "hsdp_tensor", *MANY} - {ZERO[3]}
    assert {writer for writer, _ in USUAL_RING} >= {(strategy, 2) for strategy in MANY}
    assert {reader for reader, _ in (r for _, r in USUAL_RING)} >= {"single", *MANY} - {ZERO[3]}
    assert {layout for layout in USUAL_LAYOUTS if layout[1] > 3} <= {writer for writer, _ in USUAL_RING}
    assert all(writer[1] != reader[1] for writer, reader in RING)


def content(file: Path) -> tuple[dict, bytes]:
    """A safetensors file's header, whose keys come in any order, and what is behind it."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return header, data[end:]


@pytest.mark.parametrize("strategy", by_choice(COPIED, COPIED_SOAK))
def test_a_checkpoint_in_the_background_has_the_same_files(folder, strategy):
    notes(folder, f"{strategy}-copied")
    direct, copied = (
        folder / "runs" / name / "1" / "checkpoints" for name in (title(strategy, 2), f"{strategy}-copied")
    )
    names = [f"step-{step:08d}" for step in range(AT + 1, LAST + 1)]
    assert [path.name for path in checkpoint_files.finished(copied)] == names
    for one, other in ((direct / name, copied / name) for name in names):
        files = sorted(path.name for path in one.glob("*.safetensors"))
        assert len(files) == 4
        assert sorted(path.name for path in other.glob("*.safetensors")) == files
        for file in files:
            assert content(one / file) == content(other / file), f"{one.name}/{file}"
        same(one, other)
    same(folder / f"{title(strategy, 2)}-wrote", copied / names[-1])


@pytest.mark.parametrize("strategy", soaked(ROUNDED_STRATEGIES, USUAL_ROUNDED))
def test_under_bf16_masters_stay_fp32_in_the_files_and_come_back_bit_for_bit(folder, strategy):
    notes(folder, name := f"{strategy}-2-bf16")
    same(folder / "adamw-wrote", folder / f"{name}-read")
    found = read(folder / f"{name}-wrote")
    for tensor in (n for n in found if n.startswith("optim.") or n == "model.first.weight"):
        assert found[tensor].dtype == torch.float32, tensor
    for tensor in ("model.first.weight", "optim.0.first.weight.exp_avg"):
        assert not torch.equal(found[tensor], found[tensor].bfloat16().float()), tensor


@pytest.mark.parametrize(
    ("writer", "reader"), by_choice(ROUNDED_RING, ROUNDED_SOAK), ids=lambda layout: title(*layout)
)
def test_under_bf16_what_each_wrote_another_reads_bit_for_bit(folder, writer, reader):
    notes(folder, name := reads(reader, writer, "-bf16")["name"])
    same(folder / f"{title(*writer)}-bf16-wrote", folder / f"{name}-read")


@pytest.mark.parametrize(("strategy", "kind"), soaked(READ_BY, USUAL))
def test_other_state_is_read_and_written_bit_for_bit(folder, strategy, kind):
    """Where ZeRO cannot hold what was read it says so; it never continues without a word."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"{strategy}-{kind}-?.json")]
    if kind.startswith("unused") and any("error" in note for note in found):
        assert all("PacelineError: ZeRO" in note.get("error", "") for note in found), found
        return
    notes(folder, name := f"{strategy}-{kind}")
    same(folder / f"{kind}-wrote", folder / f"{name}-read")


@pytest.mark.parametrize(("source", "precision"), PRECISIONS)
def test_a_run_continues_in_another_precision_or_says_why_not(folder, source, precision):
    (found,) = (json.loads(path.read_text()) for path in folder.glob(f"to-{precision}-?.json"))
    assert "error" not in found or "PacelineError" in found["error"], found["error"][-300:]


# -- every pair --------------------------------------------------------------------------------

EVERY = [
    ("single", 1),
    *((s, w) for w in (1, 2, 3) for s in MANY),
    ("hsdp", 4),
    (SPLIT, 4),
    ("hsdp_tensor", 4),
]


@pytest.fixture(scope="session")
def everything(soak, tmp_path_factory) -> Path:
    """Where each of ``EVERY`` resumed from the canonical checkpoint, then read what each had written."""
    place = tmp_path_factory.mktemp("everything")
    worlds = sorted({world for _, world in EVERY})
    source = {"name": "adamw", "strategy": "single", "last": AT}
    for world in worlds:
        cases = [goes_on(*layout) for layout in EVERY if layout[1] == world]
        run_job(place, world, ([source] if world == 1 else []) + cases, SOAK_SECONDS)
    for world in worlds:
        readers = [layout for layout in EVERY if layout[1] == world]
        run_job(place, world, [reads(r, w) for r in readers for w in EVERY], SOAK_SECONDS)
    return place


@pytest.mark.parametrize("reader", EVERY, ids=lambda layout: title(*layout))
def test_each_reads_bit_for_bit_what_any_wrote(everything, reader):
    wrong = differences(everything / "adamw-wrote", everything / f"{title(*reader)}-read")
    for writer in EVERY:
        notes(everything, name := reads(reader, writer)["name"])
        found = differences(everything / f"{title(*writer)}-wrote", everything / f"{name}-read")
        wrong += [f"{title(*writer)}: {line}" for line in found]
    assert wrong == []


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: title(*layout))
def test_each_continues_as_one_device_does(everything, layout):
    expected, found = (read(everything / f"{n}-wrote") for n in ("single-1", title(*layout)))
    assert {name: value for name, value in far(found, expected).items() if not value <= 2e-6} == {}
    one, many = outputs(everything, "single-1"), outputs(everything, title(*layout))
    assert all(many[sample] == pytest.approx(row, rel=0, abs=1e-6) for sample, row in one.items())
    assert all(math.isfinite(value) for row in many.values() for value in row)
