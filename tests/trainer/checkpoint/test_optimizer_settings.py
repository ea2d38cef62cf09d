"""Optimizer settings that a script gives a resumed run otherwise than the run began with."""

import functools
import json
import re
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

from paceline import PacelineError
from paceline.trainer.checkpoint.files import format as files

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("settings_job.py")
job = load_job(JOB)
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3")
SHARDED = ("fsdp", "deepspeed_stage_3")  # whose optimizers are the furthest from the module's
SCHEDULES = list(job.SCHEDULES)
CONTINUED = [(schedule, stop) for stop in (2, 5) for schedule in SCHEDULES]
USUALLY = [one for one in CONTINUED if one[1] == 5 or one[0] == "sequential"]  # which changes after step 3
UNTOUCHED = ["none", "cosine", "ours", "sequential"]
HOW = 'allow="optimizer") takes those of now'


def lines_about(printed):
    return [line for line in printed.splitlines() if "optimizer settings" in line]


def resumed(folder, schedule="none", stop=5, before=None, allow=(), **now):
    """What a run that stops does when its script gives other settings, and where it ended."""
    job.fit(folder, job.Net(schedule, **(before or {})), stop)
    module = job.Net(schedule, **now)
    trainer = job.fit(folder, module, resume="auto", allow=allow)
    return module, trainer


@pytest.fixture(scope="module")
def whole_rates(tmp_path_factory):
    """The rates of a run with this schedule that never stopped; each is run once."""

    @functools.cache
    def of(schedule, lr=0.1):
        module = job.Net(schedule, lr=lr)
        job.fit(tmp_path_factory.mktemp("whole"), module)
        return module.rates

    return of


def test_the_checkpoint_s_settings_are_kept_and_both_values_are_named(tmp_path, capsys):
    module, trainer = resumed(tmp_path, lr=0.5, weight_decay=0.01)
    assert set(module.rates) == {0.1}
    assert job.settings_of(trainer) == {"momentum": 0.9, "weight_decay": 0}
    (line,) = lines_about(capsys.readouterr().out)
    assert line.startswith(
        "optimizer settings of the checkpoint are kept: SGD lr 0.1 in the checkpoint, 0.5 now"
    )
    assert "SGD weight_decay 0 in the checkpoint, 0.01 now" in line
    assert line.endswith(HOW)
    # The run is still the one that began with them: the next resume names them again.
    job.fit(tmp_path, job.Net(lr=0.5), resume="auto")
    assert "SGD lr 0.1 in the checkpoint, 0.5 now" in lines_about(capsys.readouterr().out)[0]


def test_the_script_s_settings_are_taken_where_that_is_allowed(tmp_path, capsys):
    module, trainer = resumed(tmp_path, allow="optimizer", lr=0.5, weight_decay=0.01, momentum=0.8)
    assert set(module.rates) == {0.5}
    assert job.settings_of(trainer) == {"momentum": 0.8, "weight_decay": 0.01}
    (line,) = lines_about(capsys.readouterr().out)
    assert line.startswith(
        "optimizer settings of configure_optimizers are taken: SGD lr 0.1 in the checkpoint"
    )
    # From here on they are the run's.
    job.fit(tmp_path, job.Net(lr=0.5, weight_decay=0.01, momentum=0.8), resume="auto")
    assert lines_about(capsys.readouterr().out) == []


def test_the_steps_are_those_of_the_new_rate(tmp_path):
    class Sets(job.Net):
        def on_fit_start(self, trainer):
            trainer.optimizers[0].param_groups[0]["lr"] = 0.5

    first, _ = resumed(tmp_path / "allowed", allow="optimizer", lr=0.5)
    job.fit(tmp_path / "set", job.Net(), 5)
    second = Sets()
    job.fit(tmp_path / "set", second, resume="auto")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("schedule", soaked(SCHEDULES, UNTOUCHED))
def test_a_schedule_is_no_difference(schedule, tmp_path, whole_rates, capsys):
    module, _ = resumed(tmp_path, schedule)
    assert lines_about(capsys.readouterr().out) == []
    assert module.rates == whole_rates(schedule)[5:]


@pytest.mark.parametrize(("schedule", "stop"), soaked(CONTINUED, USUALLY))
def test_a_schedule_continues_from_the_new_rate(schedule, stop, tmp_path, whole_rates, capsys):
    module, _ = resumed(tmp_path, schedule, stop, allow="optimizer", lr=0.02)
    assert "SGD lr 0." in lines_about(capsys.readouterr().out)[0]
    # With warm-up steps that end earlier or later, a rate is the same one but for rounding.
    assert module.rates == pytest.approx(whole_rates(schedule, lr=0.02)[stop:], rel=1e-9)


@pytest.mark.parametrize("allow", [(), "optimizer"])
def test_only_the_groups_that_differ_are_named(allow, tmp_path, capsys):
    class Groups(job.Net):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def configure_optimizers(self):
            groups = [
                {"params": self.net.parameters(), "lr": self.rate},
                {"params": self.head.parameters()},
            ]
            return torch.optim.AdamW(groups, lr=0.1)

    job.fit(tmp_path, Groups(0.01), 5)
    trainer = job.fit(tmp_path, Groups(0.03), resume="auto", allow=allow)
    assert [g["lr"] for g in trainer.optimizers[0].param_groups] == [0.03 if allow else 0.01, 0.1]
    (line,) = lines_about(capsys.readouterr().out)
    assert "AdamW group 0 lr 0.01 in the checkpoint, 0.03 now" in line
    assert line.count("lr") == 1


def without_them(folder):
    """Make a checkpoint one of an earlier version, which does not have the configured settings."""
    manifest = files.read_manifest(folder)
    state = json.loads((folder / files.STATE).read_text())
    for one in state["optimizers"].values():
        del one["configured"]
    (folder / files.STATE).write_text(json.dumps(state))
    manifest["files"][files.STATE] = files.entry_of(folder / files.STATE)
    (folder / files.MANIFEST).write_bytes(files.sealed(manifest))


@pytest.mark.parametrize(("schedule", "known"), [("none", False), ("step", True)])
def test_of_an_earlier_version_only_what_a_schedule_began_with_is_known(schedule, known, tmp_path, capsys):
    job.fit(tmp_path, job.Net(schedule), 5)
    without_them(tmp_path / "n/1/checkpoints/step-00000005")
    module = job.Net(schedule, lr=0.5, weight_decay=0.01)
    job.fit(tmp_path, module, 7, resume="auto")
    found = lines_about(capsys.readouterr().out)
    assert [("SGD lr 0.1 in the checkpoint, 0.5 now" in line) for line in found] == [True] * known
    assert not any("weight_decay" in line for line in found)
    assert module.rates[0] == (0.05 if schedule == "step" else 0.1)


@pytest.mark.parametrize("schedule", ["none", "step"])
def test_of_an_earlier_version_the_script_s_settings_can_be_taken(schedule, tmp_path):
    job.fit(tmp_path, job.Net(schedule), 5)
    without_them(tmp_path / "n/1/checkpoints/step-00000005")
    module = job.Net(schedule, lr=0.5, weight_decay=0.01)
    trainer = job.fit(tmp_path, module, resume="auto", allow="optimizer")
    assert module.rates[0] == pytest.approx(0.25 if schedule == "step" else 0.5)
    assert job.settings_of(trainer)["weight_decay"] == 0.01


def test_what_may_be_allowed_is_named(tmp_path):
    with pytest.raises(PacelineError, match="allowed: 'data' or 'optimizer'"):
        job.fit(tmp_path, job.Net(), resume="auto", allow="optimiser")


@pytest.fixture(scope="module")
def on_ranks(request, tmp_path_factory):
    """The folder of the strategies' runs, and by strategy what rank 0 printed."""
    folder = tmp_path_factory.mktemp("ranks")
    chosen = STRATEGIES if request.config.getoption("--soak") else SHARDED
    done = run_ranks(JOB, 2, folder, *chosen, folder=folder)
    parts = re.split(r"^strategy: (\w+)$", done.printed[0][0], flags=re.MULTILINE)[1:]
    return folder, dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, SHARDED))
def test_on_ranks(strategy, on_ranks):
    folder, printed = on_ranks
    # StepLR halves the rate every three steps; at four it was halved once.
    expected = {
        "": {"rates": [0.05, 0.05, 0.025, 0.025], "settings": {"momentum": 0.9, "weight_decay": 0}},
        "optimizer": {
            "rates": [0.01, 0.01, 0.005, 0.005],
            "settings": {"momentum": 0.9, "weight_decay": 0.01},
        },
    }
    for rank in range(2):
        found = json.loads((folder / strategy / f"found-{rank}.json").read_text())
        for allow, one in expected.items():
            assert found[allow]["rates"] == pytest.approx(one["rates"])
            assert found[allow]["settings"] == one["settings"]
    (kept, taken) = lines_about(printed[strategy])
    assert "SGD lr 0.1 in the checkpoint, 0.02 now" in kept
    assert "are taken" in taken
