"""What only shows away from the CPU. The tests marked gpu are skipped where there is no accelerator."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import EMA, Callback, Checkpoint, Checks
from paceline.trainer.faults.nonfinite import Guard
from paceline.trainer.loops.optimizer_step import OptimizerStep
from paceline.trainer.metrics.store import MetricStore

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator"),
]


class Remote(torch.Tensor):
    """A tensor that says it is not on the CPU."""

    is_cpu = False


def remote(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype).as_subclass(Remote)


def test_device_values_wait_and_come_to_the_host_together(monkeypatch):
    store = MetricStore("train", print)
    copies = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: copies.append(len(tensors)) or stack(tensors))
    store.weight = 3
    store.log("a", remote(1.0))
    store.log("b", remote(2.0), weight=remote(5.0))
    store.weight = 1
    store.log("a", remote(5.0))
    store.log("b", remote(8.0), weight=remote(1.0))
    store.log("c", remote(4.0, torch.float64), reduce="max")
    assert not copies
    values = store.close_window()
    assert copies == [7]  # five values and two weights in one copy
    assert values == {"train/a": 2.0, "train/b": 3.0, "train/c": 4.0}
    assert store.close_epoch() == values
    assert store.close_window() == {}


def test_device_values_keep_their_doubles():
    store = MetricStore("val", print)
    store.log("x", remote(1 + 2**-40, torch.float64))
    assert store.close_epoch() == {"val/x": 1 + 2**-40}


def test_a_device_tensor_of_many_elements_is_refused():
    with pytest.raises(PacelineError, match=r"shape \(16, 10\)"):
        MetricStore("train", print).log("x", torch.zeros(16, 10).as_subclass(Remote))


class Classifier(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))

    def training_step(self, batch):
        loss = F.cross_entropy(self.net(batch["x"]), batch["y"])
        self.log("twice", 2 * loss)
        return loss

    def validation_step(self, batch):
        return F.cross_entropy(self.net(batch["x"]), batch["y"])

    def predict_step(self, batch):
        return self.net(batch["x"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    data = TensorDataset(x, x[:, :4].argmax(1))
    return DataLoader(data, 16, collate_fn=lambda rows: {"x": rows_of(rows, 0), "y": rows_of(rows, 1)})


def rows_of(rows, index):
    return torch.stack([row[index] for row in rows])


@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
@pytest.mark.parametrize("marker", [pytest.param(None, marks=gpu)])
def test_trains_evaluates_and_resumes_on_the_accelerator(precision, marker, tmp_path):
    def trainer(**limits):
        return Trainer(precision=precision, progress=False, run_dir=tmp_path, name="gpu", **limits)

    module = Classifier()
    first = trainer(max_epochs=3)
    run = first.fit(module, batches(), batches())
    assert module.device.type == torch.accelerator.current_accelerator().type
    losses = run.metrics["train/loss_epoch"].values
    assert losses[-1] < losses[0]
    assert first.metrics["train/twice_epoch"] == pytest.approx(2 * losses[-1], rel=1e-3)
    outputs = first.predict(module, batches())
    assert all(o.device.type == "cpu" for o in outputs)
    again = Classifier()
    trainer(max_epochs=4).fit(again, batches(), batches(), resume="latest")
    trainer(max_epochs=4).fit(module := Classifier(), batches(), batches())
    for mine, theirs in zip(again.parameters(), module.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


class Small(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator")
def test_a_background_checkpoint_holds_the_state_of_its_step(tmp_path):
    """The copies are queued before the next update; the thread waits for them."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(64, 8, generator=generator), torch.randint(0, 4, (64,), generator=generator)
    )
    runs = []
    for background in (False, True):
        trainer = Trainer(
            progress=False,
            max_steps=12,
            run_dir=tmp_path / str(background),
            callbacks=Checkpoint(1, keep=None, background=background),
        )
        runs.append(trainer.fit(Small(), DataLoader(data, 8)))
    for waited, found in zip(runs[0].checkpoints, runs[1].checkpoints, strict=True):
        for part in ("model-00001.safetensors", "optim-00001.safetensors"):
            expected, tensors = load_file(waited / part), load_file(found / part)
            assert expected.keys() == tensors.keys()
            assert all(torch.equal(tensors[name], value) for name, value in expected.items())


class Heavy(TrainModule):
    """Steps that take the device longer than the host; sees each batch after such work."""

    def __init__(self, width=1024):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(width, width)
        self.sums: list[torch.Tensor] = []

    def training_step(self, batch):
        x = batch[0]
        self.sums.append(x.double().sum().detach())
        out = self.net(x)
        for _ in range(20):
            out = torch.tanh(self.net(out))
        self.sums.append(x.double().sum().detach())  # still what it was
        return out.square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("marker", [pytest.param(None, marks=gpu)])
def test_batches_that_are_copied_aside_arrive_whole(pinned, workers, marker, tmp_path):
    x = torch.randn(64 * 256, 1024, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x), 256, num_workers=workers, pin_memory=pinned)
    module = Heavy()
    Trainer(progress=False, checkpoint=False, run_dir=tmp_path).fit(module, loader)
    expected = x.view(64, -1).double().sum(1)
    found = torch.stack(module.sums).cpu().view(64, 2)
    assert torch.allclose(found, expected[:, None], rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("marker", [pytest.param(None, marks=gpu)])
def test_no_step_waits_for_the_device(precision, marker, tmp_path):
    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("only CUDA tells who waits")

    class Watched(Callback):
        """Between two log points a wait is an error."""

        def on_step_end(self, trainer, outputs):
            inside = 2 <= trainer.global_step < 48
            torch.cuda.set_sync_debug_mode("error" if inside else "default")

        def on_teardown(self, trainer, stage):
            torch.cuda.set_sync_debug_mode("default")

    x = torch.randn(60 * 64, 1024)
    run = Trainer(
        precision=precision,
        progress=False,
        checkpoint=False,
        clip_grad_norm=1.0,
        callbacks=Watched(),
        run_dir=tmp_path,
    ).fit(Heavy(), DataLoader(TensorDataset(x), 64, shuffle=True))
    assert run.metrics["train/loss"].steps == [1, 50, 60]
    assert "fused AdamW" in (run.folder / "log.txt").read_text()


READS = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal", "aten.nonzero", "aten.masked_select")
"""Operations whose results the host waits for."""


class Reads(TorchDispatchMode):
    """Counts them by the step in which they are, apart from those of a copy that arrived a step ago."""

    def __init__(self):
        super().__init__()
        self.step, self.found, self.arrived = 0, Counter(), False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function).startswith(READS):
            self.count()
        return function(*args, **(kwargs or {}))

    def count(self):
        if not self.arrived:
            self.found[self.step] += 1


class Far(TrainModule):
    """Its values say that they are not on the CPU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, 8)

    def training_step(self, batch):
        out = self.net(batch[0])
        found = {"loss": out.square().mean(), "size": out.abs().mean()}
        return {name: value.as_subclass(Remote) for name, value in found.items()}

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)
        return {"optimizer": optimizer, "lr_scheduler": "cosine"}


@pytest.fixture
def reads(monkeypatch):
    """Of a fit in which losses and flags are recorded as on an accelerator with a fused optimizer."""
    counted, made, finish, tolist = Reads(), Guard.__init__, Guard.finish, torch.Tensor.tolist

    def init(self, *given, **more):
        made(self, *given, **more)
        self.late = True

    def finish_uncounted(self):
        counted.arrived = True
        try:
            finish(self)
        finally:
            counted.arrived = False

    monkeypatch.setattr(torch.Tensor, "tolist", lambda values: counted.count() or tolist(values))
    monkeypatch.setattr(Guard, "__init__", init)
    monkeypatch.setattr(Guard, "finish", finish_uncounted)
    monkeypatch.setattr(OptimizerStep, "record_on_host", OptimizerStep.record_on_device)
    return counted


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_no_step_between_two_log_points_reads_a_value(reads, precision, tmp_path):
    class Watch(Callback):
        def on_step_end(self, trainer, outputs):
            reads.step = trainer.global_step

    with reads:
        run = Trainer(
            accelerator="cpu",
            precision=precision,
            progress=False,
            checkpoint=False,
            clip_grad_norm=1.0,
            log_every=10,
            global_batch_size=4,
            callbacks=[Watch(), EMA(0.9), Checks(skip=True)],  # which reads what it looks at, in few steps
            run_dir=tmp_path,
        ).fit(Far(), DataLoader(TensorDataset(torch.randn(60, 8)), 2, shuffle=True))
    assert run.metrics["train/loss"].steps == [1, 10, 15]
    assert set(reads.found) == {0, 1, 10, 15}  # the start, and where something is logged
