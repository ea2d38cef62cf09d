"""SimCLR: its loss against the formula, its views, and the classification by few labels."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer
from paceline.recipes.data.images import few_labels
from paceline.recipes.simclr import SimCLR, Views


def formula(first, second, temperature):
    """Equation 1 of the paper, pair by pair."""
    views, count = torch.cat([first, second]), len(first)
    found = []
    for i in range(2 * count):
        partner = (i + count) % (2 * count)
        similar = torch.tensor([F.cosine_similarity(views[i], views[k], 0) for k in range(2 * count)])
        others = [k for k in range(2 * count) if k != i]
        found.append(
            -torch.log((similar[partner] / temperature).exp() / (similar[others] / temperature).exp().sum())
        )
    return torch.stack(found).mean()


def test_the_loss_is_that_of_the_paper():
    torch.manual_seed(0)
    module = SimCLR([4, 8], blocks=1, projection=6, temperature=0.3)
    module.network, module.project = nn.Flatten(), nn.Identity()
    first, second = torch.randn(5, 3, 2, 2), torch.randn(5, 3, 2, 2)
    losses = []

    class Recorded(SimCLR):
        def training_step(self, batch):
            losses.append(super().training_step(batch))
            return losses[-1] + 0 * self.weight

    recorded = Recorded([4, 8], blocks=1, projection=6, temperature=0.3)
    recorded.network, recorded.project = nn.Flatten(), nn.Identity()
    recorded.weight = nn.Parameter(torch.zeros(()))
    trainer = Trainer(accelerator="cpu", max_steps=1, progress=False, loggers=False, run_dir=None)
    trainer.fit(recorded, DataLoader(TensorDataset(first, second), 5))
    expected = formula(first.flatten(1), second.flatten(1), 0.3)
    torch.testing.assert_close(losses[0].detach(), expected)


def test_views_are_of_the_images_size_and_differ():
    images = torch.rand(4, 3, 32, 32)
    torch.manual_seed(0)
    first, second = Views(images, 0.3, 15.0, 0.4, flip=True)[2]
    assert first.shape == second.shape == (3, 32, 32)
    assert not torch.allclose(first, second)
    torch.manual_seed(0)
    again, _ = Views(images, 0.3, 15.0, 0.4, flip=True)[2]
    assert torch.equal(first, again)


def test_without_changes_a_view_is_the_image():
    images = torch.rand(2, 3, 32, 32)
    view, _ = Views(images, 1.0, 0.0, 0.0, flip=False)[1]
    # Of another aspect ratio at most: its area is the whole, cut to the image.
    assert view.shape == images[1].shape
    torch.testing.assert_close(view.mean(), images[1].mean(), atol=0.05, rtol=0)


def test_held_out_images_get_the_label_of_the_most_similar_labelled_one():
    module = SimCLR([4, 8], blocks=1)
    module.network = nn.Flatten()
    axes = torch.eye(12).view(12, 3, 2, 2)
    labelled = TensorDataset(axes[:4], torch.tensor([7, 8, 9, 7]))
    held_out = TensorDataset(
        axes[[0, 1, 2, 3, 0]] + 0.01, torch.tensor([7, 8, 9, 1, 2])
    )  # 3 of 5 are right
    trainer = Trainer(accelerator="cpu", progress=False, run_dir=None)
    found = trainer.validate(module, [DataLoader(labelled, 3), DataLoader(held_out, 2)])
    assert found["val/accuracy"] == pytest.approx(0.6)
    assert module.labelled == module.held_out == []


def test_few_labels_takes_as_many_of_each_class():
    labels = np.array([1, 0, 1, 1, 0, 2])
    assert few_labels(labels, 2).tolist() == [1, 4, 0, 2, 5]
