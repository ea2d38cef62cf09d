"""What the launcher uses of torch's elastic agent without a public name: each fails here by its name."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.launcher import api

AGENT = api.LocalElasticAgent


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_initialize_workers", ["self", "worker_group"]),
        ("_monitor_workers", ["self", "worker_group"]),
        ("_restart_workers", ["self", "worker_group"]),
        ("_exit_barrier", ["self"]),
    ],
)
def test_the_agent_calls_what_is_replaced(name, arguments):
    assert list(inspect.signature(getattr(AGENT, name)).parameters) == arguments
    callers = [source(cls) for cls in AGENT.__mro__[:-1]]
    assert any(f"self.{name}(" in text for text in callers), name


@pytest.mark.parametrize("name", ["_remaining_restarts", "_exit_barrier_timeout"])
def test_the_agent_reads_what_is_set(name):
    assert any(f"self.{name}" in source(cls) for cls in AGENT.__mro__[:-1]), name


def test_a_launch_takes_the_agent_from_the_module():
    assert "LocalElasticAgent(" in source(api.launch_agent)


def test_a_spec_s_port_comes_before_that_of_the_rendezvous():
    assert "master_port" in {field.name for field in dataclasses.fields(WorkerSpec)}
    assert "spec.master_port or" in source(AGENT._rendezvous)


def test_ranks_are_closed_with_a_signal_and_a_timeout():
    assert list(inspect.signature(PContext.close).parameters) == ["self", "death_sig", "timeout"]


def test_the_variable_against_one_store_for_all_attempts_is_read():
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in source(DynamicRendezvousHandler)


def source(of: object) -> str:
    return inspect.getsource(of)
