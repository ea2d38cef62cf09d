"""Checkpoints that earlier versions wrote are read: weights, moments, and the run resumes from them.

tests/golden/format-N holds what golden_job.py wrote when format N was new. Never write them again.
"""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from safetensors.torch import load_file

from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.utils.paths import shown_path

JOB = Path(__file__).with_name("golden_job.py")
FORMATS = sorted((Path(__file__).parents[2] / "golden").glob("format-*"))
WRITTEN = [path for folder in FORMATS for path in sorted(folder.iterdir()) if path.is_dir()]
job = load_job(JOB)


def ids(path):
    return f"{path.parent.name}-{path.name}"


@pytest.mark.fault(16)
def test_there_are_some_of_the_newest_format():
    assert FORMATS[-1].name == f"format-{files.FORMAT}"
    assert {path.name for path in WRITTEN} == set(job.WRITERS)


@pytest.mark.fault(16)
@pytest.mark.parametrize("golden", WRITTEN, ids=ids)
def test_they_are_whole_and_of_their_format(golden):
    manifest = verify(golden)
    assert f"format-{manifest['format']}" == golden.parent.name
    assert manifest["world"] == {
        "size": job.WRITERS[golden.name],
        "strategy": manifest["world"]["strategy"],
    }


@pytest.mark.parametrize("golden", WRITTEN, ids=ids)
def test_the_module_is_built_with_its_arguments_and_weights(golden):
    module = job.Golden.load_from_checkpoint(golden)
    assert module.hparams == {"width": 5, "betas": (0.9, 0.99), "notes": {"of": [1, 2]}}
    expected = job.Golden.load_from_checkpoint(golden.parent / "single").state_dict()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-7)


@pytest.mark.fault(16)
@pytest.mark.parametrize("golden", WRITTEN, ids=ids)
def test_a_run_resumes_from_them(golden, tmp_path, capsys):
    copy = tmp_path / "step"
    shutil.copytree(golden, copy)
    module, trainer = job.train(tmp_path / "runs", resume=copy)
    assert f"resumes from {shown_path(copy)}" in capsys.readouterr().out
    assert trainer.global_step == job.END
    expected = load_file(golden.parent / f"weights-at-{job.END}.safetensors")
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    # Moments that began at zero again would end elsewhere.
    fresh, _ = job.train(tmp_path / "fresh", max_steps=job.END - job.AT)
    assert any((fresh.state_dict()[n] - expected[n]).abs().max() > 1e-3 for n in expected)
