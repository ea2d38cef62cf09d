"""What the launcher uses of torch's elastic agent without a public name: each fails here by its name."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.launcher import api

from paceline.strategies.launch.elastic_agent import outlive_rendezvous

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
    assert "self.envs = envs" in source(PContext)


def test_the_variable_against_one_store_for_all_attempts_is_read():
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in source(DynamicRendezvousHandler)


def test_the_agent_asks_the_rendezvous_whether_machines_wait():
    assert any("rdzv_handler.num_nodes_waiting()" in source(cls) for cls in AGENT.__mro__[:-1])
    assert "spec" in inspect.signature(AGENT).parameters


def test_an_agent_outlives_the_store_of_the_rendezvous():
    """The machine that has it ends first after a signal: the others wait for their ranks all the same."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", server.port, is_master=False)
    handler = DynamicRendezvousHandler.from_backend(
        "a-job", store, C10dRendezvousBackend(store, "a-job"), min_nodes=2, max_nodes=2
    )
    del server
    with pytest.raises(RendezvousConnectionError):
        handler.num_nodes_waiting()
    outlive_rendezvous(handler)
    assert handler.num_nodes_waiting() == 0


def source(of: object) -> str:
    return inspect.getsource(of)
