"""Batches of workers are those that one gets without, whichever way they come."""

from collections import UserDict, namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.data.workers.worker_tensors import SmallByValue

pytestmark = pytest.mark.ranks  # loader workers are processes too

KINDS = {
    "numbers": lambda i: torch.tensor(float(i)),
    "labels": lambda i: i,
    "bfloat16": lambda i: torch.full((3,), i, dtype=torch.bfloat16),
    "uint16": lambda i: torch.full((3,), i, dtype=torch.uint16),
    "complex": lambda i: torch.full((2, 2), complex(i, -i)),
    "flags": lambda i: torch.tensor([i % 2 == 0, True]),
    "empty": lambda i: torch.empty(0, 3),
    "wide": lambda i: torch.full((40, 40), float(i)),  # a whole batch is beyond what is sent by value
    "one channel": lambda i: torch.full((2, 1, 3, 3), float(i)).to(memory_format=torch.channels_last),
    "a mapping": lambda i: {"x": torch.full((3,), i), "y": (float(i), str(i), torch.tensor(i))},
}


class Samples(Dataset):
    """Draws, so that no batch is read by rows."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return self.make(index), torch.rand(2)


def read(loader):
    feed = make_feed(loader, FeedSettings(seed=3, log_line=lambda line: None))
    found = [batch for batches, _, _, _ in feed.steps(0) for batch in batches]
    feed.close()
    return found


def leaves(batch):
    if isinstance(batch, (dict, UserDict)):
        batch = list(batch.values())
    return (
        [leaf for part in batch for leaf in leaves(part)] if isinstance(batch, (list, tuple)) else [batch]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_one_that_is_read_without_workers(kind):
    alone, ours = (read(DataLoader(Samples(KINDS[kind]), 4, shuffle=True, num_workers=n)) for n in (0, 2))
    assert len(alone) == len(ours) == 3
    for one, other in zip(leaves(alone), leaves(ours), strict=True):
        assert type(one) is type(other)
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)


def test_small_tensors_are_sent_and_large_ones_shared():
    for images, drawn in read(DataLoader(Samples(KINDS["wide"]), 4, num_workers=1)):
        assert images.is_shared() == (len(images) == 4)  # 25 600 bytes, and 12 800 at the end
        assert not drawn.is_shared()
    assert default_collate_fn_map[torch.Tensor] is collate_tensor_fn  # here it stays as it was


def test_a_collation_of_tensors_that_the_user_registered_is_called(monkeypatch):
    def reversed_(batch, *, collate_fn_map=None):
        return collate_tensor_fn(batch[::-1])

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, reversed_)
    (batch, _), *_ = read(DataLoader(Samples(KINDS["numbers"]), 5, num_workers=1))
    assert batch.tolist() == [4, 3, 2, 1, 0]


def test_crops_are_sent_too():
    crops = Samples(lambda i: torch.full((3, 8, 8), i)[:, 1:7, 1:7])
    for images, _ in read(DataLoader(crops, 5, num_workers=1)):
        assert not images.is_shared()
        assert images.is_contiguous()


def odd(samples):
    """What torch hands over in its own way."""
    both = torch.arange(12.0).reshape(3, 4)
    return both, both[1:], both.T, torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2)).coalesce()


def test_views_share_their_memory_and_keep_their_strides():
    for both, part, turned, sparse in read(DataLoader(Samples(float), 5, num_workers=1, collate_fn=odd)):
        assert torch.equal(part, both[1:])
        both[1:] = -1
        assert (part == -1).all()
        assert turned.stride() == (1, 4)
        assert (turned[:, 1] == -1).all()
        assert sparse.to_dense().tolist() == [[0, 2], [0, 0]]


def test_what_is_shared_on_purpose_stays_so():
    for shared, turned in read(DataLoader(Samples(float), 5, num_workers=1, collate_fn=chosen)):
        assert shared.is_shared()
        assert turned.stride() == (4, 1, 2, 1)


def chosen(samples):
    return torch.ones(3).share_memory_(), torch.empty_strided((2, 1, 2, 2), (4, 1, 2, 1))


class Encoding(UserDict):
    """As the collate functions of tokenizers give."""


class Own:
    """A batch of a type of the user's own."""

    def __init__(self, tensor):
        self.tensor = tensor


Point = namedtuple("Point", "x y")
SHARED = torch.arange(6.0)
COLLATED = {
    "an encoding": (lambda: Encoding(x=torch.ones(3), y=torch.ones(2)), [False, False]),
    "a named tuple": (lambda: Point(torch.ones(3), [torch.ones(2)]), [False, False]),
    "a view of the same memory": (lambda: [SHARED, SHARED.view(2, 3)], [True, True]),
    "beside an object of the user": (lambda: [torch.ones(3), Own(torch.ones(2))], [True]),
    "a part of a larger memory": (lambda: [torch.ones(100)[:4], torch.ones(2)], [True, False]),
    "more than a pipe takes": (lambda: [torch.ones(3000) for _ in range(4)], [False, False, True, True]),
}


@pytest.mark.parametrize("name", COLLATED)
def test_what_is_sent_by_value_and_what_as_torch_does(name):
    make, shared = COLLATED[name]
    loader = DataLoader(Samples(float), 5, num_workers=1, collate_fn=lambda samples: make())
    for batch in read(loader):
        assert type(batch) is type(make())
        found = [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
        assert [tensor.is_shared() for tensor in found] == shared
        for tensor, expected in zip(found, leaves(make()), strict=False):
            assert torch.equal(tensor, expected)


def test_a_tensor_that_is_there_twice_is_one_tensor():
    def twice(samples):
        tensor = torch.ones(3)
        return tensor, {"again": tensor}

    for one, other in read(DataLoader(Samples(float), 5, num_workers=1, collate_fn=twice)):
        assert one is other["again"]


def test_in_this_process_nothing_is_replaced():
    batch = [torch.ones(3)]
    assert SmallByValue(lambda samples: batch)([]) is batch
