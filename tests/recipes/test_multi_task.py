"""Two tasks: each sample has the loss of its task, from one loader or from two."""

import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.data.images import Images, digits
from paceline.recipes.multi_task import PRESETS, Config, MultiTask, Task, build

QUIET = {"run_dir": None, "progress": False, "max_steps": 2, "validate_every": 2}


def batch_of(classes=3, turns=5):
    answers = torch.cat([torch.randint(10, (classes,)), torch.randint(4, (turns,))])
    tasks = torch.tensor([0] * classes + [1] * turns)
    return torch.randn(classes + turns, 3, 16, 16), answers, tasks


def test_each_sample_has_the_loss_of_its_task():
    torch.manual_seed(0)
    module, batch = MultiTask((4,), 1, 2).eval(), batch_of()
    losses, right = module.losses(batch)
    classes, turns = module(batch[0])
    expected = [F.cross_entropy(classes[:3], batch[1][:3], reduction="none")]
    expected += [F.cross_entropy(turns[3:], batch[1][3:], reduction="none")]
    torch.testing.assert_close(losses, torch.cat(expected))
    chosen = torch.cat([classes[:3].argmax(1), turns[3:].argmax(1)])
    assert torch.equal(right, (chosen == batch[1]).float())


def test_with_a_loader_for_each_the_shares_weigh_the_losses():
    torch.manual_seed(0)
    module = MultiTask((4,), 1, 2, turns=0.2).eval()
    images, answers, tasks = batch_of(4, 4)
    parts = {"classes": (images[:4], answers[:4], tasks[:4]), "turns": (images[4:], answers[4:], tasks[4:])}
    losses = module.losses((images, answers, tasks))[0]
    expected = 0.8 * losses[:4].mean() + 0.2 * losses[4:].mean()
    torch.testing.assert_close(module.training_step(parts), expected)


def test_an_image_is_turned_by_its_answer():
    (images, labels), _ = digits()
    data = Images(images[:8], labels[:8], [0.0] * 3, [1.0] * 3)
    torch.manual_seed(0)
    answers = set()
    for k in range(8):
        image, answer, task = Task(data, "turns")[k]
        assert torch.equal(image.rot90(-int(answer), (1, 2)), data[k][0])
        assert task == 1
        answers.add(int(answer))
    assert len(answers) > 1
    assert Task(data, "classes")[0][1] == labels[0]


@pytest.mark.parametrize(("turns", "batch"), [(0.25, 16), (0.5, 24)])
def test_a_mixture_has_its_shares_in_each_step(turns, batch):
    settings = PRESETS["tiny"] | {"turns": turns, "batch_size": batch}
    experiment = build(Config(**settings, trainer=QUIET))
    for _, (_, _, tasks) in zip(range(4), experiment.train, strict=False):
        assert tasks.sum() == turns * batch


@pytest.mark.parametrize("together", ["mixture", "loaders"])
def test_it_trains_and_measures_both(together):
    experiment = build(Config(**PRESETS["tiny"] | {"together": together}, trainer=QUIET))
    experiment.fit()
    metrics = experiment.trainer.metrics
    assert metrics["val/classes/accuracy"] != metrics["val/turns/accuracy"]
    assert metrics["train/loss"] > 0
