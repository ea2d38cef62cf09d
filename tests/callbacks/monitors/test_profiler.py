"""Profiler: traces and a table of the steps in its window, and nothing of the others."""

import gzip
import json
import re
from contextlib import suppress

import pytest
import torch
from helpers.small_net import Net, data
from torch.autograd.profiler import record_function

from paceline import PacelineError, Trainer
from paceline.callbacks import Profiler


class Wide(Net):
    """A step's longest operation is a matrix product."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.wide, self.fails_at = torch.nn.Parameter(torch.ones(3, 256)), fails_at

    def training_step(self, batch):
        with record_function(f"step number {self.global_step + 1}"):
            if self.global_step + 1 == self.fails_at:
                raise ValueError("enough")
            product = batch[0] @ self.wide
            return torch.mm(product.T @ product, product.T).square().mean()


def fit(profile, module=None, **settings):
    usual = {
        "accelerator": "cpu",
        "progress": False,
        "loggers": False,
        "checkpoint": False,
        "max_epochs": 4,
    }
    trainer = Trainer(profile=profile, **(usual | settings))
    with suppress(ValueError):
        trainer.fit(module or Wide(), data())
    return trainer


def traces(trainer):
    """By file, the names of what it recorded."""
    found = {}
    for path in sorted((trainer.folder / "profile").iterdir()):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        found[path.name] = {event["name"]: event for event in events}
    return found


def steps_in(trace):
    return sorted(int(name.split()[-1]) for name in trace if name.startswith("step number"))


def table(trainer):
    lines = [line[9:] for line in (trainer.folder / "log.txt").read_text().splitlines()]
    starts = [n for n, line in enumerate(lines) if line.startswith("profile up to step")]
    row = re.compile(r" *[\d.]+% +[\d.]+ +\d+( +[\d.-]+)?  \S")
    return [[line for line in lines[n + 2 : n + 20] if row.match(line)] for n in starts]


def test_a_trace_and_a_table_of_the_window():
    trainer = fit(True)
    assert trainer.global_step == 12
    (name, trace), *others = traces(trainer).items()
    assert (name, others) == ("rank0-step00000009.json.gz", [])
    assert steps_in(trace) == [7, 8, 9]
    assert "aten::mm" in trace
    (rows,) = table(trainer)
    assert len(rows) == 10
    assert any(row.endswith("aten::mm") for row in rows)
    assert not any("ProfilerStep" in row for row in rows)
    shares = [float(row.split("%")[0]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5


def test_each_window_has_a_trace():
    trainer = fit(Profiler(wait=1, warmup=1, active=2, repeat=2))
    found = {name: steps_in(trace) for name, trace in traces(trainer).items()}
    assert found == {"rank0-step00000004.json.gz": [3, 4], "rank0-step00000008.json.gz": [7, 8]}
    assert len(table(trainer)) == 2


def test_a_second_fit_is_profiled_too():
    trainer = fit(Profiler(wait=1, active=1))
    trainer.fit(Wide(), data())
    assert set(traces(trainer)) == {"rank0-step00000003.json.gz"}


@pytest.mark.parametrize(
    ("end", "recorded"), [({"max_steps": 8}, [7, 8]), ({"module": 8}, [7, 8]), ({"max_steps": 6}, None)]
)
def test_a_run_that_ends_in_the_window_has_its_trace_until_there(end, recorded):
    fails_at = end.pop("module", None)
    trainer = fit(True, Wide(fails_at), **end)
    if recorded is None:  # ended in the warm-up
        assert not (trainer.folder / "profile").exists()
        return
    ((_, trace),) = traces(trainer).items()
    assert steps_in(trace) == recorded
    assert fit(True, Wide()).global_step == 12  # nothing of it is left


def test_without_a_folder_there_is_a_table_alone(capsys):
    fit(Profiler(wait=0, active=1), run_dir=None)
    printed = capsys.readouterr().out
    assert "profile up to step 2, by self cpu time\n" in printed
    assert "aten::mm" in printed


def test_what_is_recorded_may_be_chosen():
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    rich, plain = fit(Profiler(wait=1, active=1, **options)), fit(Profiler(wait=1, active=1), name="plain")
    ((_, more),), ((_, less),) = traces(rich).items(), traces(plain).items()
    assert more["aten::mm"]["args"]["Input Dims"]
    assert "Input Dims" not in less["aten::mm"].get("args", {})
    assert "[memory]" in more
    assert "[memory]" not in less
    assert any("training_step" in name for name in more)
    assert not any("training_step" in name for name in less)
    assert "self MB" in (rich.folder / "log.txt").read_text()
    assert "self MB" not in (plain.folder / "log.txt").read_text()


def test_all_arguments_that_are_not_right_are_in_one_error():
    with pytest.raises(PacelineError, match="Profiler: 4 invalid arguments"):
        Profiler(wait=-1, active=0, repeat=0, with_stack="yes")
