"""The optimizer's state on NVMe: the numbers of one device, and what is refused before training."""

import os
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from safetensors.torch import load_file

from paceline import PacelineError, Trainer
from paceline.strategies import DeepSpeed, Single
from paceline.strategies.deepspeed import nvme

JOB = Path(__file__).with_name("nvme_job.py")


def config(**parts):
    return {"zero_optimization": {f"offload_{part}": place for part, place in parts.items()}}


def can_build():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return AsyncIOBuilder().is_compatible(verbose=False)


@pytest.mark.soak
@pytest.mark.ranks
def test_state_on_nvme_gives_the_numbers_of_one_device_and_is_resumed(soak, tmp_path):
    """The library is built once on a machine: half a minute."""
    if not can_build():
        pytest.skip("libaio-dev is not installed")
    job = load_job(JOB)
    job.train(tmp_path, "single", Single, 1, (job.STEPS,))
    run_ranks(JOB, 2, tmp_path, folder=tmp_path, seconds=600)
    swapped = {file.parent.name for file in (tmp_path / "nvme").rglob("exp_avg-*")}
    assert swapped == {"rank0", "rank1"}
    expected = load_file(tmp_path / "single" / "model.safetensors")
    for name in ("at-once", "resumed"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("stage", "given", "said"),
    [
        (3, config(param={"device": "nvme", "nvme_path": "/nvme"}), r'second step[\s\S]*"device": "cpu"'),
        (2, config(optimizer={"device": "nvme", "nvme_path": "/nvme"}), r"stage 3 alone[\s\S]*stage 2"),
        (3, config(optimizer={"device": "nvme"}), r"needs a folder[\s\S]*nvme_path"),
    ],
)
def test_what_is_not_supported_is_refused_by_the_trainer(stage, given, said):
    with pytest.raises(PacelineError, match=said):
        Trainer(strategy=DeepSpeed(stage, given), accelerator="cpu", devices=1, max_steps=1)


class Builder:
    """Stands for DeepSpeed's on another machine."""

    def __init__(self, compatible=True, error=None):
        self.compatible, self.error, self.loaded = compatible, error, 0

    def is_compatible(self, verbose):
        return self.compatible

    def load(self, verbose):
        self.loaded += 1
        if self.error is not None:
            raise self.error


def test_the_library_is_built_before_the_run():
    builder = Builder()
    nvme.build_library(builder)
    assert builder.loaded == 1


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        (Builder(compatible=False), "libaio-dev"),
        (Builder(error=RuntimeError("Error building extension 'async_io'\nline 2")), "async_io'\n"),
        (Builder(error=OSError("Ninja is required to load C++ extensions")), "Ninja is required"),
    ],
)
def test_a_library_that_cannot_be_built_is_reported_with_the_alternative(builder, said):
    with pytest.raises(PacelineError) as error:
        nvme.build_library(builder)
    assert said in str(error.value)
    assert '"device": "cpu"' in str(error.value)
    assert len(str(error.value).splitlines()) <= 12


def test_other_configurations_need_no_library():
    assert not nvme.is_used({})
    assert not nvme.is_used(config(optimizer={"device": "cpu"}))
    assert nvme.is_used(config(optimizer={"device": "nvme", "nvme_path": "/nvme"}))
