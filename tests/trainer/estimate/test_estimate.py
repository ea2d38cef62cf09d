"""``estimate``: what it takes, what it returns, what it leaves alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics
from helpers.jobs import load_job
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

from paceline import CombinedLoader, DataModule, PacelineError, Trainer, TrainModule, tools
from paceline.strategies import FSDP, Distributed, Layout, ModelBytes, Single
from paceline.trainer.estimate.caching_allocator import CachingAllocator

pytestmark = pytest.mark.launch  # for its length

models = load_job(Path(__file__).with_name("models.py"))


class Net(TrainModule):
    def __init__(self, width: int = 64, reads: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.reads = reads

    def training_step(self, batch):
        hidden = batch[0]
        for block in self.blocks:
            hidden = block(hidden)
        loss = hidden.square().mean()
        if self.reads:
            self.log("loss", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def trainer_of(**more) -> Trainer:
    return Trainer(accelerator="cpu", progress=False, run_dir=None, **more)


def loader(size: int = 32) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(256, 64)), batch_size=size, shuffle=True)


@pytest.fixture(scope="module")
def eight():
    with torch.device("meta"):
        module = models.GPT(width=1024, layers=2)
        batch = (torch.zeros(16, 128, dtype=torch.long),)
    return tools.estimate(trainer_of(precision="bf16"), module, batch, devices=8, gpu="H100")


def test_it_allocates_nothing_and_leaves_all_as_it_is():
    module, data, trainer = Net(), loader(), trainer_of()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    tools.estimate(trainer, module, data)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert module._trainer is None
    assert trainer.global_step == 0


def test_frozen_parameters_have_no_gradients_and_no_state():
    module = models.Frozen(layers=1)
    trained, whole = (
        4 * sum(p.numel() for p in module.parameters() if p.requires_grad in kinds)
        for kinds in ((True,), (True, False))
    )
    held = tools.estimate(trainer_of(), module, module.batch(1)).row("single").bytes
    assert held.parameters == whole
    assert held.gradients <= trained < held.optimizer < 2.01 * trained


def test_a_batch_a_loader_and_a_datamodule_give_the_same():
    class Data(DataModule):
        def train_dataloader(self):
            return loader()

    trainer = trainer_of()
    found = [
        tools.estimate(trainer, Net(), (torch.randn(32, 64),)),
        tools.estimate(trainer, Net(), loader()),
        tools.estimate(trainer, Net(), datamodule=Data()),
        tools.estimate(trainer, Net(), [(torch.randn(32, 64),)]),
    ]
    assert len({one.rows for one in found}) == 1
    assert found[0].samples == 32


class Watched(torch.utils.data.Dataset):
    """Whether its samples are read in a worker."""

    def __init__(self):
        self.in_workers = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.in_workers.append(get_worker_info() is not None)
        return (torch.ones(64),)


class First(Net):
    """Trains on the batch of the first of several loaders."""

    def training_step(self, batch):
        return super().training_step(batch["a"] if isinstance(batch, dict) else batch[0])


@pytest.mark.parametrize(
    "form", [lambda one: one, lambda one: {"a": one}, lambda one: CombinedLoader([one])]
)
def test_the_first_batch_of_each_loader_is_read_without_workers(form):
    data = Watched()
    watched = DataLoader(data, 4, num_workers=2, timeout=30)
    module = Net() if form(0) == 0 else First()
    found = tools.estimate(Trainer(accelerator="cpu", run_dir=None), module, form(watched))
    assert found.samples == 4
    assert data.in_workers == [False] * 4
    assert (watched.num_workers, watched.timeout) == (2, 30)


def test_a_model_too_large_for_this_machine_is_estimated():
    with torch.device("meta"):
        module = models.GPT(width=4096, layers=8, vocabulary=50_000)  # 2 billion parameters
        batch = (torch.zeros(2, 128, dtype=torch.long),)
    found = tools.estimate(trainer_of(), module, batch, devices=8, memory="16GiB")
    assert found.parameters > 2e9
    assert found.row("single").bytes.total > 4 * 4 * 2e9 * 0.9
    assert "single" not in found.fits
    assert found.recommended == "fsdp"


def test_the_decision_says_why_simpler_strategies_were_rejected(eight):
    assert eight.recommended == "ddp"
    single, ddp = eight.decision
    assert single == "single: rejected, it computes on one of 8 devices"
    assert ddp.startswith("ddp: recommended, it needs ")


def test_less_memory_moves_the_decision():
    module, batch = Net(512), (torch.randn(32, 512),)
    usual = tools.estimate(trainer_of(), module, batch, devices=8, memory="1TiB")
    order = ("ddp", "fsdp", "FSDP(cpu_offload=True)")
    for rejected, name in enumerate(order, 1):
        memory = int(usual.row(name).needed / usual.limit) + 1
        found = tools.estimate(trainer_of(), module, batch, devices=8, memory=memory)
        assert found.recommended == name, str(found)
        assert sum(": rejected, " in line for line in found.decision) == rejected
    none = tools.estimate(trainer_of(), module, batch, devices=8, memory="1MiB")
    assert (none.recommended, none.fits) == (None, ())
    assert none.decision[-1].startswith("none fits")


def test_accelerators_need_what_their_allocator_reserves(eight):
    row = eight.row("fsdp")
    assert row.needed == row.bytes.reserved > row.bytes.total
    here = tools.estimate(trainer_of(), Net(), loader()).row("single")
    assert here.needed == here.bytes.total


def test_the_table_names_its_model_and_assumptions(eight):
    text = str(eight)
    assert "Time: a model, no measurement. It assumes:" in text
    for word in ("989 TFLOP/s", "65%", "3350 GB/s", "450 GB/s", "hides 90%", "tokens/s", "MFU"):
        assert word in text


def test_the_result_is_plain_data_too(eight):
    found = json.loads(json.dumps(eight.to_dict()))
    assert found["recommended"] == "ddp"
    assert found["rows"][0]["bytes"]["total"] == eight.rows[0].bytes.total
    assert {row["strategy"] for row in found["rows"]} >= {"single", "ddp", "fsdp", "hsdp"}


def test_a_picture_is_drawn(eight, tmp_path):
    eight.draw(tmp_path / "new" / "memory.png")
    assert (tmp_path / "new" / "memory.png").read_bytes()[:4] == b"\x89PNG"


def test_recomputation_and_precision_are_seen():
    batch = models.GPT.batch()
    held = {
        name: tools.estimate(trainer_of(**settings), models.GPT(width=64, layers=2), batch)
        .row("single")
        .bytes
        for name, settings in {
            "plain": {},
            "again": {"strategy": Single(activation_checkpointing=True)},
            "bf16": {"precision": "bf16"},
            "bf16-true": {"precision": "bf16-true"},
        }.items()
    }
    assert held["again"].activations < held["plain"].activations
    assert held["bf16"].parameters == held["plain"].parameters
    assert held["bf16"].activations < held["plain"].activations
    assert held["bf16-true"].parameters == held["plain"].parameters / 2


def test_the_trainer_s_own_strategy_is_a_row(group_ends):
    own = FSDP(reshard_after_forward=False)
    found = tools.estimate(trainer_of(strategy=own), Net(), loader(), devices=2)
    usual = tools.estimate(trainer_of(), Net(), loader(), devices=2)
    assert found.rows[0].strategy == "fsdp"
    assert found.row("fsdp").bytes.gathered > usual.row("fsdp").bytes.gathered


def test_a_strategy_of_a_plugin_has_a_default():
    class Plugin(Distributed):
        name = "plugin"

    model, layout = ModelBytes.of(nn.Linear(10, 10)), Layout(4)
    assert Plugin().description.rank_bytes(model, layout).total == 16 * 110
    (collective,) = Plugin().description.collectives_of_step(model, layout)
    assert (collective.operation, collective.size) == ("all_reduce", 440)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices"),
        ({"memory": "much"}, "no number of bytes"),
        ({"gpu": "H999"}, "not in the table"),
        ({"assume": {"netwrok": 1e9}}, "did you mean: network"),
        ({"assume": {"network": 0}}, "cannot be used"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(PacelineError, match=message):
        tools.estimate(trainer_of(), Net(), loader(), **arguments)


def test_a_step_that_reads_a_value_is_an_error_that_says_so():
    with pytest.raises(PacelineError, match=r"without values(.|\n)*item"):
        tools.estimate(trainer_of(), Net(reads=True), loader())


def test_a_step_that_draws_leaves_no_trace():
    class Draws(Net):
        def training_step(self, batch):
            noise = random.random() + np.random.random() + torch.rand(1)
            return super().training_step([batch[0] * noise])

    module, data = Draws(), loader()
    states = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
    tools.estimate(trainer_of(), module, data)
    assert states == [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


def test_objects_of_torchmetrics_read_no_values_in_it():
    class Counts(Net):
        def __init__(self):
            super().__init__()
            self.mean = torchmetrics.MeanMetric()
            self.both = torchmetrics.MetricCollection(
                [torchmetrics.regression.MeanAbsoluteError(), torchmetrics.regression.MeanSquaredError()]
            )

        def training_step(self, batch):
            loss = super().training_step(batch)
            self.mean.update(loss)
            self.log("mean", self.mean)
            self.log_dict(self.both(batch[0], batch[0] + 1))
            self.both.update(batch[0], batch[0] + 1)
            self.log("error", self.both.compute()["MeanAbsoluteError"])
            return loss

    module = Counts()
    found = tools.estimate(trainer_of(), module, loader())
    assert found.row("single").needed == tools.estimate(trainer_of(), Net(), loader()).row("single").needed
    assert module.mean.update_count == 0


def test_there_must_be_a_batch():
    with pytest.raises(PacelineError, match="needs a batch"):
        tools.estimate(trainer_of(), Net())


def test_manual_optimization_is_refused():
    module = Net()
    module.automatic_optimization = False
    with pytest.raises(PacelineError, match="automatic optimization"):
        tools.estimate(trainer_of(), module, loader())


# -- the simulated allocator -----------------------------------------------------------------------

MIB = 2**20


def test_large_blocks_have_segments_of_their_own_and_are_used_again():
    allocator = CachingAllocator()
    first = allocator.take(30 * MIB)
    allocator.give_back(first)
    second = allocator.take(20 * MIB)
    assert (allocator.reserved, allocator.live) == (30 * MIB, 20 * MIB)
    allocator.take(10 * MIB)  # what was left of the first
    assert allocator.reserved == 30 * MIB
    allocator.give_back(second)
    allocator.take(30 * MIB)  # neighbours that are not free do not make room
    assert allocator.reserved == 60 * MIB
    assert allocator.fragments == 60 * MIB - 40 * MIB


def test_free_neighbours_are_merged():
    allocator = CachingAllocator()
    blocks = [allocator.take(4 * MIB) for _ in range(5)]
    for block in blocks[1::2] + blocks[::2]:
        allocator.give_back(block)
    allocator.take(20 * MIB)
    assert allocator.reserved == 20 * MIB
