"""Batches of workers are those that one gets without, whichever way they come."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from paceline.trainer.data.feed import FeedSettings, make_feed
from paceline.trainer.faults.signals import SignalStop

KINDS = {
    "numbers": lambda i: torch.tensor(float(i)),
    "labels": lambda i: i,
    "bfloat16": lambda i: torch.full((3,), i, dtype=torch.bfloat16),
    "uint16": lambda i: torch.full((3,), i, dtype=torch.uint16),
    "complex": lambda i: torch.full((2, 2), complex(i, -i)),
    "flags": lambda i: torch.tensor([i % 2 == 0, True]),
    "empty": lambda i: torch.empty(0, 3),
    "wide": lambda i: torch.full((200, 200), float(i)),  # beyond what is sent by value
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
    feed = make_feed(loader, FeedSettings(seed=3, say=lambda line: None))
    found = [batch for batches, _, _, _ in feed.steps(0) for batch in batches]
    feed.close()
    return found


def leaves(batch):
    if isinstance(batch, dict):
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
        assert images.is_shared() == (len(images) == 4)  # 640 000 bytes, and 320 000 at the end
        assert not drawn.is_shared()
    assert default_collate_fn_map[torch.Tensor] is collate_tensor_fn  # here it stays as it was


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


@pytest.mark.skipif(sys.platform != "linux", reason="a pipe has its size elsewhere")
def test_a_worker_need_not_wait_for_its_batch_to_be_read():
    feed = make_feed(DataLoader(Samples(float), 4, num_workers=1), FeedSettings())
    steps = feed.steps(0)
    next(steps)
    pipe = feed._iterator._worker_result_queue._reader.fileno()
    fcntl = pytest.importorskip("fcntl")
    assert fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) == 512 * 1024
    steps.close()


def test_what_is_shared_on_purpose_stays_so():
    for shared, turned in read(DataLoader(Samples(float), 5, num_workers=1, collate_fn=chosen)):
        assert shared.is_shared()
        assert turned.stride() == (4, 1, 2, 1)


def chosen(samples):
    return torch.ones(3).share_memory_(), torch.empty_strided((2, 1, 2, 2), (4, 1, 2, 1))


def test_a_worker_that_is_killed_in_the_midst_of_a_batch_is_an_error():
    """The rest of it is never written: whoever waits for that waits for ever."""
    loader = DataLoader(Samples(lambda i: torch.ones(90_000)), 1, num_workers=2, prefetch_factor=4)
    feed = make_feed(loader, FeedSettings())
    steps = feed.steps(0)
    next(steps)
    time.sleep(0.5)  # the pipe is full: one of them has begun with a batch, and waits
    for worker in feed._iterator._workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(10)
    usual = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for the rest of a batch"))
    signal.alarm(30)
    try:
        with pytest.raises(RuntimeError, match=r"was killed by SIGKILL|exited unexpectedly"):
            list(steps)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)


def test_the_rest_of_a_batch_is_not_waited_for_behind_a_signal():
    """Of a worker that is held in the midst of sending it."""
    signals = SignalStop(lambda reason, number: None, give_up_reads=True)
    loader = DataLoader(Samples(lambda i: torch.ones(90_000)), 1, num_workers=2, prefetch_factor=4)
    feed = make_feed(loader, FeedSettings(signals=signals))
    steps = signals.interruptible(feed.steps(0))
    next(steps)
    time.sleep(0.5)  # the pipe is full
    for worker in feed._iterator._workers:
        os.kill(worker.pid, signal.SIGSTOP)
    sender = threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    kept = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for the rest of a batch"))
    signal.alarm(30)
    try:
        assert len(list(steps)) < 9
        assert signals.received == signal.SIGTERM
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, kept)
        sender.join()
        feed.close()
        signals.close()
    assert multiprocessing.active_children() == []
