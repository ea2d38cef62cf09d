"""Random programs end with the weights of one device, under each strategy and resumed on another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_cases

JOB = Path(__file__).with_name("random_job.py")
job = load_job(JOB)


def expected_errors(program, world):
    """What a strategy may say of a program that it cannot follow; none where it has to."""
    found = []
    in_parts = program.reused and program.recomputed == "reentrant"
    if in_parts and world in ("deepspeed_stage_2", "deepspeed_stage_3"):
        found.append("takes a gradient once in a backward, and this one comes in parts")
    if world.startswith("deepspeed") and program.changes:
        found.append("fixes at the start which parameters are trained")
    return found


def says(run, errors):
    """Whether a run ended with one of these, or without an error where there are none."""
    return any(error in run["error"] for error in errors) if "error" in run else not errors


class Programs:
    """The runs of some programs: whole on one device, whole on the second world, cut and resumed there."""

    def __init__(self, folder: Path, seeds: range) -> None:
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
            for name, value in run["weights"].items():
                there = torch.tensor(reference["weights"][name], dtype=torch.float64)
                found = torch.tensor(value, dtype=torch.float64)
                torch.testing.assert_close(found, there, rtol=1e-4, atol=2e-6, msg=f"{name} of {program}")
        if program.first == program.second:
            assert again["weights"] == whole["weights"], program


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"), range(12))


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_ends_with_the_weights_of_one_device(twelve, seed):
    twelve.check(seed)


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
