"""steps.bin: what it holds of each step, on one rank and two, after a resume, and when it is cut."""

import shutil
import zlib
from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule, order_seed, seed_everything
from paceline.callbacks import Callback, Checkpoint, StepRecord
from paceline.callbacks.monitors.step_record import FILE_NAME, MAGIC, ROW, read_record

JOB = Path(__file__).with_name("record_job.py")
job = load_job(JOB)


def test_a_row_takes_at_most_64_bytes():
    assert ROW.itemsize == 48


def test_losses_rates_and_samples_are_those_of_a_plain_loop(tmp_path):
    trainer, data = job.trainer(tmp_path)
    run = trainer.fit(job.Net(), data)
    rows = read_record(run.folder)
    module = job.Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses, checksums = [], []
    for epoch in range(2):
        seed_everything(order_seed(0, epoch))
        order = array("q", [int(x) for (batch,) in data for x in batch[:, 0]])
        for step in range(6):
            indices = order[4 * step : 4 * step + 4]
            loss = module.training_step((job.X[list(indices)],))
            losses.append(loss.item())
            checksums.append(zlib.crc32(indices))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert rows["step"].tolist() == list(range(1, 13))
    assert rows["loss"].tolist() == losses
    assert rows["samples"].tolist() == checksums
    assert rows["rate"].tolist() == [0.1] * 12
    assert rows["rank"].tolist() == [-1] * 12
    assert np.isnan(rows["gradient_norm"]).all()


def test_gradient_norms_are_those_before_clipping(tmp_path):
    trainer, data = job.trainer(tmp_path, callbacks=StepRecord(gradients=True), clip_grad_norm=1e-3)
    rows = read_record(trainer.fit(job.Net(), data).folder)
    module = job.Net()
    seed_everything(order_seed(0, 0))
    (first,) = next(iter(data))
    module.training_step((first,)).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters()])
    assert rows["gradient_norm"][0] == pytest.approx(norm.item(), rel=1e-6)
    assert (rows["gradient_norm"] > 1e-3).all()


def test_clipping_measures_the_norm_on_one_rank_and_on_two(tmp_path):
    trainer, data = job.trainer(tmp_path / "measured", callbacks=StepRecord(gradients=True))
    first = read_record(trainer.fit(job.Net(), data).folder)["gradient_norm"][0]
    trainer, data = job.trainer(tmp_path / "one", clip_grad_norm=1e-3)
    one = read_record(trainer.fit(job.Net(), data).folder)["gradient_norm"]
    assert one[0] == pytest.approx(first, rel=1e-6)
    assert (one > 1e-3).all()
    for strategy in ("ddp", "fsdp"):
        run_ranks(JOB, 2, tmp_path / strategy, strategy, "1e-3", folder=tmp_path)
        two = read_record(tmp_path / strategy / "net" / "1")["gradient_norm"]
        assert two.tolist() == pytest.approx(one.tolist(), rel=1e-5)


def test_a_draw_changes_the_random_state_from_its_step_on(tmp_path):
    class Draws(job.Net):
        def training_step(self, batch):
            if self.global_step == 4:
                torch.rand(())
            return super().training_step(batch)

    trainer, data = job.trainer(tmp_path / "a")
    plain = read_record(trainer.fit(job.Net(), data).folder)
    trainer, data = job.trainer(tmp_path / "b")
    drawn = read_record(trainer.fit(Draws(), data).folder)
    assert (plain["random"] == drawn["random"]).tolist() == [True] * 4 + [False] * 8
    assert plain["loss"].tolist() == drawn["loss"].tolist()


def test_a_run_that_resumes_has_the_record_of_one_that_was_never_stopped(tmp_path):
    trainer, data = job.trainer(tmp_path / "whole")
    whole = read_record(trainer.fit(job.Net(), data).folder)
    each = {"callbacks": Checkpoint(every=3, keep=None), "checkpoint": True}
    trainer, data = job.trainer(tmp_path / "parts", max_steps=7, **each)
    first = trainer.fit(job.Net(), data)
    assert len(read_record(first.folder)) == 7
    trainer, data = job.trainer(tmp_path / "parts", **each)
    run = trainer.fit(job.Net(), data, resume="latest")
    assert run.folder == first.folder
    assert read_record(run.folder).tobytes() == whole.tobytes()


def test_rows_after_the_checkpoint_of_a_killed_run_are_dropped(tmp_path):
    each = {"callbacks": Checkpoint(every=3, keep=None), "checkpoint": True}
    trainer, data = job.trainer(tmp_path, max_steps=8, **each)
    first = trainer.fit(job.Net(), data)
    shutil.rmtree(first.latest)  # as if it had been killed before this one was written
    assert first.latest.name == "step-00000006"
    trainer, data = job.trainer(tmp_path, max_steps=7, **each)
    run = trainer.fit(job.Net(), data, resume="latest")
    assert run.folder == first.folder
    assert read_record(run.folder)["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_what_was_not_written_at_a_kill_is_before_no_checkpoint(tmp_path):
    """Rows wait in memory; a checkpoint is written after those of the steps before it."""
    seen = {}

    class Reads(Callback):
        def on_step_start(self, trainer):
            trainer.checkpoints.wait()
            for folder in Run(trainer.folder).checkpoints:
                seen.setdefault(int(folder.name[-8:]), len(read_record(trainer.folder)))

    trainer, data = job.trainer(tmp_path, callbacks=[Checkpoint(every=5), Reads()], checkpoint=True)
    trainer.fit(job.Net(), data)
    assert seen == {5: 5, 10: 10}


def test_an_error_leaves_the_steps_before_it(tmp_path):
    class Breaks(job.Net):
        def training_step(self, batch):
            if self.global_step == 5:
                raise RuntimeError("broken")
            return super().training_step(batch)

    trainer, data = job.trainer(tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Breaks(), data)
    assert read_record(tmp_path / "net" / "1")["step"].tolist() == [1, 2, 3, 4, 5]


def test_a_full_disk_ends_the_record_and_not_the_run_on_two_ranks(tmp_path):
    run_ranks(JOB, 2, tmp_path, "full", folder=tmp_path)
    log = (tmp_path / "net" / "1" / "log.txt").read_text()
    assert log.count("warning: steps.bin cannot be written any more: [Errno 28]") == 1
    assert read_record(tmp_path / "net" / "1")["step"].tolist() == [1, 2, 3]
    assert Run(tmp_path / "net" / "1").latest.name == "step-00000012"


def test_it_can_be_off(tmp_path):
    trainer, data = job.trainer(tmp_path, record=False, loggers=["-tensorboard", "-curves"])
    run = trainer.fit(job.Net(), data)
    assert not (run.folder / FILE_NAME).exists()
    with pytest.raises(PacelineError, match=r"no record of its steps(.|\n)*record=True"):
        read_record(run.folder)


def test_a_row_that_was_cut_is_none_and_another_file_is_refused(tmp_path):
    rows = np.zeros(3, ROW)
    rows["step"] = 1, 2, 2
    rows["loss"] = 1.0, 2.0, 3.0
    path = tmp_path / FILE_NAME
    path.write_bytes(MAGIC + rows.tobytes() + b"cut")
    found = read_record(tmp_path)
    assert found["step"].tolist() == [1, 2]
    assert found["loss"].tolist() == [1.0, 3.0]  # after a roll back the last one counts
    path.write_bytes(b"something else")
    with pytest.raises(PacelineError, match="no record of steps, or of another version"):
        read_record(tmp_path)


def test_losses_of_manual_optimization_are_there(tmp_path):
    class Manual(TrainModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(1, 1)

        def training_step(self, batch):
            self.optimizers().zero_grad()
            self.manual_backward(self.net(batch[0]).square().mean() * 0 + 2.5)
            self.optimizers().step()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = DataLoader(TensorDataset(torch.ones(8, 1)), 4)
    trainer = Trainer(run_dir=tmp_path, accelerator="cpu", progress=False, checkpoint=False)
    assert read_record(trainer.fit(Manual(), data).folder)["loss"].tolist() == [2.5, 2.5]


def test_two_ranks_record_what_one_does(tmp_path):
    run_ranks(JOB, 2, tmp_path / "two", folder=tmp_path)
    two = read_record(tmp_path / "two" / "net" / "1")
    trainer, data = job.trainer(tmp_path / "one")
    one = read_record(trainer.fit(job.Net(), data).folder)
    assert two["samples"].tolist() == one["samples"].tolist()
    assert two["loss"].tolist() == pytest.approx(one["loss"].tolist(), rel=1e-6)
    assert two["ranks"].tolist() == [2] * 12
    assert two["rank"].tolist() == [-1] * 11 + [1]  # rank 1 changes its rate at the end of step 12
