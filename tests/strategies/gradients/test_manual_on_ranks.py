"""Manual optimization on several ranks ends where it ends on one device at the same global batch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.pairwise import covering, soaked
from helpers.ranks import run_ranks

from paceline import Run

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("manual_job.py")
SECONDS = 240
ON_TWO = ["ddp", "fsdp", *(f"deepspeed_stage_{stage}" for stage in range(4))]
GAN_64 = {"kind": "gan", "precision": "64"}
# Trained on one device and on the layouts after it alike, and how far apart they may end.
KINDS = {
    "gan": (GAN_64, 1e-12, ["ddp", "fsdp", "hsdp"]),
    "gan-a-rank-without-samples": (GAN_64 | {"samples": 33}, 1e-12, ["ddp", "fsdp", "hsdp"]),
    "gan-clip-value": (
        GAN_64 | {"clip_grad_norm": None, "clip_grad_value": 0.01},
        1e-12,
        ["ddp", "fsdp"],
    ),
    "gan-no-gradient-on-one-rank": (GAN_64 | {"flags": 13}, 1e-12, ["ddp"]),
    "gan-updates-every-second-step": (GAN_64 | {"model": {"every": 2}}, 1e-12, ["ddp", "fsdp"]),
    "listed": (GAN_64 | {"kind": "listed"}, 1e-12, ["ddp", "fsdp", "hsdp"]),
    "one": ({"kind": "one"}, 1e-6, ON_TWO),
    "one-with-two-backwards": (
        {"kind": "one", "model": {"backwards": 2}, "clip_grad_norm": None},
        1e-6,
        ON_TWO,
    ),
}
REFUSED = {f"refused-{name}": GAN_64 | {"strategy": name, "precision": "32"} for name in ON_TWO[2:]} | {
    "refused-accumulate": GAN_64 | {"strategy": "ddp", "accumulate": 2},
    "refused-parameters": {"kind": "bare", "strategy": "fsdp"},
    "refused-global-batch": GAN_64 | {"strategy": "ddp", "global_batch_size": 16},
}
SLOW = GAN_64 | {"model": {"every": 2}, "strategy": "ddp"}
CLOSURE = {"kind": "one", "model": {"closure": True}, "clip_grad_norm": None, "precision": "64"}
RESUMED = {
    "whole": SLOW,
    "part": SLOW | {"max_epochs": 1, "save": 3},
    "resumed": SLOW | {"resume": "part/1/checkpoints/step-00000003"},
}


PAIRS = [(layout, kind) for layout in [*ON_TWO, "hsdp"] for kind in KINDS if layout in KINDS[kind][2]]
USUAL = covering(PAIRS, each=1)


def cases(pairs: list[tuple[str, str]]) -> dict[str, dict]:
    """What is trained under some strategies, by name."""
    return {f"{kind}-{layout}": KINDS[kind][0] | {"strategy": layout} for layout, kind in pairs}


def cases_of(devices: int, pairs: list[tuple[str, str]]) -> dict[str, dict]:
    """All that so many devices train."""
    if devices == 1:
        return cases([("single", kind) for kind in KINDS]) | {"closure": CLOSURE}
    found = cases([pair for pair in pairs if (pair[0] == "hsdp") == (devices == 4)])
    if devices == 4:
        return found
    found |= {"watched": {"kind": "watched", "strategy": "ddp"}, "closure": CLOSURE | {"strategy": "ddp"}}
    return found | REFUSED | RESUMED


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory):
    """The folder in which a number of ranks trained all its cases, in one job."""
    folders: dict[int, Path] = {}

    def on(devices: int) -> Path:
        if devices not in folders:
            folders[devices] = tmp_path_factory.mktemp(f"manual-{devices}")
            pairs = PAIRS if request.config.getoption("--soak") else USUAL
            folder, todo = folders[devices], json.dumps(cases_of(devices, pairs))
            run_ranks(JOB, devices, devices, folder, todo, folder=folder, seconds=SECONDS)
        return folders[devices]

    return on


def tensors(run: Run) -> dict[str, torch.Tensor]:
    """Weights and optimizer state. Gradients are kept too, but not all of them are anybody's any more."""
    found = stored_tensors(run.latest)
    return {name: value for name, value in found.items() if not name.startswith("grad.")}


def notes(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-[0-9].json"))]


@pytest.mark.parametrize(("layout", "kind"), soaked(PAIRS, USUAL))
def test_equals_one_device(trained, layout, kind):
    tolerance = KINDS[kind][1]
    one = Run(trained(1) / f"{kind}-single" / "1")
    many = Run(trained(4 if layout == "hsdp" else 2) / f"{kind}-{layout}" / "1")
    expected, found = tensors(one), tensors(many)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert len(one.rows) == len(many.rows) > 10
    for row, other in zip(one.rows, many.rows, strict=True):
        assert row.keys() == other.keys()
        for name in row.keys() - {"time", "perf/samples_per_second"}:
            assert math.isclose(row[name], other[name], rel_tol=1e-5, abs_tol=tolerance * 10), name


def test_the_cases_are_what_they_say(trained):
    """Clipping bites, the schedule moves, weights move: else the comparison above means little."""
    one = trained(1)
    finals = {kind: tensors(Run(one / f"{kind}-single" / "1")) for kind in KINDS if kind.startswith("gan")}
    weights = [found["model.critic.0.weight"] for found in finals.values()]
    for index, weight in enumerate(weights):
        assert all((weight - other).abs().max() > 1e-4 for other in weights[:index])
    rates = Run(one / "gan-single" / "1").metrics["lr/SGD-1"].values
    assert rates[-1] < rates[0] / 2


def test_gradients_are_the_averaged_ones_behind_a_backward(trained):
    for found in notes(trained(2), "watched"):
        assert found["behind_backward"] == [True]
        assert found["before_update"] == [True]
        assert found["hooks"] == 0


def test_the_averaged_gradients_are_clipped(trained):
    (before, after), *_ = [found["norms"] for found in notes(trained(2), "watched")]
    assert before > 0.2
    assert after == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_on_every_rank(trained, name):
    found = notes(trained(2), name)
    expected = {
        "refused-accumulate": "accumulate is not possible with manual optimization",
        "refused-global-batch": "manual optimization",
        "refused-parameters": "are in none that has a forward\n  got: scales.0",
    }.get(name, "takes one optimizer")
    assert len(found) == 2
    assert all(expected in one["error"] for one in found)


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused_or_right(trained):
    """Its closure's gradients are one rank's own: weights must not drift apart unseen."""
    errors = [found.get("error") for found in notes(trained(2), "closure")]
    assert len(set(errors)) == 1
    if errors == [None, None]:
        one, many = (tensors(Run(trained(devices) / "closure" / "1")) for devices in (1, 2))
        for name, value in one.items():
            torch.testing.assert_close(many[name], value, rtol=0, atol=1e-9)


def test_gradients_on_their_way_are_every_ranks_own_in_a_checkpoint(trained):
    """Saved between two updates: what rank 1 has gathered so far is not what rank 0 has."""
    whole, resumed = (tensors(Run(trained(2) / name / "1")) for name in ("whole", "resumed"))
    for name, value in whole.items():
        torch.testing.assert_close(
            resumed[name], value, rtol=0, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
