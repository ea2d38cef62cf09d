"""A run is a function of code, data, seed and global batch: ranks and micro-batches only share it out."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from torchmetrics.classification import MulticlassAccuracy

from paceline import Run

pytestmark = pytest.mark.launch  # for its length
JOB = Path(__file__).with_name("grid_job.py")
SECONDS = 120
SAMPLES, GLOBAL, TAIL, EPOCHS = 232, 48, 40, 3
TINY = [1, 2]  # fewer samples than three ranks, or two
SAMPLERS = ["weighted", "subset", "own", "hidden", "distributed", "mixture"]
PRECISIONS = {"64": 1e-12, "32": 1e-6}
# Ranks and micro-batch of a layout; at 100 nothing divides, and the loader's batch is above the global one.
LAYOUTS = [(1, 4), (1, 8), (1, 100), (2, 4), (2, 8), (3, 4), (3, 8), (3, 100)]
EVERY = [(*layout, precision) for precision in PRECISIONS for layout in LAYOUTS]
# Each number of ranks, each micro-batch, both precisions.
USUAL = [(1, 4, "64"), (1, 100, "32"), (2, 8, "64"), (2, 4, "32"), (3, 100, "64"), (3, 8, "32")]
LOGGED = [one[:2] for one in USUAL if one[2] == "64"]
LONELY = [(2, "adamw"), (3, "sgd")]
SAMPLED = [(2, "weighted"), (3, "subset"), (2, "own"), (3, "hidden"), (2, "distributed"), (3, "mixture")]
ON_RANKS = [2, 3]
ALL_LONELY = [(world, optimizer) for world in ON_RANKS for optimizer in ("sgd", "adamw")]
ALL_SAMPLED = [(world, sampler) for world in ON_RANKS for sampler in SAMPLERS]


def cases(world: int, soak: bool) -> dict[str, dict]:
    """What is trained on so many ranks, by name; without ``soak`` what the usual tests look at."""
    found: dict[str, dict] = {}
    for precision in PRECISIONS:
        for ranks, micro in [*LAYOUTS, (1, GLOBAL)]:
            if ranks == world and (soak or (ranks, micro, precision) in [*USUAL, (1, GLOBAL, precision)]):
                found[f"{precision}-{micro}"] = {
                    "precision": precision,
                    "micro": micro,
                    "global_batch_size": GLOBAL,
                }
    # An epoch's last step is one sample: all other ranks have none.
    for optimizer in ("sgd", "adamw"):
        if not (soak or world == 1 or (world, optimizer) in LONELY):
            continue
        found[f"lonely-{optimizer}"] = {
            "micro": GLOBAL // world // 2,
            "samples": 4 * GLOBAL + 1,
            "optimizer": optimizer,
            "global_batch_size": GLOBAL,
            "clip_grad_norm": 0.5,
        }
    for samples in TINY:
        found[f"tiny-{samples}"] = {"micro": 4, "samples": samples, "global_batch_size": GLOBAL}
    for sampler in SAMPLERS:
        if not (soak or world == 1 or (world, sampler) in SAMPLED):
            continue
        found[sampler] = {
            "micro": 12 // world // 2,
            "samples": 100,
            "epochs": 2,
            "sampler": sampler,
            "global_batch_size": 12,
        }
    found["buckets"] = {"micro": 0, "samples": 100, "epochs": 2, "sampler": "buckets"}
    if world == 1:
        found["buckets-2"] = found["buckets"] | {"accumulate": 2}
        found["buckets-3"] = found["buckets"] | {"accumulate": 3}
    if world == 2:
        found["workers"] = found["64-8"] | {"workers": 2}
    return found


class Job:
    """What the job of so many ranks wrote, and how it ended."""

    def __init__(self, folder: Path, world: int, soak: bool):
        self.folder, self.world = folder, world
        todo = cases(world, soak) if world < 4 else {}
        options = {"folder": folder, "seconds": SECONDS, "check": False}
        self.outcome = run_ranks(JOB, world, world, folder, json.dumps(todo), **options)

    def notes(self, name: str) -> list[dict]:
        """What each rank noted."""
        assert self.outcome.codes == [0] * self.world, self.outcome.output
        return [json.loads((self.folder / f"{name}-{rank}.json").read_text()) for rank in range(self.world)]

    def steps(self, name: str) -> list[list[list[int]]]:
        """Step by step, the samples of each micro-batch, in the order of the data."""
        found = []
        for ranks in zip(*(rank["steps"] for rank in self.notes(name)), strict=True):
            turns = max(map(len, ranks))
            found.append([rank[turn] for turn in range(turns) for rank in ranks if turn < len(rank)])
        return found


@pytest.fixture(scope="session")
def grid(request, tmp_path_factory):
    """The job of so many ranks; each is run once."""
    jobs: dict[int, Job] = {}
    soak = request.config.getoption("--soak")

    def of(world: int) -> Job:
        if world not in jobs:
            jobs[world] = Job(tmp_path_factory.mktemp(f"grid-{world}"), world, soak)
        return jobs[world]

    return of


def flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def in_order(steps: list[list[list[int]]]) -> list[list[int]]:
    return [flat(step) for step in steps]


def same_run(one: tuple[Job, str], other: tuple[Job, str], tolerance: float) -> None:
    """Both runs read the same samples in each step, in the same order, and have the same numbers."""
    assert in_order(other[0].steps(other[1])) == in_order(one[0].steps(one[1]))
    same_numbers(one, other, tolerance)


def same_numbers(one: tuple[Job, str], other: tuple[Job, str], tolerance: float) -> None:
    (expected,), everyone = one[0].notes(one[1]), other[0].notes(other[1])
    for found in everyone:
        assert found["rows"] == everyone[0]["rows"]  # bit for bit the same on all ranks
        assert found["weights"] == everyone[0]["weights"]
    found = everyone[0]
    assert len(found["rows"]) == len(expected["rows"]) > 0
    for number, (left, right) in enumerate(zip(expected["rows"], found["rows"], strict=True)):
        assert {"train/loss", "train/indices"} <= left.keys() == right.keys()
        for name, value in left.items():
            assert math.isclose(right[name], value, rel_tol=tolerance), (number, name, right[name], value)
    assert {"train/loss_epoch", "train/indices_epoch"} <= found["rows"][-1].keys()
    expected, found = (torch.tensor(n["weights"], dtype=torch.float64) for n in (expected, found))
    assert 0.3 < expected.abs().max() < 3  # of the size of 1, so that the tolerance is a relative one
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.fault(22)
@pytest.mark.parametrize(("world", "micro", "precision"), soaked(EVERY, USUAL))
def test_any_layout_is_the_same_run(grid, world, micro, precision):
    one, tolerance = (grid(1), f"{precision}-{GLOBAL}"), PRECISIONS[precision]
    same_run(one, (grid(world), f"{precision}-{micro}"), tolerance)


ALONE = [(1, GLOBAL, precision) for precision in PRECISIONS]


@pytest.mark.parametrize(("world", "micro", "precision"), soaked([*EVERY, *ALONE], [*USUAL, *ALONE]))
def test_an_epoch_is_every_sample_once_in_full_steps_and_a_tail(grid, world, micro, precision):
    steps = grid(world).steps(f"{precision}-{micro}")
    length = SAMPLES // GLOBAL + 1
    assert len(steps) == EPOCHS * length
    orders = [flat(in_order(steps[i : i + length])) for i in range(0, len(steps), length)]
    for order in orders:
        assert sorted(order) == list(range(SAMPLES))
    assert len({tuple(order) for order in orders}) == EPOCHS
    sizes = [sum(map(len, step)) for step in steps]
    assert sizes == ([GLOBAL] * (length - 1) + [TAIL]) * EPOCHS
    for step, size in zip(steps, sizes, strict=True):
        lengths = [len(micro_batch) for micro_batch in step]
        assert max(lengths) <= micro
        assert max(lengths) - min(lengths) <= 1
        assert len(step) == world * -(-size // (micro * world))  # no more micro-batches than needed


@pytest.mark.parametrize(("world", "micro"), soaked(LAYOUTS, LOGGED))
def test_what_is_logged_is_what_was_read(grid, world, micro):
    job = grid(world)
    name = f"64-{micro}"
    sums = [float(sum(step)) for step in in_order(job.steps(name))]
    for found in job.notes(name):
        assert [row["train/indices"] for row in found["rows"]] == sums
        assert found["rows"][-1]["train/indices_epoch"] == sum(range(SAMPLES))
    written = Run(job.folder / "runs" / name / "1").metrics
    assert written["train/loss"].values[: len(sums)] == [r["train/loss"] for r in found["rows"]]
    assert len(written["train/loss_epoch"].values) == EPOCHS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_comparison_is_of_runs_that_train(grid, precision):
    """Losses go down, each epoch's noise is another one, and the two precisions differ."""
    (found,) = grid(1).notes(f"{precision}-{GLOBAL}")
    of_epochs = [found["rows"][5 * epoch - 1]["train/loss_epoch"] for epoch in (1, 2, 3)]
    assert of_epochs[2] < of_epochs[0] * 0.8
    assert len({row["train/loss"] for row in found["rows"]}) == len(found["rows"])
    other = grid(1).notes(f"{'32' if precision == '64' else '64'}-{GLOBAL}")[0]
    assert other["weights"] != found["weights"]


@pytest.mark.fault(22)
@pytest.mark.parametrize(("world", "optimizer"), soaked(ALL_LONELY, LONELY))
def test_a_last_step_of_one_sample_is_that_of_one_device(grid, world, optimizer):
    name = f"lonely-{optimizer}"
    steps = grid(world).steps(name)
    assert [sum(map(len, step)) for step in steps] == [GLOBAL, GLOBAL, GLOBAL, GLOBAL, 1] * EPOCHS
    assert [len(rank["steps"][4]) for rank in grid(world).notes(name)] == [1] + [0] * (world - 1)
    same_run((grid(1), name), (grid(world), name), 1e-12)


@pytest.mark.fault(22)
@pytest.mark.parametrize(("world", "samples"), [(2, 1), (3, 1), (3, 2)])
def test_fewer_samples_than_ranks_train_what_one_device_trains(grid, world, samples):
    name = f"tiny-{samples}"
    assert in_order(grid(world).steps(name))[0] in ([0], [0, 1], [1, 0])
    busy = [bool(rank["steps"][0]) for rank in grid(world).notes(name)]
    assert busy == [rank < samples for rank in range(world)]
    same_run((grid(1), name), (grid(world), name), 1e-12)


def test_loader_workers_change_nothing_on_two_ranks(grid):
    job = grid(2)
    assert job.notes("workers") == job.notes("64-8")


@pytest.mark.parametrize(("world", "sampler"), soaked(ALL_SAMPLED, SAMPLED))
def test_a_sampler_of_the_users_is_the_same_on_any_number_of_ranks(grid, sampler, world):
    same_run((grid(1), sampler), (grid(world), sampler), 1e-12)


OF_ONE = [(1, sampler) for sampler in SAMPLERS]


@pytest.mark.parametrize(("world", "sampler"), soaked([*OF_ONE, *ALL_SAMPLED], [*OF_ONE, *SAMPLED]))
def test_a_sampler_keeps_its_meaning(grid, world, sampler):
    order = flat(in_order(grid(world).steps(sampler)))
    epochs = order[: len(order) // 2], order[len(order) // 2 :]
    assert epochs[0] != epochs[1]
    for order in epochs:
        if sampler == "weighted":
            assert len(order) == 99
            assert all(index % 4 for index in order)
            assert len(set(order)) < 75  # with replacement
        elif sampler == "subset":
            assert sorted(order) == list(range(7, 100, 2))
        elif sampler == "own":
            assert len(set(order)) == len(order) == 50
        else:
            assert sorted(order) == list(range(100))  # and none twice to make it even


@pytest.mark.parametrize("world", [2, 3])
def test_the_batches_of_a_batch_sampler_are_dealt_whole_and_once(grid, world):
    (alone,) = grid(1).notes("buckets")
    batches = [batch for (batch,) in alone["steps"]]  # a step on one device is one batch
    steps = grid(world).steps("buckets")
    assert [batch for step in steps for batch in step] == batches
    epoch = batches[: len(batches) // 2]
    assert sorted(flat(epoch)) == list(range(100))
    assert len({len(batch) for batch in epoch}) > 3
    assert all(index % 3 == batch[0] % 3 for batch in epoch for index in batch)
    assert len(epoch) % world  # a rank goes without one at the end
    same_run((grid(1), f"buckets-{world}"), (grid(world), "buckets"), 1e-12)


# -- evaluation ----------------------------------------------------------------------------------


def measured(samples: int) -> dict[str, float]:
    """What the job's module logs of so many samples, on paper."""
    values, kinds = [float(i * i) for i in range(samples)], torch.arange(samples) % 3
    by_class = MulticlassAccuracy(3)
    by_class.update(torch.full_like(kinds, 2), kinds)
    right = float((kinds == 2).sum())
    single = torch.tensor([sum(values), right]) / samples  # torchmetrics divides in single precision
    return {
        "mean": sum(values) / samples,
        "sum": sum(values),
        "count": float(samples),
        "least": 0.0,
        "most": values[-1],
        "accuracy": right / samples,
        "returned": sum(range(samples)) / samples,
        "metric_mean": float(single[0]),
        "metric_accuracy": float(single[1]),
        "metric_by_class": float(by_class.compute()),
    }


def named(prefix: str, samples: int) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in measured(samples).items()}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [1, 5, 11])
def test_every_sample_counts_once(grid, world, samples):
    for found in grid(world).notes("evaluate"):
        assert found[f"validate-{samples}"] == named("val", samples)
        # In threes a mean is rounded; what is summed is not.
        assert found[f"test-{samples}"] == pytest.approx(named("test", samples), rel=1e-15, abs=0)
        assert found[f"test-{samples}"]["test/count"] == samples


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [1, 5, 11])
def test_hooks_see_every_sample_once(grid, world, samples):
    ended = [found[f"ended-{samples}"] for found in grid(world).notes("evaluate")]
    assert sorted(flat(ended)) == list(range(samples))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_several_dataloaders_are_distinguished(grid, world):
    of_list = named("val/0", 5) | named("val/1", 11) | named("val/2", 1)
    of_dict = named("val/short", 1) | named("val/long", 11) | named("val/mid", 5)
    of_fit = named("val/short", 1) | named("val/long", 11)
    for found in grid(world).notes("evaluate"):
        assert found["list"] == pytest.approx(of_list, rel=1e-15, abs=0)
        assert found["dict"] == pytest.approx(of_dict, rel=1e-15, abs=0)
        assert found["fit"] == pytest.approx(of_fit, rel=1e-15, abs=0)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [1, 11, 103])
def test_predictions_are_in_the_order_of_the_data_on_every_rank(grid, world, samples):
    for found in grid(world).notes("evaluate"):
        assert found[f"predict-{samples}"] == list(range(samples))
        assert found[f"values-{samples}"] == [float(i * i) for i in range(samples)]
