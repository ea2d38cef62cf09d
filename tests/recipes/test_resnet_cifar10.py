"""The recipe with residual networks: its networks, its reading by the batch, and the airbench preset."""

import numpy as np
import pytest
import torch
from torch import nn

from paceline import Trainer
from paceline.callbacks import Callback
from paceline.recipes.data.image_batches import ImageBatches, ImageData
from paceline.recipes.networks.resnet import ResNet, SpeedNet
from paceline.recipes.resnet_cifar10 import PRESETS, Config, ResNetClassifier, averaged, build, triangle

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
LABELS = DRAW.integers(0, 10, 60)
STATISTICS = [0.5] * 3, [0.25] * 3


def test_the_default_is_resnet_18_for_32_pixels():
    assert sum(p.numel() for p in ResNet().parameters()) == 11_173_962
    assert ResNet()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_speed_network_begins_as_identities_of_whitened_patches():
    torch.manual_seed(0)
    net = SpeedNet()
    images = torch.rand(50, 3, 32, 32)
    images = images + images.roll(1, 3) + images.roll(1, 2)  # neighbours are alike
    net.whiten_as(images)
    found = nn.functional.conv2d(images, net.whiten.weight).transpose(0, 1).flatten(1)
    covariance = found[:12] @ found[:12].T / found.shape[1]
    torch.testing.assert_close(covariance, torch.eye(12), atol=0.05, rtol=0)
    assert torch.equal(net.whiten.weight[12:], -net.whiten.weight[:12])
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    assert "whiten.weight" not in trained
    assert "whiten.bias" in trained
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 6
    assert not any(norm.weight.requires_grad for norm in norms)
    first = next(m for m in net.body if isinstance(m, nn.Conv2d))
    x = torch.rand(1, 24, 8, 8)
    torch.testing.assert_close(first(x)[:, :24], x)


def test_the_preset_has_the_published_settings():
    config = Config(**PRESETS["94"])
    assert config.learning_rate * (1 + 1 / (1 - config.momentum)) == pytest.approx(11.5)
    assert config.weight_decay * 11.5 == pytest.approx(0.0153)
    assert (config.epochs, config.batch_size, config.bias_rate) == (9.9, 1024, 64)
    assert (config.label_smoothing, config.shift, config.widths) == (0.2, 2, (64, 256, 256))


@pytest.mark.parametrize(("done", "rate"), [(0, 0.2), (0.115, 0.6), (0.23, 1), (0.615, 0.535), (1, 0.07)])
def test_the_learning_rate_is_a_triangle(done, rate):
    assert triangle(done) == pytest.approx(rate)


def test_evaluation_averages_mirrored_and_shifted_images():
    def first_pixel(images):
        return images[:, 0, 0, :1]

    image = torch.arange(16.0).view(1, 1, 4, 4)
    # As it is: 0, mirrored 3; up and left by one: the reflected 5, mirrored 6; the other way the same.
    assert averaged(first_pixel, image).item() == pytest.approx((0 + 3) / 4 + (5 + 6 + 5 + 6) / 8)


def test_a_sample_does_not_depend_on_the_batch_it_is_read_in():
    data = ImageBatches(PIXELS, LABELS, *STATISTICS, shift=3, flip=True)
    data.set_epoch(4)
    images, labels = data.__getitems__([5, 9, 31])
    for place, index in enumerate((5, 9, 31)):
        image, label = data[index]
        assert torch.equal(image, images[place])
        assert label == labels[place] == LABELS[index]


def test_each_image_is_mirrored_in_every_second_epoch():
    data, plain = ImageBatches(PIXELS, LABELS, *STATISTICS, flip=True), []
    for epoch in range(4):
        data.set_epoch(epoch)
        images, _ = data.__getitems__(list(range(60)))
        plain.append([torch.equal(a, b) for a, b in zip(images, data.images, strict=True)])
    assert plain[0] == plain[2] == [not one for one in plain[1]] == [not one for one in plain[3]]
    assert 15 < sum(plain[0]) < 45


def test_shifts_differ_by_epoch_and_invent_no_pixel():
    data = ImageBatches(PIXELS[:1], LABELS[:1], *STATISTICS, shift=2)
    seen = set()
    for epoch in range(200):
        data.set_epoch(epoch)
        seen.add(tuple(data[0][0].flatten().tolist()))
        assert set(data[0][0].unique().tolist()) <= set(data.images.unique().tolist())
    assert len(seen) == 25


class WhitenBias(Callback):
    def __init__(self):
        self.found = []

    def on_train_epoch_end(self, trainer):
        self.found.append(trainer.module.model.whiten.bias.detach().clone())


def test_the_bias_of_the_whitening_layer_is_trained_for_three_epochs():
    watch = WhitenBias()
    module = ResNetClassifier("speed", (8, 8, 8), bias_rate=64)
    data = ImageData(
        ImageBatches(PIXELS, LABELS, *STATISTICS), ImageBatches(PIXELS, LABELS, *STATISTICS), 30
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, callbacks=watch, progress=False, loggers=False, run_dir=None
    )
    trainer.fit(module, datamodule=data)
    changed = [not torch.equal(a, b) for a, b in zip(watch.found, watch.found[1:], strict=False)]
    assert changed == [True, True, False, False]


@pytest.mark.parametrize("preset", [pytest.param("94", marks=pytest.mark.launch), "tiny"])  # it takes long
def test_a_preset_takes_steps_on_digits(tmp_path, preset):
    trainer = PRESETS[preset].get("trainer", {}) | {
        "accelerator": "cpu",
        "precision": "32",
        "progress": False,
        "run_dir": str(tmp_path),
    }
    settings = PRESETS[preset] | {
        "data": "digits",
        "widths": (8, 8, 8),
        "epochs": 1.5,
        "batch_size": 256,
        "trainer": trainer,
    }
    run = build(Config(**settings)).fit()
    assert run.latest.name == "step-00000008"  # 1.5 epochs of 5 steps
    assert run.metrics["val/accuracy"].steps == [8]
