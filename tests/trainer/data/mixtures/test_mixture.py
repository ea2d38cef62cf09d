"""Mixture: each dataset's share in every stretch of samples, its own order, and what a run makes of it."""

import copy
import functools
import json
import pickle
import random
from collections import Counter

import pytest
import torch
from helpers.messages import says
from helpers.pairwise import soaked
from helpers.trainers import quiet
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from paceline import Mixture, PacelineError, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.data.mixtures.mixture_stream import MixtureStream, StatefulMixtureStream
from paceline.trainer.data.mixtures.shares import Shares


def drawn_weights(seed):
    draw = random.Random(seed)
    whole = seed % 2
    return [draw.randint(1, 20) if whole else draw.random() + 1e-4 for _ in range(draw.randint(1, 12))]


@pytest.mark.parametrize("seed", soaked(range(40), range(8)))
def test_each_source_has_its_share_of_any_stretch_from_the_beginning(seed):
    weights = drawn_weights(seed)
    shares, given = Shares(weights), [0] * len(weights)
    parts = [count / shares.period for count in shares.counts]
    for number in range(min(shares.period, 1500) + 30):
        source, before = shares.at(number)
        assert before == given[source]
        given[source] += 1
        due = [part * (number + 1) for part in parts]
        assert max(abs(count - one) for count, one in zip(given, due, strict=True)) < 1
    assert parts == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-4)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.7, 0.3], [7, 3]),
        ([1], [1]),
        ([2, 1, 1], [2, 1, 1]),
        ([0.1, 0.1, 0.1], [1, 1, 1]),
        ([1 / 3, 1 / 6, 1 / 2], [2, 1, 3]),
        ([1, 2**0.5], [4142, 5858]),
        ([9999, 1], [9999, 1]),
    ],
)
def test_the_counts_of_a_period(weights, counts):
    assert Shares(weights).counts == counts
    assert Shares(weights).period == sum(counts)


def test_another_order_has_the_same_shares_to_the_end_of_a_period():
    shares = Shares([0.7, 0.3])
    sources = [shares.at(number)[0] for number in range(40)]
    assert sources == sources[:10] * 4
    assert Counter(sources[:10]) == {0: 7, 1: 3}


A, B = range(100), range(1000, 1040)


def samples_of(mixture, epochs=1):
    found = []
    for epoch in range(epochs):
        mixture.set_epoch(epoch)
        found += [mixture[position] for position in range(len(mixture))]
    return found


def test_no_sample_comes_again_before_all_of_its_dataset_have_come():
    """In the next epoch neither."""
    mixture = Mixture({A: 0.5, B: 0.5}, samples=70)
    found = samples_of(mixture, epochs=4)
    of_a, of_b = [s for s in found if s < 1000], [s for s in found if s >= 1000]
    assert len(of_a) == len(of_b) == 140
    assert sorted(of_a[:100]) == list(A)
    assert len(set(of_a[100:])) == 40
    passes = [of_b[i : i + 40] for i in (0, 40, 80)]
    assert all(sorted(one) == list(B) for one in passes)
    assert passes[0] != passes[1] != passes[2] != sorted(passes[2])


def test_an_epoch_is_as_long_as_all_datasets_together_or_as_asked():
    assert len(Mixture({A: 0.9, B: 0.1})) == 140
    assert len(Mixture({A: 0.9, B: 0.1}, samples=7)) == 7
    assert Counter(s >= 1000 for s in samples_of(Mixture({A: 0.9, B: 0.1}))) == {False: 126, True: 14}


def test_the_seed_is_of_the_orders_and_not_of_the_shares():
    one, other, same = (Mixture({A: 2, B: 1}, seed=seed) for seed in (0, 1, 0))
    assert samples_of(one) == samples_of(same) != samples_of(other)
    assert [s >= 1000 for s in samples_of(one)] == [s >= 1000 for s in samples_of(other)]


def test_datasets_of_one_length_are_not_in_one_order():
    found = samples_of(Mixture({range(30): 1, range(100, 130): 1}))
    assert [s for s in found if s < 100] != [s - 100 for s in found if s >= 100]


def test_it_can_be_copied_and_sent_to_workers():
    mixture = Mixture({A: 2, B: 1}, seed=3)
    mixture.set_epoch(2)
    expected = [mixture[i] for i in range(20)]
    for duplicate in (copy.deepcopy(mixture), pickle.loads(pickle.dumps(mixture)), copy.copy(mixture)):
        assert [duplicate[i] for i in range(20)] == expected
    with pytest.raises(IndexError):
        mixture[140]
    with pytest.raises(IndexError):
        mixture[-1]


class Epochs(Dataset):
    """Other samples in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return 1000 * self.epoch + index


def test_an_epoch_is_set_in_the_datasets_too():
    mixture = Mixture({Epochs(): 1, range(100): 1})
    mixture.set_epoch(7)
    assert {7000, 7001, 7002} <= {mixture[i] for i in range(103)}


def test_mixtures_in_a_mixture_repeat_nothing_either():
    inner = Mixture({range(100): 1, range(100, 140): 1}, samples=60)
    found = samples_of(Mixture({inner: 0.5, range(200, 300): 0.5}, samples=90), epochs=4)
    of_inner = [s for s in found if s < 200]  # three epochs of it: 90 of the 100, and 90 of the 40
    assert len(of_inner) == 180
    assert len([s for s in of_inner if s < 100]) == len({s for s in of_inner if s < 100}) == 90
    assert set(Counter(s for s in of_inner if s >= 100).values()) == {2, 3}


class Named(Mixture):
    def __init__(self, size, weight=0.5):
        super().__init__({range(size): weight, B: 1 - weight})


def test_a_subclass_has_a_constructor_of_its_own():
    mixture = Named(10, weight=0.25)
    assert type(mixture) is Named
    assert type(copy.deepcopy(mixture)) is type(pickle.loads(pickle.dumps(mixture))) is Named
    assert len(mixture) == 50


class OfStreams(Mixture):
    def __init__(self):
        super().__init__({Stream(3): 1})


class Broken(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        raise OSError("no such picture")


def test_an_error_names_the_dataset_and_its_index():
    with pytest.raises(OSError, match="no such picture") as raised:
        Mixture({A: 1, Broken(): 1})[1]
    assert "of dataset 1 of the mixture" in raised.value.__notes__[0]


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Mixture({A: 0}), ["weight of dataset 0: got 0", "above 0"]),
        (lambda: Mixture({A: -1, B: "x"}), ["2 invalid arguments", "dataset 0", "dataset 1"]),
        (lambda: Mixture({A: float("nan")}), ["a number above 0"]),
        (lambda: Mixture({A: 1, B: 1e-5}), ["a weight is too small", "a share of 1e-05", "0.0001"]),
        (lambda: Mixture({A: 1}, samples=0), ["samples: got 0"]),
        (lambda: Mixture({A: 1}, seed=-1), ["seed: got -1"]),
        (lambda: Mixture({}), ["at least one dataset"]),
        (lambda: Mixture([A, B]), ["with their weights", "Mixture({one: 0.7"]),
        (lambda: Mixture(A), ["with their weights", "got: range"]),
        (lambda: Mixture({(): 1}), ["dataset 0 of the Mixture has no samples"]),
        (lambda: Mixture({DataLoader([1]): 1}), ["a DataLoader as dataset 0", "CombinedLoader"]),
        (lambda: Mixture([(object(), 1)]), ["a object as dataset 0"]),
        (lambda: list(Mixture({Empty(): 1}, samples=2)), ["gave no sample", "in pass 1"]),
        (OfStreams, ["OfStreams takes datasets with indices"]),
    ],
)
def test_mistakes(make, parts):
    with pytest.raises(PacelineError) as raised:
        make()
    says(str(raised.value), *parts)
    assert len(str(raised.value).splitlines()) <= 12


# -- streams -------------------------------------------------------------------------------------


class Stream(IterableDataset):
    """Gives (pass, number); keeps no position. With ``draws`` a number that is drawn as well."""

    def __init__(self, size, draws=False):
        self.size, self.draws, self.epoch = size, draws, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for i in range(self.size):
            yield self.epoch, i, *([float(torch.rand(()))] if self.draws else [])


class Keeping(Stream):
    next = 0

    def __iter__(self):
        first, self.next = self.next, 0
        for i in range(first, self.size):
            self.next = i + 1
            yield self.epoch, i, *([float(torch.rand(()))] if self.draws else [])
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_which_kind_a_mixture_is():
    assert type(Mixture({A: 1, B: 1})) is Mixture
    assert type(Mixture({A: 1, Stream(3): 1})) is MixtureStream
    assert type(Mixture({Keeping(3): 1, Stream(3): 1})) is MixtureStream
    assert type(Mixture({A: 1, Keeping(3): 1})) is StatefulMixtureStream


def test_streams_begin_again_with_another_number_for_each_pass():
    mixture = Mixture({Stream(3): 2, Stream(100): 1}, samples=15)
    found = list(mixture)
    shorter = [f for number, f in enumerate(found) if Shares([2, 1]).at(number)[0] == 0]
    assert [i for _, i in shorter] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert len({epoch for epoch, _ in shorter}) == 4
    mixture.set_epoch(1)
    later = [f for number, f in enumerate(mixture) if Shares([2, 1]).at(number)[0] == 0]
    assert not {epoch for epoch, _ in later} & {epoch for epoch, _ in shorter}


def test_a_dataset_with_indices_beside_a_stream_is_shuffled_pass_by_pass():
    mixture = Mixture({range(10): 1, Stream(100): 1}, samples=60)
    found = [f for f in mixture if isinstance(f, int)]
    assert [sorted(found[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3
    assert found[:10] != found[10:20] != found[20:]
    mixture.set_epoch(1)
    assert [f for f in mixture if isinstance(f, int)] != found


def test_without_a_number_of_samples_there_is_no_end():
    found = iter(Mixture({Stream(2): 1, Stream(3): 1}))
    assert len([next(found) for _ in range(100)]) == 100


@pytest.mark.parametrize("taken", range(14))
def test_a_stream_is_continued_in_the_middle(taken):
    def make():
        return Mixture({Keeping(3): 0.5, range(4): 0.25, Keeping(100): 0.25}, samples=13)

    one, other = make(), make()
    one.set_epoch(2)
    other.set_epoch(2)
    expected = list(one)
    begun = iter(one)
    assert [next(begun) for _ in range(taken)] == expected[:taken]
    state = json.loads(json.dumps(one.state_dict()))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(other) == expected[taken:]
    assert list(copy.deepcopy(other)) == expected  # the state was for one iteration
    other.load_state_dict(state)
    other.set_epoch(3)
    assert len(list(other)) == 13  # of another epoch there is nothing to continue


# -- in a run ------------------------------------------------------------------------------------


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 1))
        self.seen = []

    def training_step(self, batch):
        x, number = batch
        self.seen += number.tolist()
        return self.net(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Augmented(Dataset):
    """Draws in each read."""

    def __init__(self, first, size):
        self.first, self.size = first, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.rand(4) + self.first, self.first + index


class AugmentedStream(IterableDataset):
    """Draws in each read, and its order as a shuffle buffer would."""

    def __iter__(self):
        for i in torch.randperm(20).tolist():
            yield torch.rand(4), 500 + i


class KeepingStream(Keeping):
    def __iter__(self):
        for _, i, _ in super().__iter__():
            yield torch.rand(4), 700 + i


def in_memory():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    one = TensorDataset(x, torch.arange(40))
    return Mixture({one: 0.75, TensorDataset(x[:7], torch.arange(100, 107)): 0.25}, samples=60)


def drawn():
    return Mixture({Augmented(0, 30): 0.5, Augmented(100, 9): 0.3, Augmented(200, 50): 0.2}, samples=60)


def streams():
    return Mixture({AugmentedStream(): 0.5, Augmented(0, 9): 0.5}, samples=60)


def keeping():
    return Mixture({KeepingStream(9, draws=True): 0.5, Augmented(0, 9): 0.5}, samples=60)


class LateState(Keeping):
    """As Hugging Face's: a state that was loaded is used in the next iteration, and given back after it."""

    _given = None

    def state_dict(self):
        return {"next": self._given or 0}

    def load_state_dict(self, state):
        self.next = state["next"]

    def __iter__(self):
        first, self.next = self.next, 0
        for i in range(first, self.size):
            self._given = i + 1
            yield self.epoch, i


def test_a_second_resume_before_a_rare_stream_was_read_again():
    def make():
        return Mixture({LateState(100): 0.9, LateState(100): 0.1}, samples=60)

    expected, state = list(make()), None
    for start in (0, 25, 27, 28):
        mixture = make()
        if state is not None:
            mixture.load_state_dict(state)
        part = iter(mixture)
        until = {0: 25, 25: 27, 27: 28, 28: 60}[start]
        assert [next(part) for _ in range(until - start)] == expected[start:until]
        state = json.loads(json.dumps(mixture.state_dict()))


class Judged(Net):
    """Counts what each validation has read."""

    def __init__(self):
        super().__init__()
        self.judged = []

    def validation_step(self, batch):
        self.judged[-1] += batch[1].tolist()
        return self.net(batch[0]).square().mean()

    def on_validation_start(self):
        self.judged.append([])


@pytest.mark.parametrize("read", [0, 1, 60])
def test_a_stateful_mixture_that_was_read_before_validates_a_fit(read):
    module, mixture = Judged(), keeping()
    begun = iter(mixture)
    for _ in range(read):
        next(begun)
    data = DataLoader(in_memory(), 8), DataLoader(mixture, 8)
    quiet(max_epochs=2, sanity_val_batches=0).fit(module, *data)
    assert len(module.judged) == 2
    assert module.judged[0] == module.judged[1]
    assert len(module.judged[0]) == 60


@pytest.mark.launch
@pytest.mark.parametrize("workers", [0, 1])
def test_training_and_validation_may_read_one_mixture(workers):
    def seen(val):
        module, mixture = Judged(), drawn()
        loader = DataLoader(mixture, 8, num_workers=workers)
        quiet(max_epochs=2, validate_every=3).fit(module, loader, loader if val else None)
        return module.seen

    assert seen(val=True) == seen(val=False)


@pytest.mark.launch
@pytest.mark.parametrize("kind", ["in memory", "drawn"])
def test_overfitting_repeats_the_same_samples_with_workers_too(kind):
    def seen(workers):
        module = Net()
        loader = DataLoader(MAKERS[kind](), 8, num_workers=workers)
        quiet(max_epochs=3, overfit_batches=4).fit(module, loader)
        return module.seen

    found = seen(0)
    assert found[:32] == found[32:64] == found[64:]
    assert seen(1) == found


def run(folder, make, steps=None, resume=None, batch=8, **options):
    module = Net()
    settings = {"max_epochs": None if steps else 3, "max_steps": steps, "global_batch_size": 8}
    trainer = quiet(checkpoint=True, callbacks=[Checkpoint("1ep")], run_dir=folder, name="n", **settings)
    trainer.fit(module, DataLoader(make(), batch, **options), resume=resume)
    return module, trainer


MAKERS = {"in memory": in_memory, "drawn": drawn, "streams": streams, "keeping": keeping}


STOPS = [(stop, kind) for stop in (5, 8, 11) for kind in MAKERS]
USUAL_STOPS = [
    (5, "keeping"),
    (5, "drawn"),
    (8, "in memory"),
    (8, "streams"),
    (11, "drawn"),
    (11, "streams"),
]


@pytest.mark.parametrize(("stop", "kind"), soaked(STOPS, USUAL_STOPS))
def test_a_run_is_resumed_exactly(tmp_path, kind, stop):
    """An epoch has 8 steps, the last of 4 samples: within one, at an end, and in the next epoch."""
    whole, trainer = run(tmp_path / "whole", MAKERS[kind])
    first, _ = run(tmp_path / "parts", MAKERS[kind], steps=stop)
    second, resumed = run(tmp_path / "parts", MAKERS[kind], resume="latest")
    assert trainer.global_step == resumed.global_step == 24
    assert first.seen + second.seen == whole.seen
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    log = (resumed.folder / "log.txt").read_text()
    assert ("dataset is not stateful" in log) == (kind == "streams" and stop != 8)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The module of a run that reads in its own process; each is made once."""
    return functools.cache(lambda kind: run(tmp_path_factory.mktemp("alone"), MAKERS[kind])[0])


READ = {
    "3 at a time": (3, {}),
    "2 workers": (8, {"num_workers": 2}),
    "3 workers": (4, {"num_workers": 3}),
    "persistent": (8, {"num_workers": 2, "persistent_workers": True}),
    "spawned": (8, {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}),
}
EVERY = [(kind, how) for how in READ for kind in ("in memory", "drawn", "streams")]
USUAL = [
    ("streams", "3 at a time"),
    ("in memory", "2 workers"),
    ("drawn", "3 workers"),
    ("streams", "persistent"),
    ("drawn", "spawned"),
]


@pytest.mark.launch  # the workers are processes
@pytest.mark.parametrize(("kind", "how"), soaked(EVERY, USUAL))
def test_workers_and_micro_batches_change_nothing(tmp_path, alone, kind, how):
    alone, (batch, options) = alone(kind), READ[how]
    ours, _ = run(tmp_path / "ours", MAKERS[kind], batch=batch, **options)
    assert ours.seen == alone.seen
    for one, other in zip(alone.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_is_refused_with_another_mixture(tmp_path):
    run(tmp_path, in_memory, steps=5)

    def heavier():
        return Mixture(dict.fromkeys(in_memory().datasets, 0.5), samples=60)

    def changed():
        one, other = in_memory().datasets
        return Mixture({TensorDataset(one.tensors[0] + 1, one.tensors[1]): 0.75, other: 0.25}, samples=60)

    def reseeded():
        mixture = in_memory()
        return Mixture(dict(zip(mixture.datasets, mixture.weights, strict=True)), samples=60, seed=1)

    with pytest.raises(PacelineError, match=r"weights 0.75, 0.25 in the checkpoint, 0.5, 0.5 now"):
        run(tmp_path, heavier, resume="latest")
    with pytest.raises(PacelineError, match="content of dataset 0"):
        run(tmp_path, changed, resume="latest")
    with pytest.raises(PacelineError, match="seed 0 in the checkpoint, 1 now"):
        run(tmp_path, reseeded, resume="latest")


class Sharded(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(info.id if info else 0, 40, info.num_workers if info else 1):
            yield torch.ones(4), i


@pytest.mark.launch
def test_a_stream_that_shares_itself_out_takes_one_worker(tmp_path):
    def make():
        return Mixture({Sharded(): 0.5, Augmented(0, 9): 0.5}, samples=60)

    alone, _ = run(tmp_path / "alone", make)
    one, _ = run(tmp_path / "one", make, num_workers=1)
    assert alone.seen == one.seen
    second = Mixture({Augmented(0, 9): 0.5, Sharded(): 0.5}, samples=60)
    for mixture in (make(), second):
        with pytest.raises(PacelineError, match="num_workers=1"):
            run(tmp_path / "two", lambda mixture=mixture: mixture, num_workers=2)
