"""Gradients that come in parts, or that a module works on: equal to one device's, or an error in step 1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.ranks import run_ranks

from paceline import Run

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("gradients_job.py")
SECONDS = 240
ZERO = [f"deepspeed_stage_{stage}" for stage in range(4)]
ON_TWO = ["ddp", "never", "always", "static", "fsdp", "tensor", *ZERO]
TWICE = {"kind": "blocks", "model": {"uses": 2, "reentrant": True}}
WAYS = [
    *("ahead", "retained", "clip", "parts", "sam", "later", "unasked", "sam_unasked", "torchs"),
    *("assigned", "uneven_unasked"),
]
KINDS = {
    "once-reentrant": {"kind": "blocks", "model": {"uses": 1, "reentrant": True}},
    "twice-reentrant": TWICE,
    "twice-reentrant-accumulated": TWICE | {"accumulate": 2},
    "twice-in-units": TWICE | {"kind": "units"},
    "once-in-units": {"kind": "units", "model": {"uses": 1, "reentrant": True}},
    "twice-otherwise": {"kind": "blocks", "model": {"uses": 2, "reentrant": False}},
    "two": {"kind": "two"},
    "two-accumulated": {"kind": "two", "accumulate": 2},
    "two-spare": {"kind": "two", "model": {"second": "spare"}},
    "two-apart": {"kind": "two", "model": {"second": "apart"}},
    "direct": {"kind": "direct"},
} | {way: {"kind": "manual", "model": {"way": way}} for way in WAYS}
_IN_PARTS = (
    "a gradient more than once within a backward.*got: block.0.bias, block.0.weight.*use_reentrant=False"
)
_MET = "met a gradient that does not come in one piece.*leave find_unused_parameters out"
_ONCE = "PacelineError: strategy '[a-z_0-3]+' takes one backward for each forward.*add the losses"
_ONCE_EACH = "takes a gradient once in a backward.*got: block.0.bias.*use_reentrant=False"
_NOT_SUPER = "backward did not call super.*fix: super...backward.loss. in the place of loss.backward"
_KEPT = "keeps gradients in its own shards: block.0.weight.grad cannot be read.*Trainer.clip_grad_norm"
_OWN_METHOD = "SAM.first_step.. may change weights, which only step.. can do.*leave strategy= out"
_NONE = "has no gradients to update with.*self.manual_backward.loss. in the place of loss.backward"
_STATIC = "a static graph excludes accumulation"
_TORCHS = "Error: "  # in torch's or DeepSpeed's words
PARTS = ["twice-reentrant", "twice-reentrant-accumulated", "twice-in-units"]
BACKWARDS = ["two", "two-accumulated", "two-spare", "two-apart"]
LOOKS = ["clip", "parts", "later"]
SAMS = ["sam", "sam_unasked"]
# What is an error in step 1; all else ends where one device does.
ERRORS = {
    "ddp": {"direct": _NOT_SUPER},
    "never": {"direct": _NOT_SUPER, "two-spare": _MET} | dict.fromkeys(PARTS, _IN_PARTS),
    "always": {"direct": _NOT_SUPER}
    | dict.fromkeys(["once-reentrant", "twice-reentrant", "twice-reentrant-accumulated"], _MET)
    | dict.fromkeys(["once-in-units", "twice-in-units"], _MET)
    | dict.fromkeys(["two-spare", "two-apart"], _MET),
    "static": {"direct": _NOT_SUPER, "twice-reentrant-accumulated": _STATIC, "two-accumulated": _STATIC},
    "fsdp": dict.fromkeys(BACKWARDS, _ONCE) | {"assigned": _TORCHS, "twice-in-units": _ONCE_EACH},
    "tensor": dict.fromkeys(BACKWARDS, _ONCE)
    | dict.fromkeys([*LOOKS, *SAMS, "assigned"], _TORCHS)
    | {"twice-in-units": _ONCE_EACH},
    ZERO[0]: {"direct": _TORCHS},
    ZERO[1]: dict.fromkeys(SAMS, _OWN_METHOD) | {"assigned": _TORCHS},
    ZERO[2]: dict.fromkeys(PARTS, _ONCE_EACH)
    | dict.fromkeys(LOOKS, _KEPT)
    | dict.fromkeys(SAMS, _OWN_METHOD)
    | dict.fromkeys(["torchs", "assigned"], _NONE),
    ZERO[3]: dict.fromkeys(PARTS, _ONCE_EACH)
    | dict.fromkeys(["two", "two-accumulated"], _ONCE)
    | dict.fromkeys(LOOKS, _KEPT)
    | dict.fromkeys(SAMS, _OWN_METHOD)
    | {"torchs": _NONE, "assigned": _TORCHS},
    "hsdp": dict.fromkeys(BACKWARDS, _ONCE) | {"assigned": _TORCHS, "twice-in-units": _ONCE_EACH},
}
DIFFER = {
    "weight": r"returned a 'weight' on some ranks only.*got: none on rank 0",
    "weight-later": r"its loss without a 'weight', and with one in the first step.*where: step 3.*rank 1",
    "groups": r"rank 1 has another optimizer 0 of.*got: SGD with groups of 6 parameters.*groups of 4, 2",
    "order": r"rank 1 has another optimizer 0 of configure_optimizers than rank 0",
}
IN_STEP_1 = [about for about in DIFFER if about != "weight-later"]
# Sharded strategies average in every backward, and ranks have to go backward alike.
SHARDED = ["fsdp", "tensor", "hsdp", *ZERO[2:]]
PAIRS = [
    (layout, kind)
    for layout in [*ON_TWO, "hsdp"]
    for kind in KINDS
    if kind != "uneven_unasked" or layout not in SHARDED
]
USUAL = {
    "ddp": [*KINDS],
    "never": ["twice-reentrant", "two"],
    "always": ["once-reentrant"],
    "static": ["twice-reentrant", "two-spare"],
    "fsdp": ["twice-reentrant", "twice-in-units", "once-in-units", "two-apart", "clip", "sam", "later"],
    "tensor": ["twice-reentrant", "two-apart", "clip"],
    ZERO[0]: ["clip", "sam_unasked"],
    ZERO[1]: ["later", "sam", "two"],
    ZERO[2]: ["twice-reentrant", "clip", "torchs"],
    ZERO[3]: ["twice-reentrant", "two", "two-spare", "retained", "sam", "parts"],
}


def is_usual(layout: str, kind: str) -> bool:
    return kind in USUAL.get(layout, ())


def pairs():
    for layout, kind in PAIRS:
        marks = () if is_usual(layout, kind) else pytest.mark.soak
        yield pytest.param(layout, kind, marks=marks, id=f"{layout}-{kind}")


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory):
    """The folder in which a number of ranks trained all its cases, in one job."""
    folders: dict[int, Path] = {}
    soak = request.config.getoption("--soak")

    def on(devices: int) -> Path:
        if devices in folders:
            return folders[devices]
        folder = folders[devices] = tmp_path_factory.mktemp(f"gradients-{devices}")
        if devices == 1:
            cases = {f"single-{kind}": case | {"strategy": "single"} for kind, case in KINDS.items()}
        else:
            chosen = [pair for pair in PAIRS if soak or is_usual(*pair)]
            cases = {
                f"{layout}-{kind}": KINDS[kind] | {"strategy": layout}
                for layout, kind in chosen
                if (layout == "hsdp") == (devices == 4)
            }
        if devices == 2:
            for way in ("uneven", "sent"):
                cases[way] = {"kind": "manual", "strategy": "ddp", "model": {"way": way}}
            for about in IN_STEP_1:
                cases[about] = {"kind": "apart", "strategy": "ddp", "model": {"about": about}}
        run_ranks(JOB, devices, devices, folder, json.dumps(cases), folder=folder, seconds=SECONDS)
        return folder

    return on


def notes(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-[0-9].json"))]


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    found = stored_tensors(Run(folder / name / "1").latest)
    return {key: value for key, value in found.items() if key.startswith("model.")}


@pytest.mark.fault(54)
@pytest.mark.parametrize(("layout", "kind"), list(pairs()))
def test_equals_one_device_or_is_an_error_in_step_1(trained, layout, kind):
    folder = trained(4 if layout == "hsdp" else 2)
    errors = [one.get("error", "").replace("\n", " ") for one in notes(folder, f"{layout}-{kind}")]
    assert len(errors) == (4 if layout == "hsdp" else 2)
    expected = ERRORS[layout].get(kind)
    if expected is not None:
        for error in errors:
            assert re.search(expected, error), error
        assert not list((folder / f"{layout}-{kind}" / "1").glob("checkpoints/step-*"))
        return
    assert not any(errors)
    found = weights(folder, f"{layout}-{kind}")
    tolerance = 1e-5 if layout in ZERO else 1e-12
    for name, value in weights(trained(1), f"single-{kind}").items():
        torch.testing.assert_close(
            found[name].to(value.dtype), value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_cases_are_what_they_say(trained):
    """Each way moves the weights in its own way: else equality means little."""
    last = [weights(trained(1), f"single-{kind}")["model.last.weight"] for kind in KINDS]
    first = weights(trained(1), "single-once-reentrant")["model.last.weight"]
    apart = {kind: float((one - first).abs().max()) for kind, one in zip(KINDS, last, strict=True)}
    for kind in ("twice-reentrant", "two", "clip", "sam", "later"):
        assert apart[kind] > 1e-3, kind


@pytest.mark.fault(54)
def test_ranks_that_go_backward_unlike_are_an_error_on_each(trained):
    found = notes(trained(2), "uneven")
    calls = "got: rank 0 calls optimizer.step(), rank 1 calls manual_backward()"
    assert len(found) == 2
    assert all(calls in one["error"] and "synchronise_gradients(False)" in one["error"] for one in found)


def test_only_gradients_that_were_changed_are_sent(trained):
    for one in notes(trained(2), "sent"):
        assert one["found"] == [6, 2, 0, 2, 2]


@pytest.mark.fault(55)
@pytest.mark.parametrize("about", IN_STEP_1)
def test_ranks_that_disagree_are_an_error_on_each(trained, about):
    found = [one["error"].replace("\n", " ") for one in notes(trained(2), about)]
    assert len(found) == 2
    assert all(re.search(DIFFER[about], error) for error in found), found


@pytest.mark.fault(55)
def test_a_rank_that_disagrees_later_ends_the_others_with_it(tmp_path):
    case = {"kind": "apart", "strategy": "ddp", "model": {"about": "weight-later"}, "ends": True}
    ended = run_ranks(
        JOB, 2, 2, tmp_path, json.dumps({"it": case}), folder=tmp_path, check=False, seconds=60
    )
    assert not ended.timed_out
    assert re.search(DIFFER["weight-later"], ended.stderr.replace("\n", " "))
