"""A step run again gives what it gave: samples, draws, losses, its error; and it leaves no trace."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.environment import clean_environment
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from torch.utils.data import DataLoader

from paceline import PacelineError, Trainer, TrainModule, seed_everything, tools
from paceline.callbacks import EarlyStopping
from paceline.trainer.rng import derive, seed_for_sample

JOB = Path(__file__).with_name("replay_job.py")
job = load_job(JOB)
SECONDS = 240
LINE = re.compile(r"paceline replay \S+ --step \d+")


def environment():
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return clean_environment(PATH=path)


def command(words, folder, typed=""):
    """Its exit code, and all it printed."""
    folder.mkdir(exist_ok=True, parents=True)
    if isinstance(words, list) and words[0] == "paceline":
        # The script that it starts is forked too.
        options = {"seconds": SECONDS, "check": False, "launches": True}
        done = run_ranks("paceline", 1, *words[1:], folder=folder, **options)
        return done.codes[0], done.stdout + done.stderr
    done = subprocess.run(
        words, shell=isinstance(words, str), cwd=folder, env=environment(), input=typed, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
    )  # fmt: skip
    return done.returncode, done.stdout


def everything_in(folder):
    """Each file below, with its time and what is in it."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return {str(p): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths}


# -- the promise -----------------------------------------------------------------------------------


def draw_at(epoch, position):
    """What the dataset draws first for that place of an epoch."""
    before = torch.get_rng_state()
    seed_for_sample(derive(0, epoch, position))
    drawn = torch.rand(4)[0].item()
    torch.set_rng_state(before)
    return drawn


POSITION = 36 * 4 + 3  # the last sample of step 37: on two ranks the second one's


def plant(folder, devices):
    """A run that fails at step 37 of epoch 2; then its own line, and some more: one typed into a shell."""
    folder.mkdir()
    options = json.dumps({"devices": devices, "poison": draw_at(1, POSITION)})
    done = run_ranks(JOB, devices, "planted", options, folder=folder, seconds=SECONDS, check=False)
    printed = done.stdout + done.stderr
    line = LINE.search(printed)
    assert line is not None, printed
    before = everything_in(folder)
    words = line[0].split()
    lines = {"planted": (words, ""), "healthy": ([*words[:3], "--step", "43"], "")}
    if devices == 1:
        lines["healthy"] = (shlex.join([*words[:3], "--step", "41", "--pdb"]), "p batch_idx\nw\nc\n")
        lines["early"] = (["paceline", "replay", "runs/first/1", "--step", "2"], "")
    found = {"run": (done.codes, printed), "line": line[0]}
    with ThreadPoolExecutor(2) as pool:
        started = {name: pool.submit(command, line, folder, typed) for name, (line, typed) in lines.items()}
        found |= {name: one.result() for name, one in started.items()}
    found["left"] = (before, everything_in(folder))
    seen = [json.loads((folder / f"seen-{rank}").read_text()) for rank in range(devices)]
    return found | {"seen": seen}


@pytest.fixture(scope="module")
def plants(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    with ThreadPoolExecutor(2) as pool:
        found = {n: pool.submit(plant, folder / str(n), n) for n in (1, 2)}
        return {n: one.result() for n, one in found.items()}


def culprit(plants, devices):
    return plants[devices]["seen"][devices - 1][-1][2][-1]


def place_of(printed):
    """Where an error was: (step, epoch, rank, its samples, the part of the model)."""
    where = re.search(
        r"where: step (\d+), epoch (\d+)(?:, rank (\d+))?, dataset ind(?:ex|ices) ([\d, ]+)", printed
    )
    part = re.search(r"nan first in the output of (\w+ \(\w+\))", printed)
    assert where is not None, printed
    assert part is not None, printed
    samples = [int(s) for s in where[4].split(",")]
    return int(where[1]), int(where[2]), int(where[3] or 0), samples, part[1]


@pytest.mark.parametrize("devices", [1, 2])
def test_an_error_names_the_step_that_was_planted(plants, devices):
    codes, printed = plants[devices]["run"]
    assert codes == [1] * devices
    # A step's number continues over the epochs: 40 of them are in the first one.
    place = place_of(printed)
    assert place == (77, 2, devices - 1, [culprit(plants, devices)], "root (Root)")
    assert plants[devices]["line"] == "paceline replay runs/second/1 --step 77"


@pytest.mark.parametrize("devices", [1, 2])
def test_the_line_in_the_message_shows_the_same_error(plants, devices):
    code, printed = plants[devices]["planted"]
    assert code == 1
    assert place_of(printed) == place_of(plants[devices]["run"][1])


@pytest.mark.parametrize(("devices", "step"), [(1, 41), (2, 43)])
def test_a_healthy_step_is_reported_with_the_losses_it_had(plants, devices, step):
    code, printed = plants[devices]["healthy"]
    assert code == 0, printed
    lines = re.findall(r"rank (\d+), micro-batch 0: loss (\S+), dataset indices ([\d, ]+)", printed)
    had = [one for seen in plants[devices]["seen"] for one in seen if one[0] == step]
    assert [int(rank) for rank, _, _ in lines] == list(range(devices))
    assert [[int(i) for i in indices.split(",")] for _, _, indices in lines] == [one[2] for one in had]
    assert [float(loss) for _, loss, _ in lines] == pytest.approx([one[3] for one in had], rel=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_nothing_is_written(plants, devices):
    before, after = plants[devices]["left"]
    assert any("checkpoints" in path for path in before)
    assert after == before


def test_the_debugger_stands_in_the_users_step(plants):
    code, printed = plants[1]["healthy"]
    assert code == 0, printed
    assert "-> loss = self.loss(batch)" in printed
    step_41 = next(one for one in plants[1]["seen"][0] if one[0] == 41)
    assert f"(Pdb) {step_41[1]}\n" in printed
    assert f"loss {step_41[3]:.6g}" in printed


def test_the_first_fit_of_a_script_is_replayed_from_its_beginning(plants):
    code, printed = plants[1]["early"]
    assert code == 0, printed
    assert "from its beginning" in printed
    assert "step 2 again, without its update" in printed


def test_a_recipe_is_replayed_by_its_own_command(soak, tmp_path):
    limits = ["preset=tiny", "data=digits", "trainer.max_steps=2", "trainer.log_every=1"]
    code, printed = command(["paceline", "fit", "vit-cifar10", *limits], tmp_path)
    assert code == 0, printed
    before = everything_in(tmp_path)
    code, printed = command("paceline replay runs/vit-cifar10/1 --step 2", tmp_path)
    assert code == 0, printed
    lines = (tmp_path / "runs/vit-cifar10/1/metrics.jsonl").read_text().splitlines()
    had = [
        one["train/loss"] for one in map(json.loads, lines) if one.get("step") == 2 and "train/loss" in one
    ]
    found = re.search(r"rank 0, micro-batch 0: loss (\S+), dataset indices", printed)
    assert float(found[1]) == pytest.approx(had[0], rel=1e-5)
    assert everything_in(tmp_path) == before


# -- on one device, in this process -----------------------------------------------------------------

SINGLE = {
    "plain": {},
    "workers": {"workers": 2},
    "accumulate": {"count": 20, "accumulate": 3},
    "global batch": {"count": 22, "global_batch_size": 7, "batch_size": 3},
    "clipped": {"clip_grad_norm": 0.1},
    "validation": {"validates": True, "validate_every": 3},
    "weights": {"weighs": True, "accumulate": 2},
    "early stopping": {"validates": True, "validate_every": 2, "stops": True},
    "manual": {"manual": True},
}


def again(case, step, folder):
    """That step of a run, by a trainer and a module made again."""
    case = dict(case)
    if case.pop("stops", False):
        case["callbacks"] = [EarlyStopping("val/loss", patience=1)]
    module, loaders, settings = job.parts(**case | {"strategy": "single"})
    found = tools.replay(Trainer(**settings), module, *loaders, step=step, run=folder)
    return found, module.seen


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("single"), {}
    for name, case in SINGLE.items():
        case = dict(case)
        if case.pop("stops", False):
            case["callbacks"] = [EarlyStopping("val/loss", patience=1)]
        found[name] = job.train(folder, name, **case)
    return found


WHICH = ["before a checkpoint", "after one", "the last one"]
PLACES = [(which, name) for which in WHICH for name in SINGLE]
USUAL_PLACES = [(WHICH[number % 3], name) for number, name in enumerate(SINGLE)]
USUAL_PLACES += [(which, "plain") for which in WHICH]


@pytest.mark.parametrize(("which", "name"), soaked(PLACES, USUAL_PLACES))
def test_losses_are_those_of_the_run_to_the_bit(single, name, which):
    run = single[name]
    step = {"before a checkpoint": 3, "after one": 5, "the last one": run["step"]}[which]
    assert step <= run["step"]
    before = everything_in(Path(run["run"]))
    found, seen = again(SINGLE[name], step, run["run"])
    had = [one for one in run["seen"] if one[0] == step]
    assert had
    assert [one for one in seen if one[0] == step] == had
    assert seen == [one for one in run["seen"] if seen[0][0] <= one[0] <= step]
    assert found.samples == [one[2] for one in had]
    assert (found.step, found.ranks) == (step, 1)
    assert found.gradient_norm > 0
    assert everything_in(Path(run["run"])) == before


@pytest.mark.parametrize("name", soaked(list(SINGLE), ["plain", "accumulate"]))
def test_the_losses_are_in_what_replay_returns(single, name):
    run = single[name]
    found, _ = again(SINGLE[name], 6, run["run"])
    assert found.losses == [one[3] for one in run["seen"] if one[0] == 6]


def test_a_trainer_replays_its_own_last_run(tmp_path):
    module, loaders, settings = job.parts(strategy="single", run_dir=tmp_path)
    trainer = Trainer(**settings)
    trainer.fit(module, *loaders)
    had = [one for one in module.seen if one[0] == 14]
    assert tools.replay(trainer, module, *loaders, step=14).losses == [had[0][3]]


def test_weights_that_are_drawn_again_differ_from_the_runs(single):
    run = single["plain"]["run"]
    _, loaders, settings = job.parts(strategy="single")
    seed_everything(6)
    with pytest.raises(PacelineError) as raised:
        tools.replay(Trainer(**settings), job.Net(), *loaders, step=4, run=run)
    assert "the script now builds other weights than those the run began with" in str(raised.value)
    assert "seed_everything(0)" in str(raised.value)
    found = tools.replay(Trainer(**settings), job.Net(), *loaders, step=5, run=run)  # after a checkpoint
    assert found.losses == [one[3] for one in single["plain"]["seen"] if one[0] == 5]


@pytest.mark.parametrize("step", [0, -1])
def test_there_is_no_step_before_the_first(single, step):
    with pytest.raises(PacelineError, match="step: got"):
        again({}, step, single["plain"]["run"])


def test_a_step_the_run_never_came_to(single):
    with pytest.raises(PacelineError, match="the run ends before step 25") as raised:
        again({}, 25, single["plain"]["run"])
    assert "24 steps" in str(raised.value)


def test_a_folder_that_is_no_run(tmp_path, single):
    with pytest.raises(PacelineError, match="there is no such step of a run"):
        again({}, 1, tmp_path)
    from paceline.tools.debug.started_command import started_by

    with pytest.raises(PacelineError, match="no run in this folder") as raised:
        started_by(tmp_path, 1)
    assert str(tmp_path) in str(raised.value)
    # What a test has started cannot be started again by its command.
    with pytest.raises(PacelineError, match="its command is not known"):
        started_by(Path(single["plain"]["run"]), 1)


class Late(TrainModule):
    """Fails at one step."""

    def __init__(self):
        super().__init__()
        seed_everything(0)
        self.line = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        if self.global_step == 6:
            raise ArithmeticError("of the user")
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_exception_comes_again(tmp_path):
    trainer = Trainer(run_dir=tmp_path, accelerator="cpu", strategy="single", progress=False)
    loader = DataLoader(torch.ones(10, 1), 1)
    with pytest.raises(ArithmeticError) as first:
        trainer.fit(Late(), loader)
    line = LINE.search(" ".join(first.value.__notes__))
    assert line is not None
    assert line[0].endswith("--step 7")
    with pytest.raises(ArithmeticError, match="of the user"):
        tools.replay(trainer, Late(), loader, step=7)
    assert tools.replay(trainer, Late(), loader, step=6).losses


# -- runs of two ranks, replayed on one device ---------------------------------------------------------

PAIRS = {
    "ddp": {"strategy": "ddp"},
    "ddp accumulate": {"strategy": "ddp", "count": 22, "accumulate": 2},
    "ddp global batch": {"strategy": "ddp", "count": 22, "global_batch_size": 7},
    "ddp weights": {"strategy": "ddp", "weighs": True, "accumulate": 2},
    "ddp clipped": {"strategy": "ddp", "clip_grad_norm": 0.1},
    "ddp validation": {"strategy": "ddp", "validates": True, "validate_every": 3},
    "ddp workers": {"strategy": "ddp", "workers": 1},
    "ddp manual": {"strategy": "ddp", "manual": True},
    "fsdp": {"strategy": "fsdp", "accumulate": 2},
    "deepspeed": {"strategy": "deepspeed_stage_2"},
    "deepspeed global batch": {"strategy": "deepspeed_stage_2", "count": 22, "global_batch_size": 7},
}
STEPS = [3, 4, 5, 8]  # 4: a short one, where the data does not come out even
EVERY = [(step, name) for step in STEPS for name in PAIRS if name != "ddp manual"]
USUAL = [(STEPS[number % 4], name) for number, name in enumerate(PAIRS)]
USUAL = [one for one in USUAL if one[1] not in ("ddp manual", "deepspeed")]
USUAL += [(4, name) for name in PAIRS if "global batch" in name] + [(step, "ddp") for step in STEPS]


@pytest.fixture(scope="module")
def pairs(request, tmp_path_factory):
    """By name of the case: what each of two ranks noted."""
    folder = tmp_path_factory.mktemp("pairs")
    soak = request.config.getoption("--soak")
    cases = {n: case for n, case in PAIRS.items() if soak or n != "deepspeed"}
    (folder / "cases").write_text(json.dumps(cases))
    run_ranks(JOB, 2, "cases", folder, folder / "cases", folder=folder, seconds=SECONDS)
    found = [json.loads((folder / f"found-{rank}").read_text()) for rank in "01"]
    return {name: [one[name] for one in found] for name in cases}


def simulated_ranks(ranks, step):
    """What two ranks noted of a step, in the order in which one device computes it."""
    noted = [[one for one in rank["seen"] if one[0] == step] for rank in ranks]
    return [one for round_ in zip(*noted, strict=True) for one in round_]


@pytest.mark.launch  # for its length
def test_manual_steps_of_several_ranks_are_refused(pairs):
    with pytest.raises(PacelineError, match="each rank steps by itself"):
        again(PAIRS["ddp manual"], 3, pairs["ddp manual"][0]["run"])


@pytest.mark.launch  # for its length
@pytest.mark.parametrize(("step", "name"), soaked(EVERY, USUAL))
def test_two_ranks_losses_come_again_on_one_device(pairs, name, step):
    ranks = pairs[name]
    step = min(step, ranks[0]["step"])
    found, seen = again(PAIRS[name], step, ranks[0]["run"])
    had = simulated_ranks(ranks, step)
    mine = [one for one in seen if one[0] == step]
    assert [one[1:3] for one in mine] == [one[1:3] for one in had]
    assert [one[3] for one in mine] == pytest.approx([one[3] for one in had], rel=1e-6)
    assert found.ranks == 2
    # A rank without a sample computes with another's, which is not reported.
    without = {"global batch": [4, 8]}.get(name.partition(" ")[2], [])
    assert found.samples == [[] if step in without and i else one[2] for i, one in enumerate(had)]
