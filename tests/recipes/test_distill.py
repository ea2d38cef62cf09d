"""Distillation: its loss, and a teacher that stays as it is."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer
from paceline.recipes.distill import PRESETS, Config, Distill, build
from paceline.recipes.resnet_cifar10 import ResNetClassifier

# Eight channels or more: with four, torch 2.13 writes beyond its memory in the backward of a convolution of
# one pixel, stride 2 and images whose channels are last (seen on a CPU with AVX2).
TEACHER = {"widths": [8, 16], "blocks": 1, "stride": 4}


def fitted(module, steps):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(8, 3, 16, 16), torch.arange(8))
    trainer = Trainer(accelerator="cpu", max_steps=steps, progress=False, loggers=False, run_dir=None)
    trainer.fit(module, DataLoader(data, 8))
    return data.tensors, trainer


def test_the_loss_is_that_of_the_paper():
    losses = []

    class Recorded(Distill):
        def training_step(self, batch):
            outputs = super().training_step(batch)
            losses.append((outputs, self.student(batch[0]).detach(), self.teacher(batch[0])))
            return outputs

    module = Recorded(TEACHER, (4,), soft=0.7, temperature=3.0)
    (_, labels), _ = fitted(module, 1)
    outputs, logits, wanted = losses[0]
    p, q = (wanted / 3).softmax(1), (logits / 3).softmax(1)
    soft = (p * (p.log() - q.log())).sum(1).mean() * 9
    torch.testing.assert_close(outputs["loss"], 0.7 * soft + 0.3 * F.cross_entropy(logits, labels))


def test_the_teacher_stays_as_it_is():
    module = Distill(TEACHER, (4,))
    before = {name: value.clone() for name, value in module.teacher.state_dict().items()}
    student = {name: value.clone() for name, value in module.student.named_parameters()}
    fitted(module, 3)
    assert all(torch.equal(value, before[name]) for name, value in module.teacher.state_dict().items())
    assert all(not torch.equal(value, student[name]) for name, value in module.student.named_parameters())
    assert all(parameter.grad is None for parameter in module.teacher.parameters())


def test_the_teacher_is_the_best_of_its_run(tmp_path):
    quiet = {"run_dir": str(tmp_path), "progress": False, "max_steps": 2, "validate_every": 1}
    from paceline.recipes import resnet_cifar10 as first

    settings = first.PRESETS["tiny"] | {"widths": [8, 16], "trainer": quiet}
    run = first.build(first.Config(**settings)).fit()
    experiment = build(Config(**PRESETS["tiny"] | {"teacher": run.folder}, trainer={"run_dir": None}))
    wanted = run.load(ResNetClassifier).state_dict()
    found = experiment.module.teacher.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert set(found) == set(wanted)


def test_a_teacher_of_other_data_is_refused(tmp_path, monkeypatch):
    from paceline.recipes import distill
    from paceline.recipes import resnet_cifar10 as first

    quiet = {"run_dir": str(tmp_path), "progress": False, "max_steps": 1, "validate_every": 1}
    settings = first.PRESETS["tiny"] | {"widths": [4], "trainer": quiet}
    run = first.build(first.Config(**settings)).fit()
    _, parts = distill.cifar10_or_digits("digits", tmp_path)
    monkeypatch.setattr(distill, "cifar10_or_digits", lambda *_: ("cifar10", parts))
    with pytest.raises(PacelineError, match="the teacher learned other data") as raised:
        build(Config(teacher=run.folder, trainer={"run_dir": None}))
    assert "data=digits" in str(raised.value)


def test_without_a_teacher_the_error_names_the_folder_and_the_command(tmp_path):
    with pytest.raises(PacelineError, match="no run") as raised:
        build(Config(**PRESETS["tiny"] | {"teacher": tmp_path / "none"}, trainer={"run_dir": None}))
    assert str(tmp_path / "none") in str(raised.value)
    assert "paceline fit resnet-cifar10" in str(raised.value)
