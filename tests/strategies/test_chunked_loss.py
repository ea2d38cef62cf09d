"""The loss of a head in chunks under each strategy: the same numbers in less memory."""

from pathlib import Path

import pytest
import torch
from helpers.allocations import most_allocated
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from paceline import Trainer

JOB = Path(__file__).with_name("chunked_loss_job.py")
STRATEGIES = ["ddp", "fsdp", "deepspeed_stage_2", "deepspeed_stage_3"]
CASES = [*STRATEGIES, "gathered", "split", "fsdp@tied", "deepspeed_stage_3@tied"]


@pytest.fixture(scope="module")
def job():
    return load_job(JOB)


@pytest.fixture(scope="module")
def exported(job, tmp_path_factory):
    """The weights after training, by case; the plain loss on one device is what they are compared with."""
    folder = tmp_path_factory.mktemp("chunks")
    job.train(folder, "single@plain", 1, chunk=None)
    job.train(folder, "single@plain,tied", 1, chunk=None, tied=True)
    job.train(folder, "single", 1, chunk=5)
    run_ranks(JOB, 2, 2, folder, ",".join(CASES), folder=folder)
    return {path.name: load_file(path / "model.safetensors") for path in folder.iterdir() if path.is_dir()}


@pytest.mark.parametrize("case", ["single", *CASES])
def test_the_numbers_are_those_of_the_plain_loss_on_one_device(exported, case):
    expected = exported["single@plain,tied" if case.endswith("@tied") else "single@plain"]
    found = exported[case]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_logits_are_never_there_as_a_whole(job, tmp_path):
    words, samples, length, chunk = 4096, 8, 64, 32
    tokens = samples * length
    found = {}
    for name, size in (("plain", None), ("chunked", chunk)):
        trainer = Trainer(
            accelerator="cpu", devices=1, max_steps=2, progress=False, loggers=False, run_dir=None
        )
        module, data = job.Language(size, words=words), job.text(words, samples, length)
        found[name] = most_allocated(
            lambda trainer=trainer, module=module, data=data: trainer.fit(
                module, DataLoader(data, batch_size=samples)
            ),
            tmp_path / f"{name}.json",
        )
    logits, parameters = tokens * words * 4, sum(p.nbytes for p in module.parameters())
    assert found["plain"] >= 2 * logits  # and their gradient
    assert found["chunked"] <= 4 * chunk * words * 4 + 6 * parameters < logits
