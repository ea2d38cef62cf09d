"""Gradients that wait for a step under manual optimization are saved and taken back, sparse ones too."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint.pending_gradients import load_gradients, pending_gradients


class Bag(TrainModule):
    """Steps after each second batch."""

    def __init__(self, sparse):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.bag, self.head = nn.EmbeddingBag(40, 6, sparse=sparse), nn.Linear(6, 3)

    def configure_optimizers(self):
        sparse = torch.optim.SparseAdam if self.bag.sparse else torch.optim.Adam
        return [sparse(self.bag.parameters(), 0.02), torch.optim.Adam(self.head.parameters(), 0.02)]

    def training_step(self, batch, batch_idx):
        self.manual_backward(F.cross_entropy(self.head(self.bag(batch[0])), batch[1]))
        if batch_idx % 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()


def fit(module, folder, **settings):
    words = torch.randint(0, 40, (48, 5), generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(words, words[:, 0] % 3), 4)
    usual = {"progress": False, "loggers": False, "run_dir": folder, "callbacks": Checkpoint(every=1)}
    trainer = Trainer(**usual | settings)
    trainer.fit(module, data, resume="auto")
    return module.state_dict()


@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_run_that_stops_between_two_batches_of_a_step_ends_as_one_that_does_not(sparse, stop, tmp_path):
    whole = fit(Bag(sparse), tmp_path / "whole", max_epochs=1)
    first = fit(Bag(sparse), tmp_path / "parts", max_steps=stop)
    resumed = fit(Bag(sparse), tmp_path / "parts", max_epochs=1)
    assert any(not torch.equal(value, first[name]) for name, value in whole.items())
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


@pytest.mark.parametrize("ranks", [1, 2])
def test_sparse_gradients_of_several_ranks_become_their_mean(ranks):
    saved, module = {}, nn.EmbeddingBag(40, 6, sparse=True)
    for rank in range(ranks):
        module(torch.tensor([[rank, 3, 5]])).sum().backward()
        saved |= pending_gradients(module, rank)
        module.zero_grad()
    load_gradients(module, saved, ranks)
    wanted = torch.zeros(40, 6)
    for rank in range(ranks):
        wanted[[rank, 3, 5]] += 1 / 3 / ranks
    assert module.weight.grad.is_sparse
    torch.testing.assert_close(module.weight.grad.to_dense(), wanted)
