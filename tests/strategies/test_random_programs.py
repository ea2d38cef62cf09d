"""Random programs end with the weights of one device, under each strategy and resumed on another one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("random_job.py")
job = load_job(JOB)


def expected_errors(program, world):
    """What a strategy may say of a program that it cannot follow; none where it has to."""
    found = []
    in_parts = program.reused and program.recomputed == "reentrant"
    if in_parts and world in ("fsdp", "deepspeed_stage_2", "deepspeed_stage_3"):
        found.append("takes a gradient once in a backward, and this one comes in parts")
    if world.startswith("deepspeed") and program.changes:
        found.append("fixes at the start which parameters are trained")
    return found


def says(run, errors):
    """Whether a run ended with one of these, or without an error where there are none."""
    return any(error in run["error"] for error in errors) if "error" in run else not errors


def is_close(found, there):
    found, there = torch.tensor(found, dtype=torch.float64), torch.tensor(there, dtype=torch.float64)
    return torch.allclose(found, there, rtol=1e-4, atol=2e-6)


def distance(run, other):
    """The largest difference of two runs' tensors, each by the largest element of the other run's."""
    pairs = [
        (
            torch.tensor(value, dtype=torch.float64),
            torch.tensor(other["weights"][name], dtype=torch.float64),
        )
        for name, value in run["weights"].items()
    ]
    return max(float((one - two).abs().max() / two.abs().max().clamp(min=1e-9)) for one, two in pairs)


class Programs:
    """The runs of some programs: whole on one device, whole on the second world, cut and resumed there."""

    def __init__(self, folder: Path, seeds: Iterable[int]) -> None:
        self._folder = folder
        programs = {seed: job.Program.of(seed) for seed in seeds}
        runs = [(f"alone {seed}", seed, "single", 2, None) for seed in seeds]
        runs += [(f"whole {seed}", seed, program.second, 2, None) for seed, program in programs.items()]
        runs += [(f"cut {seed}", seed, program.first, 1, None) for seed, program in programs.items()]
        self.found = self._run(folder, runs)
        latest = {seed: self.found[f"cut {seed}"].get("latest") for seed in seeds}
        again = [(f"cut {n}", n, programs[n].second, 2, path) for n, path in latest.items() if path]
        self.again = self._run(folder, again)

    @staticmethod
    def _run(folder: Path, runs: list[tuple]) -> dict[str, dict]:
        found, cases = {}, {}
        for name, seed, world, epochs, resume in runs:
            case = {"seed": seed, "world": world, "epochs": epochs, "name": name, "resume": resume}
            if world == "single":
                found[name] = job.run(folder, **case)
            else:
                cases[name + (" again" if resume else "")] = case
        ranks = run_cases(JOB, folder, cases, one_pair=True, seconds=60 + 10 * len(cases)) if cases else {}
        return found | {name.removesuffix(" again"): one[0] for name, one in ranks.items()}

    def _is_rounding(self, seed: int, run: dict, reference: dict) -> bool:
        """Whether a run is about as far from float64 as float32 on one device.

        A batch norm over a few samples divides by small variances, which multiplies what is rounded.
        """
        if job.Program.of(seed).norm != "batch":
            return False
        wide = job.run(self._folder, seed, "single", 2, f"wide {seed}", precision="64")
        return distance(run, wide) < 8 * distance(reference, wide) < 0.1

    def check(self, seed: int) -> None:
        """See that a program ends as it should, or with the error that says why it cannot."""
        program = job.Program.of(seed)
        whole, cut = self.found[f"whole {seed}"], self.found[f"cut {seed}"]
        reference = whole if program.dropout else self.found[f"alone {seed}"]
        for world, run in ((program.first, cut), (program.second, whole)):
            assert says(run, expected_errors(program, world)), (world, program, run)
        if "error" in cut:
            return
        again = self.again[f"cut {seed}"]
        assert says(again, expected_errors(program, program.second)), (program, again)
        if "error" in again:
            return
        for run in (whole, again):
            assert run["weights"].keys() == reference["weights"].keys()
            far = [n for n, v in run["weights"].items() if not is_close(v, reference["weights"][n])]
            assert not far or self._is_rounding(seed, run, reference), (far, program)
        if program.first == program.second:
            assert again["weights"] == whole["weights"], program


# The first ones, and one that found FSDP losing parts of gradients.
SEEDS = [*range(12), 193]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"), SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_ends_with_the_weights_of_one_device(programs, seed):
    programs.check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 200, 20))
def test_two_hundred_random_programs_end_with_the_weights_of_one_device(tmp_path, start):
    programs = Programs(tmp_path, range(start, start + 20))
    for seed in range(start, start + 20):
        programs.check(seed)


def test_a_seed_draws_every_part():
    programs = [job.Program.of(seed) for seed in range(200)]
    for field in vars(programs[0]):
        values = {getattr(program, field) for program in programs}
        assert len(values) > 1, field
    assert {(p.recomputed, p.reused) for p in programs} >= {("reentrant", True), ("strategy", True)}
