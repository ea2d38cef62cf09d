"""The order of copies to an accelerator, which a stream and events stand for here."""

import torch
from torch import nn

from paceline.strategies.blocks import streamed_blocks
from paceline.strategies.blocks.streamed_blocks import Blocks


class Stream:
    """Where copies are made, or where blocks compute; it writes down what is asked of it."""

    def __init__(self, name, log):
        self.name, self.log, self.count = name, log, 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def record_event(self):
        self.count += 1
        self.log.append(f"{self.name} {self.count}")
        return Event(f"{self.name} {self.count}", self.log)

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.name}")


class Event:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def synchronize(self):
        self.log.append(f"host waits for {self.name}")


def pair():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def streamed(monkeypatch, module, log):
    blocks = Blocks(module, list(module), torch.device("cpu"))
    blocks.place()
    computing = Stream("computed", log)
    monkeypatch.setattr(streamed_blocks, "_current", lambda device: computing)
    monkeypatch.setattr(blocks, "_stream", Stream("copied", log))
    return blocks


@torch.no_grad()
def test_the_next_block_is_copied_while_this_one_computes_and_never_a_third(monkeypatch):
    torch.manual_seed(0)
    module, x, log = nn.Sequential(pair(), pair(), pair()), torch.randn(2, 4), []
    expected = module(x)
    blocks = streamed(monkeypatch, module, log)
    assert torch.equal(module(x), expected)
    assert log == [
        *("copied 1", "copied 2", "computed waits for copied 1", "computed 1", "host waits for computed 1"),
        *("copied 3", "computed waits for copied 2", "computed 2", "host waits for computed 2"),
        *("copied 4", "computed waits for copied 3", "computed 3"),  # the first one, for the next batch
    ]
    log.clear()
    assert torch.equal(module(x), expected)
    assert log[:3] == ["host waits for computed 3", "copied 5", "computed waits for copied 4"]
    blocks.give_back(empty=False)
    assert log[-1] == "host waits for computed 6"
    assert torch.equal(module(x), expected)


@torch.no_grad()
def test_the_order_of_calls_is_learned(monkeypatch):
    module, x, log = nn.Sequential(pair(), pair(), pair()), torch.randn(2, 4), []
    streamed(monkeypatch, module, log)
    counts = []
    for _ in range(4):
        module[0](module[1](module[2](x)))
        counts.append(sum(line.startswith("copied") for line in log))
        log.clear()
    assert counts[2:] == [3, 3]  # each block once
