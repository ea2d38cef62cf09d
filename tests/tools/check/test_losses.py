"""What ``paceline check`` finds in the graph of the loss, and what it leaves alone there."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.tools.check.examine import check_fit


class Net(TrainModule):
    """Trains ``loss`` on two views of a row, or on a row and what follows from it."""

    def __init__(self, width=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width))

    def training_step(self, batch):
        return self.loss(*batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class ZeroWeight(Net):
    weight = 0.0

    def loss(self, rows, others):
        outputs = self.net(rows)
        return F.mse_loss(outputs, others) + self.weight * outputs.abs().mean()


class SmallWeight(ZeroWeight):
    weight = 1e-3


class Clamped(Net):
    def loss(self, rows, others):
        outputs = self.net(rows)
        return F.mse_loss(outputs, others) + (-outputs.square() - 1).clamp(min=0).mean()


class Hinge(Net):
    """Of which some rows have a gradient at first, and none in the end."""

    def loss(self, rows, others):
        outputs = self.net(rows)
        return F.mse_loss(outputs, others) + (outputs.square().mean(1) - 0.01).clamp(min=0).mean()


class Likelihood(Net):
    sign = 1

    def loss(self, rows, others):
        mean, scale = self.net(rows)[:, :2].unbind(1)
        return self.sign * Normal(mean, F.softplus(scale) + 0.1).log_prob(others[:, 0]).mean()


class NegativeLikelihood(Likelihood):
    sign = -1


class Similarity(Net):
    sign = 1

    def loss(self, rows, others):
        return self.sign * F.cosine_similarity(self.net(rows), self.net(others).detach()).mean()


class NegativeSimilarity(Similarity):
    sign = -1


class OnlyPenalty(Net):
    def loss(self, rows, others):
        wrong = (self.net(rows).argmax(1) != others.argmax(1)).float().mean()
        return wrong + 1e-3 * sum(one.square().sum() for one in self.parameters())


class Reversed(Net):
    def loss(self, rows, others):
        return F.kl_div(others.log_softmax(1), self.net(rows).softmax(1), reduction="batchmean")


class Forward(Net):
    def loss(self, rows, others):
        return F.kl_div(self.net(rows).log_softmax(1), others.softmax(1), reduction="batchmean")


class Teacher(Net):
    """Begins as a copy, and is to follow."""

    share = 0.0

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def loss(self, rows, others):
        return F.mse_loss(self.net(rows), others) + F.mse_loss(self.net(others), self.teacher(others))

    def on_step_end(self):
        if self.share:
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                    slow.lerp_(fast, self.share)


class Following(Teacher):
    share = 0.1


class Averaging(Net):
    """Keeps an average that no step calls."""

    def __init__(self):
        super().__init__()
        self.average = AveragedModel(self.net).requires_grad_(False)

    def loss(self, rows, others):
        return F.mse_loss(self.net(rows), others)

    def on_step_end(self):
        self.average.update_parameters(self.net)


class Tiny(Net):
    def loss(self, rows, others):
        return F.mse_loss(self.net(rows), others)


class OneHead(Net):
    def __init__(self):
        super().__init__()
        self.left = self.right = nn.Linear(6, 6)

    def loss(self, rows, others):
        hidden = self.net(rows).relu()
        return F.mse_loss(self.left(hidden), others) + F.l1_loss(self.right(hidden), others)


class Smoothed(Net):
    total = 1.2

    def loss(self, rows, others):
        return F.cross_entropy(self.net(rows), self.total * others.softmax(1))


class Normalised(Smoothed):
    total = 1.0


class Pairs(Net):
    """Which of the other rows belongs to a row, by cosines at a temperature."""

    factor = 1 / 0.07

    def loss(self, rows, others):
        first, second = F.normalize(self.net(rows)), F.normalize(self.net(others))
        return F.cross_entropy(first @ second.T * self.factor, torch.arange(len(rows)))


class PairsMultiplied(Pairs):
    factor = 0.07


class WarmingUp(PairsMultiplied):
    """Its loss counts for more with each step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def loss(self, rows, others):
        self.steps.add_(1)
        return super().loss(rows, others) * (1 + self.steps / 10)


class Queue(Net):
    """Pairs, and keys of earlier batches, which make the loss of one batch rise with each step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(120, 6))

    def loss(self, rows, others):
        query, key = F.normalize(self.net(rows)), F.normalize(rows)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.keys.clone().T], 1)
        self.keys.copy_(torch.cat([key.detach(), self.keys])[:120])
        return F.cross_entropy(scores / 0.2, torch.zeros(len(rows), dtype=torch.long))


class Learned(Net):
    """One number that has its best value from the start."""

    def __init__(self):
        super().__init__()
        self.net = nn.Conv1d(1, 1, 1, bias=False)
        nn.init.ones_(self.net.weight)

    def loss(self, rows, others):
        return F.mse_loss(self.net(rows[:, None])[:, 0], others)


FOUND = {
    PairsMultiplied: "cannot-overfit",
    WarmingUp: "cannot-overfit",
    ZeroWeight: "zero-term",
    Clamped: "zero-term",
    Likelihood: "negated-loss",
    Similarity: "negated-loss",
    OnlyPenalty: "constant-loss",
    Reversed: "swapped-arguments",
    Teacher: "unused-average",
    Averaging: "unused-average",
    Tiny: "target-scale",
    OneHead: "shared-weights",
    Smoothed: "one-hot-targets",
}
RIGHT = (
    *(SmallWeight, Hinge, NegativeLikelihood, NegativeSimilarity, Forward, Following, Normalised),
    *(Pairs, Queue, Learned),
)


def names_of(kind):
    torch.manual_seed(0)
    rows = torch.randn(160, 6)
    others = (rows + 0.1 * torch.randn(160, 6)) * (1e-3 if kind is Tiny else 1)
    loader = DataLoader(TensorDataset(rows, others), 20, shuffle=True)
    trainer = Trainer(max_epochs=3, progress=False, run_dir=None, accelerator="cpu")
    report = check_fit(trainer, kind(), (loader, None, None))
    return {one.name for one in report.findings}


@pytest.mark.parametrize("kind", FOUND, ids=lambda one: one.__name__)
def test_a_mistake_is_found(kind):
    assert FOUND[kind] in names_of(kind)


@pytest.mark.parametrize("kind", RIGHT, ids=lambda one: one.__name__)
def test_what_is_right_is_left_alone(kind):
    assert names_of(kind) == set()


class Tagger(TrainModule):
    """A loss for each position of padded rows."""

    masked = False

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 1)

    def training_step(self, batch):
        (tokens,) = batch
        logits, wanted = self.head(self.embedding(tokens)).squeeze(2), (tokens > 10).float()
        if not self.masked:
            return F.binary_cross_entropy_with_logits(logits, wanted)
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return each[tokens > 0].mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Masked(Tagger):
    masked = True


@pytest.mark.parametrize(("kind", "found"), [(Tagger, {"padding-in-loss"}), (Masked, set())])
def test_padding_that_counts_in_a_loss_of_numbers(kind, found):
    torch.manual_seed(0)
    tokens = torch.randint(1, 20, (160, 12))
    lengths = torch.randint(4, 13, (160,))
    tokens = tokens.masked_fill(torch.arange(12) >= lengths[:, None], 0)
    loader = DataLoader(TensorDataset(tokens), 20, shuffle=True)
    trainer = Trainer(max_epochs=3, progress=False, run_dir=None, accelerator="cpu")
    assert {one.name for one in check_fit(trainer, kind(), (loader, None, None)).findings} == found
