"""Data that cannot be read: it is named, read again, or left out, and what is left is exact."""

import copy
import itertools
import json
import multiprocessing
import re
import traceback
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.loader_workers import wait_until_one_died
from helpers.pairwise import soaked
from helpers.ranks import run_cases
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from paceline import PacelineError
from paceline.trainer.data.workers import worker_tensors as by_value

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("loader_job.py")
job = load_job(JOB)
BAD = job.BAD


def printed(error):
    """All that is printed of an error."""
    return "".join(traceback.format_exception(error))


def fails(folder, loader, kind=Exception, **settings):
    """Train until it fails; no worker may be left."""
    module, trainer = job.start(folder, **settings)
    with pytest.raises(kind) as raised:
        trainer.fit(module, loader)
    assert multiprocessing.active_children() == []
    return raised.value, module, trainer


# -- it is named ---------------------------------------------------------------------------------


def loaders(kind, workers, how="raise"):
    data = job.Faulty([BAD], how)
    if kind == "a stream":
        return job.loader(job.Stream(data), workers, shuffle=False)
    if kind == "by the batch":
        data = job.ByBatch([BAD], how)
    if kind != "a batch sampler":
        return job.loader(data, workers, shuffle=False)
    sampler = BatchSampler(SequentialSampler(data), job.SIZE, False)
    ahead = {"prefetch_factor": 1} if workers else {}
    return DataLoader(data, batch_sampler=type("Own", (BatchSampler,), {})(sampler.sampler, 4, False),
                      num_workers=workers, **ahead)  # fmt: skip


KINDS = ["one by one", "by the batch", "a batch sampler", "a stream"]
READ = [(kind, workers) for kind in KINDS for workers in (0, 2)]


@pytest.mark.fault(21)
@pytest.mark.parametrize(("kind", "workers"), soaked(READ, [(KINDS[0], 0), *READ[1::2]]))
def test_a_sample_that_raises_is_named(tmp_path, kind, workers):
    error, module, trainer = fails(tmp_path, loaders(kind, workers), ValueError)
    text = printed(error)
    assert f"number {BAD} is broken" in text
    assert "in fail" in text  # the user's own line, which a worker sends as text
    assert len(module.seen) == trainer.global_step
    if kind != "a stream":
        assert trainer.global_step == 3
        # A loader reads one batch after the other, worker 0's first: the fourth one is worker 1's.
        where = r"dataset index(es)? 13|dataset indices 12, 13, 14, 15"
        assert re.search(rf"(?m)^(worker 1, )?while reading ({where})$", text)
        assert bool(re.search(rf"(?m)^worker 1, while reading ({where})$", text)) == bool(workers)
    elif workers:
        assert "DataLoader worker process" in text


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("how", "what"), [("kill", "was killed by SIGKILL"), ("exit", "ended with exit code 7")]
)
def test_a_worker_that_ends_is_named(tmp_path, how, what):
    error, module, trainer = fails(tmp_path, loaders("one by one", 2, how), RuntimeError)
    assert f"worker 1 {what}, while reading dataset index {BAD}" in printed(error)
    assert len(module.seen) == trainer.global_step == 3


@pytest.mark.fault(21)
def test_of_a_batch_sampler_the_worker_is_named(tmp_path):
    error, _, _ = fails(tmp_path, loaders("a batch sampler", 2, "kill"), RuntimeError)
    assert "worker 1 was killed by SIGKILL" in printed(error)


@pytest.mark.fault(21)
def test_of_a_stream_the_worker_is_named(tmp_path):
    error, _, _ = fails(tmp_path, loaders("a stream", 2, "kill"), RuntimeError)
    assert "was killed by SIGKILL" in printed(error)


def dies_during_a_step(tmp_path, ahead, long_step):
    """A worker is killed while a training_step takes its time."""
    begun = tmp_path / "begun"  # a worker that reads ahead may be at the bad sample before the first step
    data = job.Faulty([BAD], "kill", after=begun)
    module, trainer = job.start(tmp_path)
    died = []

    def wait(own):
        if own.seen[-1][0] == long_step:
            begun.touch()
            wait_until_one_died(workers=2)
            died.append(long_step)

    module.waits = wait
    with pytest.raises((RuntimeError, OSError, EOFError)) as raised:
        trainer.fit(module, job.loader(data, 2, shuffle=False, prefetch_factor=ahead))
    assert died == [long_step]
    return raised.value, module, trainer


@pytest.mark.fault(21)
def test_it_is_an_error_of_the_read_and_not_of_the_users_step(tmp_path):
    error, module, trainer = dies_during_a_step(tmp_path, 1, long_step=2)
    assert trainer.global_step == len(module.seen) == 3
    assert "training_step" not in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert f"worker 1 was killed by SIGKILL, while reading dataset index {BAD}" in printed(error)


@pytest.mark.fault(21)
def test_a_worker_that_dies_with_a_batch_still_to_fetch_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(by_value, "_TENSOR", 0)  # in shared memory, which is fetched from the worker
    error, _, trainer = dies_during_a_step(tmp_path, 2, long_step=1)
    assert trainer.global_step in (1, 3)  # what it had read may be lost with it
    assert "worker 1 was killed by SIGKILL" in printed(error)


@pytest.mark.fault(21)
def test_a_worker_that_dies_while_all_are_started_is_named(tmp_path, monkeypatch):
    reset = _MultiProcessingDataLoaderIter._reset

    def slowly(*args, **more):
        reset(*args, **more)
        wait_until_one_died(workers=2)  # the first read is a worker's last, and SIGCHLD comes now

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_reset", slowly)
    error, _, trainer = fails(tmp_path, job.loader(job.Faulty([0], "kill"), 2, shuffle=False), RuntimeError)
    assert trainer.global_step == 0
    assert "worker 0 was killed by SIGKILL, while reading dataset index 0" in printed(error)


# -- a resume reads it again ------------------------------------------------------------------------


HEALTHY = {}


def healthy(folder, **case):
    """A run with sound data; done once for all that are compared with it."""
    key = json.dumps(case, sort_keys=True)
    if key not in HEALTHY:
        HEALTHY[key] = job.train(folder / "healthy", {}, **case)
    return copy.deepcopy(HEALTHY[key])


@pytest.mark.fault(21)
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_resume_reads_that_batch_again(tmp_path, how):
    whole = healthy(tmp_path)
    _, first, stopped = fails(tmp_path, job.loader(job.Faulty([BAD], how), 2), saves=True)
    at = stopped.global_step
    assert 0 < at < 12
    second, trainer = job.start(tmp_path, saves=True)
    trainer.fit(second, job.loader(job.Faulty(), 2), resume="latest")
    assert [*first.seen, *second.seen] == whole["seen"]
    assert BAD in second.seen[0][1]
    assert job.weights(second) == whole["weights"]


# -- it is read again -------------------------------------------------------------------------------

RETRIED = {
    "a hiccup in this process": ("raise", {}, {}),
    "a hiccup": ("raise", {"workers": 2}, {}),
    "a hiccup of the last try": ("raise", {"workers": 1}, {"times": 3}),
    "a killed worker": ("kill", {"workers": 2}, {}),
    "a worker that ended": ("exit", {"workers": 2}, {}),
    "workers that live on": ("kill", {"workers": 2, "persistent_workers": True}, {}),
    "a hiccup of a worker that lives on": ("raise", {"workers": 2, "persistent_workers": True}, {}),
    "accumulation": ("raise", {"workers": 2}, {"accumulate": 2}),
    "accumulation and a killed worker": ("kill", {"workers": 2}, {"accumulate": 3}),
}


def by_turns(names):
    """Each of them with both ways to read; by default with one of the two."""
    every = [(name, by_batch) for name in names for by_batch in (False, True)]
    return soaked(every, [every[2 * number + number % 2] for number in range(len(names))])


@pytest.mark.fault(21)
@pytest.mark.parametrize(("name", "by_batch"), by_turns(RETRIED))
def test_read_again_it_is_as_if_nothing_had_happened(tmp_path, name, by_batch, capsys):
    how, loads, more = RETRIED[name]
    more = dict(more)
    times = more.pop("times", 1)
    data = {"bad": [BAD], "how": how, "times": times, "tries": str(tmp_path / "tries")}
    whole = healthy(tmp_path, by_batch=by_batch, **more)
    found = job.train(tmp_path, data, by_batch, loads, on_data_error="retry", **more)
    assert found.pop("counts") == {"left_out": 0, "repeated": times}
    assert whole.pop("counts") == {}
    assert found == whole
    assert f"retry {times}/3" in capsys.readouterr().out


POLICIES = {"retry": 3, "retry:1": 1}
REPEATED = [(how, n, policy) for how, n in (("raise", 0), ("raise", 2), ("kill", 2)) for policy in POLICIES]
USUALLY_REPEATED = [("raise", 0, "retry:1"), ("raise", 2, "retry"), ("kill", 2, "retry:1")]


@pytest.mark.fault(21)
@pytest.mark.parametrize(("how", "workers", "policy"), soaked(REPEATED, USUALLY_REPEATED))
def test_it_is_not_read_again_for_ever(tmp_path, policy, how, workers):
    tries = tmp_path / f"tries-{BAD}"
    data = job.Faulty([BAD], how, tries=str(tmp_path / "tries"))
    error, _, trainer = fails(
        tmp_path, job.loader(data, workers, shuffle=False), (ValueError, RuntimeError), on_data_error=policy
    )
    assert tries.stat().st_size == POLICIES[policy] + 1
    assert trainer.global_step == 3
    assert f"while reading dataset index {BAD}" in printed(error)
    assert how == "raise" or "was killed by SIGKILL" in printed(error)


@pytest.mark.fault(21)
def test_each_read_may_be_repeated_so_often(tmp_path):
    """Not all of them together: what worked again is forgiven."""
    data = {"bad": [2, 9, 17], "times": 1, "tries": str(tmp_path / "tries")}
    found = job.train(tmp_path, data, on_data_error="retry:1", loads={"shuffle": False})
    assert found["counts"]["repeated"] == 3


@pytest.mark.fault(21)
def test_repeats_are_counted_over_a_resume(tmp_path):
    data = {"bad": [BAD], "times": 1, "tries": str(tmp_path / "tries")}
    job.train(tmp_path, data, on_data_error="retry", max_steps=7, max_epochs=None, saves=True)
    module, trainer = job.start(tmp_path, on_data_error="retry", saves=True)
    trainer.fit(module, job.loader(job.Faulty()), resume="latest")
    assert module.seen[0][0] == 8
    assert trainer._fit.feed.state_dict() == {"left_out": 0, "repeated": 1}


# -- it is left out -----------------------------------------------------------------------------------


def by_hand(seen):
    """The weights that a loop of one's own comes to with the noted samples of each step.

    Args:
        seen: (step, samples, their numbers) of all micro-batches of all ranks.
    """
    module, _ = job.start(Path("unused"))
    optimizer = module.configure_optimizers()
    for _, group in itertools.groupby(sorted(seen, key=lambda one: one[0]), key=lambda one: one[0]):
        values = torch.tensor([v for one in group for v in one[2]], dtype=torch.float64)
        optimizer.zero_grad()
        F.mse_loss(module.line(values), values.sum(1, keepdim=True)).backward()
        optimizer.step()
    return job.weights(module)


def without(seen, bad):
    """What was noted, less some samples."""
    found = []
    for step, indices, values in seen:
        kept = [(i, v) for i, v in zip(indices, values, strict=True) if i not in bad]
        found += [[step, *map(list, zip(*kept, strict=True))]] if kept else []
    return found


LEFT_OUT = {
    "one": ([BAD], {}),
    "accumulation": ([BAD, 4], {"accumulate": 3}),
    "a global batch": ([BAD, 4, 5], {"global_batch_size": 6}),
    "the last step": ([BAD], {"accumulate": 4}),  # 24 samples: a step of 16, one of 8
}


@pytest.mark.fault(21)
@pytest.mark.parametrize(("name", "by_batch"), by_turns(LEFT_OUT))
def test_the_gradient_is_that_of_the_other_samples(tmp_path, name, by_batch):
    bad, settings = LEFT_OUT[name]
    whole = healthy(tmp_path, by_batch=by_batch, **settings)
    found = [
        job.train(
            tmp_path / str(workers), {"bad": bad}, by_batch, {"workers": workers}, on_data_error="skip",
            **settings,
        )
        for workers in (0, 1, 2)
    ]  # fmt: skip
    assert found[0]["seen"] == without(whole["seen"], bad)
    assert found[0]["weights"] == pytest.approx(by_hand(found[0]["seen"]), rel=1e-12, abs=1e-14)
    assert found[0]["weights"] != pytest.approx(whole["weights"], rel=1e-6)
    assert found[0]["counts"] == {"left_out": 2 * len(bad), "repeated": 0}
    assert found[0] == found[1] == found[2]


@pytest.mark.fault(21)
def test_under_skip_a_dead_worker_is_read_again(tmp_path):
    whole = healthy(tmp_path)
    data = {"bad": [BAD], "how": "kill", "times": 1, "tries": str(tmp_path / "tries")}
    found = job.train(tmp_path, data, loads={"workers": 2}, on_data_error="skip")
    assert found.pop("counts") == {"left_out": 0, "repeated": 1}
    assert whole.pop("counts") == {}
    assert found == whole


@pytest.mark.fault(21)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_validation_is_over_the_rest(tmp_path, workers):
    module, trainer = job.start(tmp_path)
    values = trainer.validate(module, job.loader(job.Faulty(), shuffle=False))
    good = without([[0, *one] for one in module.evaluated], [BAD, 2])
    rest = torch.tensor([v for one in good for v in one[2]], dtype=torch.float64)
    mean = F.mse_loss(module.line(rest), rest.sum(1, keepdim=True)).item()
    module, trainer = job.start(tmp_path, on_data_error="skip")
    skipped = trainer.validate(module, job.loader(job.Faulty([BAD, 2]), workers, shuffle=False))
    assert skipped == pytest.approx({"val/loss": mean}, rel=1e-12)
    assert skipped != pytest.approx(values, rel=1e-6)
    assert sum(len(one[0]) for one in module.evaluated) == job.COUNT - 2


@pytest.mark.fault(21)
@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_are_an_error(tmp_path, workers):
    data = job.Faulty([2, BAD, 20])
    error, _, trainer = fails(
        tmp_path, job.loader(data, workers, shuffle=False), PacelineError, on_data_error="skip:2"
    )
    assert trainer.global_step == 5
    assert "3 samples could not be read, and at most 2 may be skipped" in str(error)
    assert "dataset index 20: ValueError: number 20 is broken" in str(error)


@pytest.mark.fault(21)
def test_a_batch_without_any_sample_is_an_error(tmp_path):
    data = job.Faulty([8, 9, 10, 11])
    error, _, trainer = fails(
        tmp_path, job.loader(data, shuffle=False), PacelineError, on_data_error="skip"
    )
    assert trainer.global_step == 2
    assert "no sample of a batch can be read" in str(error)
    assert "dataset index 8: ValueError: number 8 is broken" in str(error)


@pytest.mark.fault(21)
def test_those_skipped_are_counted_over_a_resume(tmp_path):
    module, trainer = job.start(tmp_path, on_data_error="skip:1", max_steps=7, max_epochs=None, saves=True)
    data = job.loader(job.Faulty([BAD]), shuffle=False)
    trainer.fit(module, data)
    assert trainer._fit.feed.state_dict()["left_out"] == 1
    module, trainer = job.start(tmp_path, on_data_error="skip:1", saves=True)
    with pytest.raises(PacelineError, match="2 samples could not be read, and at most 1 may be skipped"):
        trainer.fit(module, data, resume="latest")
    assert trainer.global_step == 9


@pytest.mark.fault(21)
@pytest.mark.parametrize("workers", [0, 2])
def test_of_predictions_none_is_skipped(tmp_path, workers):
    module, trainer = job.start(tmp_path, on_data_error="skip")
    with pytest.raises(ValueError, match=f"number {BAD} is broken") as raised:
        trainer.predict(module, job.loader(job.Faulty([BAD]), workers, shuffle=False))
    assert f"while reading dataset index {BAD}" in printed(raised.value)
    data = job.Faulty([BAD], times=1, tries=str(tmp_path / "tries"))
    found = trainer.predict(module, job.loader(data, workers, shuffle=False))
    assert torch.cat(found).tolist() == list(range(job.COUNT))


class OwnIter(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("loader", "got"),
    [(OwnIter(job.Faulty(), 4), "OwnIter"), (DataLoader(job.Faulty(), None), "batch_size=None")],
)
def test_skip_is_refused_where_batches_are_not_made_of_samples(tmp_path, loader, got):
    error, module, _ = fails(tmp_path, loader, PacelineError, on_data_error="skip")
    assert 'on_data_error="skip" takes a DataLoader that collates samples' in str(error)
    assert got in str(error)
    assert module.seen == []


# -- on two ranks -----------------------------------------------------------------------------------

COMMON = {"tries": "tries"}
ONCE = {"bad": [BAD], "times": 1}
ON_RANKS = {
    "whole": {"data": COMMON},
    "hiccup": {"data": COMMON | ONCE, "on_data_error": "retry", "loads": {"workers": 1}},
    "killed": {"data": COMMON | ONCE | {"how": "kill"}, "on_data_error": "retry", "loads": {"workers": 2}},
    "whole accumulated": {"data": COMMON, "accumulate": 2},
    "killed accumulated": {
        "data": COMMON | ONCE | {"how": "kill"},
        "on_data_error": "retry",
        "accumulate": 2,
        "loads": {"workers": 1, "persistent_workers": True},
    },
    "left out": {"data": COMMON | {"bad": [BAD, 4]}, "on_data_error": "skip"},
    "left out by workers": {
        "data": COMMON | {"bad": [BAD, 4]},
        "on_data_error": "skip",
        "loads": {"workers": 2},
    },
    "left out accumulated": {
        "data": COMMON | {"bad": [BAD, 4]},
        "on_data_error": "skip",
        "accumulate": 2,
    },
}


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    return run_cases(JOB, tmp_path_factory.mktemp("ranks"), ON_RANKS, one_pair=True)


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("name", "whole"),
    [("hiccup", "whole"), ("killed", "whole"), ("killed accumulated", "whole accumulated")],
)
def test_on_two_ranks_a_repeated_read_changes_nothing(on_ranks, name, whole):
    for mine, its in zip(on_ranks[name], on_ranks[whole], strict=True):
        assert (mine["seen"], mine["weights"]) == (its["seen"], its["weights"])
    assert sum(rank["counts"].get("repeated", 0) for rank in on_ranks[name]) == 1


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("left out", "whole"),
        ("left out by workers", "whole"),
        ("left out accumulated", "whole accumulated"),
    ],
)
def test_on_two_ranks_the_gradient_is_that_of_the_other_samples(on_ranks, name, whole):
    for mine, its in zip(on_ranks[name], on_ranks[whole], strict=True):
        assert mine["seen"] == without(its["seen"], [BAD, 4])
    seen = [one for rank in on_ranks[name] for one in rank["seen"]]
    for rank in on_ranks[name]:
        assert rank["weights"] == pytest.approx(by_hand(seen), rel=1e-12, abs=1e-14)
    assert sum(rank["counts"].get("left_out", 0) for rank in on_ranks[name]) == 4
