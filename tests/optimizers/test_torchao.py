"""The 8-bit, 4-bit and float8 optimizers of torchao: exact resume, one checkpoint for all layouts.

Their step is compiled; here it is not, but for the test of inductor.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_state, stored_tensors
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_cases

from paceline import PacelineError, Run
from paceline.strategies.tensors.quantised_state import put_together, take_apart

torchao_optim = pytest.importorskip("torchao.optim")
JOB = Path(__file__).with_name("optimizers_job.py")
job = load_job(JOB)
WIDE = {"width": 128, "gates": 64}  # of which two ranks have 4096 values each: fewer are not quantised
AT = "parts/1/checkpoints/step-00000003"
OPTIMIZERS = ["AdamW8bit", "AdamW4bit", "AdamWFp8"]
PAIRS = [(s, o) for s in ("single", "ddp", "fsdp", "hsdp") for o in OPTIMIZERS]
USUAL = [
    ("single", "AdamW8bit"),
    ("single", "AdamW4bit"),
    ("ddp", "AdamW8bit"),
    ("fsdp", "AdamW8bit"),
    ("fsdp", "AdamW4bit"),
    ("hsdp", "AdamWFp8"),
]
ON_BOTH = [o for o in OPTIMIZERS if ("single", o) in USUAL and ("fsdp", o) in USUAL]
READS = [(r, w, o) for r, w in (("fsdp", "ddp"), ("ddp", "fsdp")) for o in OPTIMIZERS]
USUAL_READS = [one for one in READS if one[2] == "AdamW8bit"]
# 34 rows of 128 values are 17 blocks, of which each of two ranks has eight and a half.
CUT = {
    "ddp-cut": {"strategy": "ddp", "optimizer": "AdamW8bit", "width": 128, "gates": 34},
    "fsdp-cut": {
        "strategy": "fsdp",
        "optimizer": "AdamW8bit",
        "width": 128,
        "gates": 34,
        "source": f"ddp-cut/{AT}",
    },
}
REFUSED = {
    "uneven": {"strategy": "fsdp", "optimizer": "AdamW8bit", "width": 128, "gates": 63},
    "zero": {"strategy": "deepspeed_stage_2", "optimizer": "AdamW8bit"},
}


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory) -> tuple[Path, dict]:
    place, soak = tmp_path_factory.mktemp("torchao"), request.config.getoption("--soak")
    pairs = [pair for pair in (PAIRS if soak else USUAL) if pair[0] != "single"]
    cases = {f"{s}-{o}": {"strategy": s, "optimizer": o, **WIDE} for s, o in pairs}
    for reader, writer, optimizer in READS if soak else USUAL_READS:
        source = f"{writer}-{optimizer}/{AT}"
        cases[f"{reader}-of-{writer}-{optimizer}"] = {
            "strategy": reader,
            "optimizer": optimizer,
            "source": source,
            **WIDE,
        }
    found = run_cases(JOB, place, cases | CUT | REFUSED, one_pair=True)
    errors = {name: notes[0]["error"] for name, notes in found.items() if "error" in notes[0]}
    for optimizer in OPTIMIZERS:
        if not soak and ("single", optimizer) not in USUAL:
            continue
        folder = place / f"single-{optimizer}"
        folder.mkdir()
        errors |= {
            f"single-{optimizer}": note
            for note in job.on_rank(folder, "single", optimizer, devices=1, **WIDE).values()
        }
    return place, errors


def final(folder: Path, case: str, name: str = "parts") -> dict[str, torch.Tensor]:
    return stored_tensors(Run(folder / case / name / "1").latest)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert {n for n, value in expected.items() if bits(found[n]) != bits(value)} == set()
    assert {n for n, value in expected.items() if found[n].dtype != value.dtype} == set()


@pytest.mark.parametrize(("strategy", "optimizer"), soaked(PAIRS, USUAL))
def test_a_run_that_was_stopped_and_resumed_is_bit_identical(trained, strategy, optimizer):
    folder, errors = trained
    case = f"{strategy}-{optimizer}"
    assert case not in errors, errors[case]
    whole = final(folder, case, "whole")
    for name in ("blocks.0.weight", "gate.weight"):
        codes = whole[f"optim.0.{name}.exp_avg:codes"]
        assert codes.dtype in (torch.uint8, torch.float8_e4m3fn)
        assert codes.nbytes <= whole[f"model.{name}"].nbytes / 4
    assert whole["optim.0.embed.weight.exp_avg"].dtype == torch.float32
    same(final(folder, case), whole)


@pytest.mark.parametrize("optimizer", soaked(OPTIMIZERS, ON_BOTH))
def test_it_trains_on_two_ranks_as_on_one(trained, optimizer):
    """What is quantised differs by float32's rounding, which may take a code to the next one."""
    folder, _ = trained
    expected, found = (final(folder, f"{s}-{optimizer}", "whole") for s in ("single", "fsdp"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith("model."):
            assert (found[name] - value).abs().max() < 1e-3, name
    first = final(folder, f"single-{optimizer}")["model.blocks.0.weight"]
    torch.manual_seed(3)
    assert (job.Model(optimizer, **WIDE).blocks[0].weight - first).abs().max() > 0.01


@pytest.mark.parametrize(("reader", "writer", "optimizer"), soaked(READS, USUAL_READS))
def test_what_one_strategy_wrote_another_reads_bit_for_bit(trained, reader, writer, optimizer):
    folder, errors = trained
    case = f"{reader}-of-{writer}-{optimizer}"
    assert case not in errors, errors[case]
    written, read = folder / f"{writer}-{optimizer}" / AT, folder / case / "parts" / "read"
    same(stored_tensors(read), stored_tensors(written))
    states = [stored_state(path)["optimizers"]["0"]["quantised"] for path in (written, read)]
    assert states[0] == states[1]


def test_a_moment_whose_blocks_the_ranks_rows_would_cut_is_kept_in_plain_numbers(trained):
    folder, _ = trained
    written, read = stored_tensors(folder / "ddp-cut" / AT), stored_tensors(folder / "fsdp-cut/parts/read")
    name = "optim.0.gate.weight.exp_avg"
    assert read[name].dtype == torch.float32
    assert read[name].shape == (34, 128)
    codes, scale = written[f"{name}:codes"].flatten().long(), written[f"{name}:scale"]
    expected = written[f"{name}:qmap"][codes].view(-1, 256) * scale[:, None]
    assert torch.equal(read[name].view(-1, 256), expected)
    other = "optim.0.blocks.0.weight.exp_avg:codes"
    assert bits(read[other]) == bits(written[other])


def test_what_cannot_be_is_said_in_a_sentence(trained):
    errors = trained[1]
    assert set(errors) == set(REFUSED)
    assert "in few bits on some ranks only" in errors["uneven"]
    assert "gate.weight.exp_avg" in errors["uneven"]
    assert "strategy='fsdp' or 'ddp'" in errors["zero"]


def test_a_class_of_another_package_is_neither_written_nor_imported():
    class Foreign(torch.Tensor):
        def __tensor_flatten__(self):
            return [], []

    with pytest.raises(PacelineError, match="cannot hold this optimizer's state"):
        take_apart({"w.exp_avg": torch.zeros(2).as_subclass(Foreign)}, {})
    for path in ("os:system", "torchao.optim:AdamW8bit", "torchao.optim:nothing", "torch:Tensor"):
        described = {"w.exp_avg": {"class": path, "parts": [], "context": []}}
        with pytest.raises(PacelineError, match="a class of tensors that is none"):
            put_together({}, described, {"w": torch.zeros(2)})


@pytest.mark.parametrize("kind", ["8bit", "4bit", "Fp8"])
def test_a_moment_is_taken_apart_and_put_together(kind):
    parameter = torch.nn.Parameter(torch.zeros(64, 128))
    optimizer = getattr(torchao_optim, f"AdamW{kind}")([parameter])
    moment = optimizer._new_buffer(parameter, True)
    moment.copy_(torch.randn(64, 128, generator=torch.Generator().manual_seed(1)))
    parts, described = take_apart({"w.exp_avg": moment, "w.step": torch.tensor(1.0)}, {})
    assert all(type(part) is torch.Tensor for part in parts.values())
    found = put_together(parts, described, {"w": parameter})
    assert found.keys() == {"w.exp_avg", "w.step"}
    assert type(found["w.exp_avg"]) is type(moment)
    assert found["w.exp_avg"].shape == parameter.shape
    assert torch.equal(found["w.exp_avg"].dequantize(), moment.dequantize())


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_with_inductor_too(tmp_path, strategy):
    cases = {"one": {"strategy": strategy, "optimizer": "AdamW8bit", "eager": False, **WIDE}}
    found = run_cases(JOB, tmp_path, cases, one_pair=True)
    assert "error" not in found["one"][0], found["one"][0]
    same(final(tmp_path, "one"), final(tmp_path, "one", "whole"))
