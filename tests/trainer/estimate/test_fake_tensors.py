"""What is used of torch's fake tensors and memory tracker exists, by name, and does what is needed."""

import copy
import gc
import inspect

import pytest
import torch
import torchmetrics
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from paceline.trainer.estimate import fake_tensors as fake

HOST = torch.device("cpu")


def test_fake_tensor_mode_takes_real_ones():
    assert "allow_non_fake_inputs" in inspect.signature(FakeTensorMode).parameters


@pytest.mark.parametrize(
    "name", ["track_external", "reset_mod_stats", "get_tracker_snapshot", "_update_peak_stats"]
)
def test_the_tracker_has(name):
    assert callable(getattr(MemTracker, name))


@pytest.mark.parametrize("error", fake.VALUE_NEEDED)
def test_a_value_that_is_not_there_is_an_error(error):
    assert issubclass(error, RuntimeError)
    with fake.fake_mode(), pytest.raises(fake.VALUE_NEEDED):
        torch.ones(2).sum().item()


def test_a_frozen_parameter_is_counted_and_has_no_gradient():
    """The tracker asks each parameter for its gradient, and torch has none of a frozen one."""
    account = fake.Account(lambda *operation: None)
    with fake.fake_mode():
        net = nn.Sequential(nn.Linear(4, 8, bias=False).requires_grad_(False), nn.Linear(8, 2, bias=False))
        with account.open(net):
            net(torch.ones(3, 4)).sum().backward()
            held = account.bytes()
    assert held[fake.PARAMETERS] == 4 * (32 + 16)
    assert held[fake.GRADIENTS] == 4 * 16


@pytest.mark.parametrize("trains", [False, True])
def test_a_tensor_can_be_copied_and_the_copy_collected(trains):
    """With the tracker, the storage that torch's own copy leaves ends the process when it is collected."""
    account = fake.Account(lambda *operation: None)
    real = torch.ones(3, requires_grad=trains)
    with fake.fake_mode(), account.open():
        made = [torch.tensor([1.0, 2.0], requires_grad=trains), real]
        twins = copy.deepcopy([*made, made[0]])
        metric = torchmetrics.SumMetric()
    assert twins[0] is twins[2]
    assert [one.shape for one in twins[:2]] == [one.shape for one in made]
    assert [one.requires_grad for one in twins] == [trains] * 3
    assert metric.sum_value.shape == ()
    del twins, metric
    gc.collect()


def test_nothing_is_allocated_by_a_fake_tensor():
    with fake.fake_mode():
        large = fake.fake_like(torch.empty(2**40, device="meta"), HOST)
        assert (large + 1).shape == (2**40,)


def test_the_account_tells_kinds_apart():
    seen = []
    account = fake.Account(lambda *_: seen.append(account.bytes()))
    with fake.fake_mode():
        module, batch = nn.Linear(100, 100), torch.ones(10, 100)
        optimizer = torch.optim.Adam(module.parameters())
        with account.open(module, optimizer, batch):
            for _ in range(2):
                account.new_pass()
                module(batch).sum().backward()
                last = account.bytes()
                optimizer.step()
                optimizer.zero_grad()
    assert last[fake.PARAMETERS] == last[fake.GRADIENTS] == 4 * 10_100
    assert last[fake.OPTIMIZER] == 8 * 10_100 + 2 * 4  # two moments, and a count for each parameter
    assert max(one[fake.TOTAL] for one in seen) > 16 * 10_100
    assert seen[-1][fake.BUFFERS] == 0


@pytest.mark.parametrize("name", [str(name) for name in fake.ATTENTION])
def test_attention_on_the_cpu_has_this_name(name):
    assert name.startswith("aten._scaled_dot_product_flash_attention_for_cpu")
