"""What each sample counts in a step, whatever layout it is read in: the loop's own arithmetic.

A parameter has one number for each sample, and the loss is the mean of those in the batch: then a step's
gradient is what each sample counts. The ranks of a world run one after the other in this process: once for
what they tell each other, and again with what comes of it.
"""

from __future__ import annotations

import math
from copy import copy
from fractions import Fraction

import pytest
import torch
from helpers.feeds import ranks_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.callbacks.hooks import HookTable
from paceline.strategies import Collectives, Environment, Single
from paceline.strategies.base import parameters_of
from paceline.trainer.data.batch_plan import Layout
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.loops.context import RunContext, parts_of
from paceline.trainer.loops.fit_context import FitContext
from paceline.trainer.loops.manual_optimizer import ManualOptimization, ManualOptimizer
from paceline.trainer.loops.optimizer_step import OptimizerStep
from paceline.trainer.optimization import Optimization

thorough = settings(max_examples=30, deadline=None, database=None)
EXACT = 1e-13
MOST = 40


class Counting(TrainModule):
    """The loss is the mean of the samples' numbers: over samples, or over the tokens in them."""

    def __init__(self, tokens: list[int], returns: str):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(len(tokens), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(()))
        self.tokens = torch.tensor(tokens, dtype=torch.float64)
        self.offsets = torch.linspace(1, 2, len(tokens), dtype=torch.float64)
        self.returns = returns
        self.automatic_optimization = returns != "manual"
        self.gradients: list[torch.Tensor] = []

    def training_step(self, batch):
        self.seen += len(batch)
        self.log("samples", len(batch), reduce="sum")
        values = self.counts[batch] + self.offsets[batch]
        if self.returns == "weight":
            weight = self.tokens[batch]
            return {"loss": (values * weight).sum() / weight.sum().clamp(min=1), "weight": weight.sum()}
        if self.returns == "manual":
            self.manual_backward(values.mean())
            self.trainer.strategy.unscale(self.trainer.optimizers[0])
            self.gradients.append(self.counts.grad.clone())
            self.counts.grad = None
        return values.mean()

    def on_before_optimizer_step(self, trainer):
        self.gradients.append(self.counts.grad.clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Said(Collectives):
    """What a rank says, with what all have said so far; None where that is still to come.

    Attributes:
        words: What this one says: the weights of its steps.
    """

    def __init__(self, environment: Environment, reference: list, everyone: list[Rank] | None):
        super().__init__(environment)
        self.reference, self.everyone = reference, everyone
        self.words: list[float] = []

    def all_gather(self, value):
        if not self.reference:
            self.reference.append(value)  # rank 0 comes first
        return [self.reference[0]]

    def all_reduce_async(self, values, op="sum"):
        assert op == "sum"
        step = len(self.words)
        self.words.append(float(values))
        said = None if self.everyone is None else [rank.collectives.words[step] for rank in self.everyone]
        total = 1.0 if said is None else sum(said)
        return lambda: torch.tensor([total], dtype=torch.float64)


class Rank(Single):
    """One rank, with what all have computed so far; None where that is still to come.

    Attributes:
        raw: Its gradients where they would meet.
    """

    def __init__(self, reference: list, everyone: list[Rank] | None):
        super().__init__()
        self.reference, self.everyone = reference, everyone
        self.raw: list[torch.Tensor] = []

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.collectives = Said(environment, self.reference, self.everyone)

    def unscale(self, optimizer):
        (parameter,) = parameters_of(optimizer)
        step = len(self.raw)
        self.raw.append(parameter.grad.clone())
        if self.everyone is not None:
            parameter.grad = sum(rank.raw[step] for rank in self.everyone) / len(self.everyone)


class World:
    """A world of ranks over one order of samples.

    Attributes:
        steps: Step by step: what each sample counted, the logged loss and samples, idle ranks.
    """

    def __init__(self, trainer: Trainer, tokens: list[int], returns: str, layout: dict):
        self.trainer, self.tokens, self.returns, self.layout = trainer, tokens, returns, layout
        reference: list[float] = []
        said = [self._rank(r, Rank(reference, None))[1] for r in range(layout["world_size"])]
        ranks = [self._rank(r, Rank(reference, said))[0] for r in range(layout["world_size"])]
        self.steps = [self._joined(step) for step in zip(*ranks, strict=True)]

    def _rank(self, number: int, strategy: Rank) -> tuple[list[dict], Rank]:
        module, trainer = Counting(self.tokens, self.returns), self.trainer
        strategy.attach(trainer.strategy.environment, trainer.strategy.precision)
        run = RunContext.begin(trainer.settings, strategy, [])
        layout = {name: self.layout[name] for name in ("accumulate", "global_batch")}
        loader = DataLoader(range(len(self.tokens)), self.layout["micro_batch"])
        feed = make_feed(loader, FeedSettings(ranks=ranks_of(number, self.layout["world_size"]), **layout))
        optimizer = module.configure_optimizers()
        ranks = copy(strategy.collectives)  # it says the same, as one of several
        ranks.environment = ranks_of(number, self.layout["world_size"]).environment
        context = FitContext(
            **parts_of(run) | {"ranks": ranks},
            name="fit",
            trainer=trainer,
            module=module,
            datamodule=None,
            hooks=HookTable(module, []),
            signals=None,
            watchdog=None,
            compilation=None,
            closing=None,
            feed=feed,
            optimization=Optimization([optimizer]),
            guard=None,
            manual=ManualOptimization([ManualOptimizer(optimizer, strategy)], strategy, None),
            checkpoints=None,
            validation=None,
            replicas=None,
            trained=None,
        )
        trainer._run = trainer._fit = context
        vars(module).update(_trainer=trainer, _logger=context.logger)
        steps = OptimizerStep(context)
        step = steps.automatic if module.automatic_optimization else steps.manual
        store = context.logger.train
        found = []
        for batches, sizes, total, _ in feed.steps(0):
            step(batches, sizes, total)
            window = {name: part for name, (part, _) in store.own_state().items()}
            loss, samples = window["train/loss"][1:3], window.get("train/samples", (0, 0))[1]
            store.close_window()
            found.append({"counts": module.gradients[-1], "loss": loss, "samples": samples, "sizes": sizes})
        assert len(module.gradients) == len(found)
        assert int(module.seen) == sum(size for step in found for size in step["sizes"])
        return found, strategy

    @staticmethod
    def _joined(ranks: tuple[dict, ...]) -> dict:
        total, weight = (sum(rank["loss"][i] for rank in ranks) for i in (0, 1))
        assert all(torch.equal(rank["counts"], ranks[0]["counts"]) for rank in ranks)
        return {
            "counts": ranks[0]["counts"],
            "loss": total / weight if weight else None,
            "samples": sum(rank["samples"] for rank in ranks),
            "ghosts": sum(size == 0 for rank in ranks for size in rank["sizes"]),
        }


@pytest.fixture(scope="module")
def trainer():
    return Trainer(
        accelerator="cpu", devices=1, precision="64", progress=False, loggers=False, checkpoint=False
    )


@st.composite
def layouts(draw: st.DrawFn, micro_batches: bool = True) -> dict:
    return {
        "micro_batch": draw(st.integers(1, 9)),
        "accumulate": draw(st.integers(1, 4)) if micro_batches else 1,
        "global_batch": draw(st.none() | st.integers(1, 30)) if micro_batches else None,
        "world_size": draw(st.integers(1, 5)),
    }


many_tokens = st.lists(st.integers(0, 200), min_size=1, max_size=MOST)


def expected(layout: dict, weights: list[int]) -> list[list[Fraction]]:
    """Step by step, what each sample is to count."""
    size, found = Layout(**layout).step_size, []
    for start in range(0, len(weights), size):
        step = range(start, min(start + size, len(weights)))
        total = sum(weights[i] for i in step)
        counts = [Fraction(w, total) if i in step and total else Fraction(0) for i, w in enumerate(weights)]
        found.append(counts)
    return found


def compare(world: World, weights: list[int]) -> None:
    offsets = torch.linspace(1, 2, len(weights), dtype=torch.float64).tolist()
    steps = expected(world.layout, weights)
    assert len(steps) == len(world.steps)
    for right, found in zip(steps, world.steps, strict=True):
        for index, (count, value) in enumerate(zip(found["counts"].tolist(), right, strict=True)):
            assert math.isclose(count, value, rel_tol=EXACT), (index, count, value)
        if found["loss"] is None:
            assert not any(right)
        else:
            mean = sum(float(value) * offset for value, offset in zip(right, offsets, strict=True))
            assert math.isclose(found["loss"], mean, rel_tol=EXACT)
    assert sum(found["samples"] for found in world.steps) == len(weights)


@thorough
@given(layouts(), st.integers(1, MOST))
def test_each_sample_of_a_step_counts_alike(trainer, layout, samples):
    compare(World(trainer, [1] * samples, "loss", layout), [1] * samples)


@thorough
@given(layouts(), many_tokens)
def test_each_token_of_a_step_counts_alike(trainer, layout, tokens):
    compare(World(trainer, tokens, "weight", layout), tokens)


@thorough
@given(layouts(micro_batches=False), st.integers(1, MOST))
def test_each_sample_counts_alike_under_manual_optimization(trainer, layout, samples):
    compare(World(trainer, [1] * samples, "manual", layout), [1] * samples)


@thorough
@given(layouts(), layouts(), st.integers(1, 30), many_tokens, st.sampled_from(["loss", "weight"]))
def test_two_layouts_of_one_global_batch_are_the_same_step(trainer, one, other, size, tokens, returns):
    one["global_batch"] = other["global_batch"] = size
    worlds = [World(trainer, tokens, returns, layout) for layout in (one, other)]
    for left, right in zip(*(world.steps for world in worlds), strict=True):
        torch.testing.assert_close(left["counts"], right["counts"], rtol=EXACT, atol=0)
        assert left["samples"] == right["samples"]
        assert (left["loss"] is None) == (right["loss"] is None)
        assert left["loss"] is None or math.isclose(left["loss"], right["loss"], rel_tol=EXACT)


@pytest.mark.parametrize("returns", ["loss", "weight"])
@pytest.mark.parametrize(("world", "samples"), [(3, 13), (5, 12), (4, 1)])
def test_a_rank_without_a_sample_counts_nothing(trainer, world, samples, returns):
    layout = {"micro_batch": 2, "accumulate": 1, "global_batch": None, "world_size": world}
    tokens = [3 + i for i in range(samples)]
    found = World(trainer, tokens, returns, layout)
    assert found.steps[-1]["ghosts"] > 0
    compare(found, tokens if returns == "weight" else [1] * samples)


def test_a_step_without_any_weight_has_no_gradient(trainer):
    layout = {"micro_batch": 2, "accumulate": 2, "global_batch": None, "world_size": 2}
    found = World(trainer, [0] * 8 + [5] * 3, "weight", layout)
    assert not found.steps[0]["counts"].any()
    compare(found, [0] * 8 + [5] * 3)


@pytest.mark.parametrize("scale", [1, 7, 10**6])
def test_the_unit_of_the_weights_does_not_matter(trainer, scale):
    layout = {"micro_batch": 2, "accumulate": 3, "global_batch": None, "world_size": 3}
    tokens = [1, 200, 3, 0, 77, 12, 9, 150, 2, 2, 31, 1, 1, 64, 5, 88, 7, 190, 23]
    compare(World(trainer, [scale * t for t in tokens], "weight", layout), tokens)
