"""SWA: the mean of the weights, the statistics of batch norms, and resuming, against a plain loop."""

import pytest
import torch
from helpers.averages import Net, X, assert_same, fit, loader, mean, parameters, weights_by_hand
from helpers.stops import StopsAt
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, IterableDataset

from paceline import PacelineError
from paceline.callbacks import SWA, Checkpoint


@pytest.mark.parametrize(
    ("start", "every", "steps"),
    [
        (0.75, "1ep", [18]),  # later than 0.75 of 3 epochs: the end of the third
        (0.5, "1ep", [12, 18]),
        ("1ep", "1ep", [12, 18]),
        ("1ep", "2st", [8, 10, 12, 14, 16, 18]),
        (10, "3st", [12, 15, 18]),
        (0.0, "4st", [4, 8, 12, 16]),
    ],
)
def test_it_is_the_mean_of_the_weights_at_its_points(start, every, steps):
    module, weights = Net(), weights_by_hand()
    swa = SWA(start, every)
    fit(module, swa)
    assert swa.averaged == len(steps)
    assert_same(parameters(module), mean([weights[step - 1] for step in steps]))


def with_norm_by_hand(epochs=3):
    """torch's own AveragedModel and update_bn."""
    module = Net(norm=True)
    optimizer, average = module.configure_optimizers(), AveragedModel(module)
    for _ in range(epochs):
        for x in X.split(4):
            module.loss((x,)).backward()
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(module)
    update_bn(X.split(4), average.module.net)
    return average.module


def test_batch_norms_get_the_statistics_of_the_averaged_model():
    module, expected = Net(norm=True), with_norm_by_hand()
    fit(module, SWA(0.0))
    assert_same(module.state_dict(), expected.state_dict())
    assert module.net[1].momentum == 0.1


def test_the_last_checkpoint_has_the_trained_weights_and_their_statistics(tmp_path):
    module, plain = Net(norm=True), Net(norm=True)
    fit(plain)
    trainer = fit(module, SWA(0.0), Checkpoint(), run_dir=tmp_path, name="n")
    assert_same(Net.load_from_checkpoint(trainer.run.latest, norm=True).state_dict(), plain.state_dict(), 0)
    assert not torch.equal(module.net[1].running_mean, plain.net[1].running_mean)


@pytest.mark.parametrize("stop", [4, 12, 16])
def test_a_resumed_run_ends_with_the_same_average_to_the_bit(tmp_path, stop):
    whole, second = Net(norm=True), Net(norm=True)
    fit(whole, SWA("1ep", "2st"))
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(norm=True), SWA("1ep", "2st"), StopsAt(stop), Checkpoint(), **kept)
    fit(second, SWA("1ep", "2st"), Checkpoint(), resume="latest", **kept)
    assert_same(second.state_dict(), whole.state_dict(), 0)


def test_a_stream_that_keeps_its_position_is_not_read_once_more(capsys):
    class Stream(IterableDataset):
        at = 0

        def __iter__(self):
            while self.at < 24:
                self.at += 1
                yield (X[self.at - 1],)
            self.at = 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    fit(Net(norm=True), SWA("1st"), data=DataLoader(Stream(), 4))
    assert "batch norms keep their statistics: the training data keeps its own" in capsys.readouterr().out


def test_a_part_of_a_run_needs_its_length():
    with pytest.raises(PacelineError, match="how many steps it has is unknown"):
        fit(Net(), SWA(0.5), max_epochs=None, max_time="1min")


def test_wrong_arguments_are_reported_together():
    with pytest.raises(PacelineError) as error:
        SWA(1.5, "x", validate=1)
    assert all(name in str(error.value) for name in ("start", "every", "validate"))


def test_a_run_that_has_ended_gives_the_same_again_when_it_is_resumed(tmp_path):
    whole, again = Net(norm=True), Net(norm=True)
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(whole, SWA("1ep"), Checkpoint(), **kept)
    fit(again, SWA("1ep"), Checkpoint(), resume="latest", **kept)
    assert_same(again.state_dict(), whole.state_dict(), 0)


def test_statistics_of_several_loaders_and_of_manual_optimization(capsys):
    class Several(Net):
        def training_step(self, batch):
            return self.loss(batch["a"]) + self.loss(batch["b"])

    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch):
            optimizer = self.optimizers()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            optimizer.zero_grad()

    module = Several(norm=True)
    fit(module, SWA("1st"), data={"a": loader(), "b": loader()})
    assert module.net[1].num_batches_tracked == 12  # both, in each of the 6 steps of the last pass
    assert "batch norms keep their statistics" not in capsys.readouterr().out
    module = Manual(norm=True)
    fit(module, SWA("1st"))
    assert "batch norms keep their statistics: training_step updates by itself" in capsys.readouterr().out
