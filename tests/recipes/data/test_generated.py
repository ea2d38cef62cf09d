"""Images to generate: the data, the noise that comes with it, and what generated images are judged by."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from paceline import Run, Trainer
from paceline.recipes.data.generated import ClassGenerator, NoisyImages, images_by_class, scaled


class Remembers(ClassGenerator):
    """Generates for each class the image of ``known``."""

    def __init__(self, known):
        super().__init__((1,), per_class=2)
        self.known = known
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def generate(self, noise, labels):
        return self.known[labels]


def test_digits_are_those_of_scikit_learn():
    train, held_out = images_by_class("digits", Path("nowhere"))
    assert (len(train), len(held_out)) == (1437, 360)
    images = torch.cat([train.tensors[0], held_out.tensors[0]])
    assert images.shape == (1797, 1, 8, 8)
    shipped = torch.from_numpy(load_digits().images).flatten(1)
    found = (images.flatten(1).double() / 255 * 16).round()
    assert torch.equal(found.sum(0), shipped.sum(0))
    assert scaled(images).aminmax() == (-1, 1)


def test_noise_has_the_shape_that_was_asked_for():
    train, _ = images_by_class("digits", Path("nowhere"))
    image, label, noise, uniform = NoisyImages(train, uniform=2)[3]
    assert (image.shape, noise.shape, uniform.shape) == ((1, 8, 8), (1, 8, 8), (2,))
    assert NoisyImages(train, noise=(5,))[3][2].shape == (5,)
    assert label == train[3][1]


@pytest.mark.parametrize(("shuffled", "expected"), [(False, 1.0), (True, 0.0)])
def test_images_of_another_class_count_as_wrong(shuffled, expected, tmp_path):
    train, _ = images_by_class("digits", Path("nowhere"))
    images, labels = train.tensors
    first = torch.stack([(labels == one).nonzero()[0, 0] for one in range(10)])
    known = scaled(images[first])
    module = Remembers(known.roll(1, 0) if shuffled else known)
    trainer = Trainer(accelerator="cpu", progress=False, run_dir=None)
    only = torch.utils.data.Subset(train, first.tolist())
    found = trainer.validate(module, DataLoader(only, 4))
    assert found["val/accuracy"] == expected


def test_the_samples_are_logged_as_a_grid(tmp_path):
    from paceline.recipes.gan import PRESETS, Config, build

    settings = PRESETS["tiny"] | {"width": 8, "per_class": 10}
    trainer = {"run_dir": str(tmp_path), "progress": False, "max_steps": 2, "validate_every": 2}
    run = build(Config(**settings, trainer=trainer)).fit()
    assert isinstance(run, Run)
    assert (run.folder / "media/val/samples/step-00000002.png").exists()
