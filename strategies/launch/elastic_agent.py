"""torch's elastic agent, and what a job here needs beyond it.

All that the launcher uses of torch without a public name is in this file, each with its reason;
``tests/strategies/launch/test_elastic_agent.py`` fails by name where a torch lacks one of them.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousHandler
from torch.distributed.launcher import api

from .failure_report import FailureReport
from .job_notes import JOB, LAUNCHER, failures, forget, micro_batches, note_end, stops
from .port import hold_port

_FAILURE_SECONDS = 5  # the others, when a rank has failed: what they do cannot be finished


def run_agent(config: Any, program: Any, arguments: list[str], job: Path) -> int:
    """Start ranks and wait for their end; the job's exit code. For a process that does nothing else.

    Args:
        config: torch's ``LaunchConfig``.
        program: What each rank runs: an executable, or a function.
        arguments: The arguments of ``program``.
        job: The folder for the ranks' notes.
    """
    os.environ[JOB], os.environ[LAUNCHER] = str(job), str(os.getpid())
    # One store for all attempts keeps keys of the failed one: restarts on gloo fail or hang.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is in the report
    report = FailureReport(job, range(config.nproc_per_node) if config.max_nodes == 1 else ())
    api.LocalElasticAgent = _agent_type(config, job, report)  # type: ignore[misc]  # it takes no other
    _end_ranks_soon(job, report)
    try:
        api.launch_agent(config, program, arguments)
    except ChildFailedError as error:
        report.failures = error.failures
        return report.print()
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 128 + stops(job)[0] if stops(job) else 0


def _agent_type(config: Any, job: Path, report: FailureReport) -> type[api.LocalElasticAgent]:
    class Agent(api.LocalElasticAgent):
        _held: socket.socket | None = None
        _micro_batches: list[int] = []
        _cuts_batches = False

        def __init__(self, spec: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(spec, *arguments, **options)
            outlive_rendezvous(spec.rdzv_handler)

        def _initialize_workers(self, worker_group: Any) -> None:
            """Begin an attempt. On one machine the port is ours: torch lets go of the free one it found."""
            forget(job)
            if config.max_nodes == 1:
                if self._held is not None:
                    self._held.close()
                self._held = hold_port()
                worker_group.spec.master_port = self._held.getsockname()[1]
            super()._initialize_workers(worker_group)

        def _monitor_workers(self, worker_group: Any) -> Any:
            """Keep what is known of a failure, and do not repeat what would fail again.

            A rank that ran out of memory and asks for smaller micro-batches takes none of the restarts.
            """
            result = super()._monitor_workers(worker_group)
            if result.is_failed():
                report.failures = result.failures
                asked_before, self._micro_batches = self._micro_batches, micro_batches(job)
                self._cuts_batches = self._micro_batches != asked_before
                if self._cuts_batches:
                    worker_group.spec.max_restarts += 1
                    self._remaining_restarts += 1
                if any(failure.mistake for failure in failures(job).values()):
                    self._remaining_restarts = 0
            return result

        def _restart_workers(self, worker_group: Any) -> None:
            """Report the failed attempt before the next one."""
            used = config.max_restarts - self._remaining_restarts
            how = f"{used} of at most {config.max_restarts} times"
            if self._cuts_batches:
                how = f"with micro-batches of at most {min(self._micro_batches)} samples"
            report.print(f"starting again, {how}")
            super()._restart_workers(worker_group)  # type: ignore[no-untyped-call]

        def _exit_barrier(self) -> None:
            """After a signal another machine's agent, which took it, never comes."""
            if stops(job):
                self._exit_barrier_timeout = _FAILURE_SECONDS
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    return Agent


def outlive_rendezvous(handler: RendezvousHandler) -> None:
    """Let an agent wait for its ranks when the machine with the rendezvous' store has ended before it.

    It asks there whether machines want to join: none can. Without this, a signal that stops all ranks in
    order ends the slower machine with a connection error.
    """
    count_waiting = handler.num_nodes_waiting

    def count_if_connected() -> int:
        try:
            return count_waiting()
        except RendezvousConnectionError:
            return 0

    handler.num_nodes_waiting = count_if_connected  # type: ignore[method-assign]


def _end_ranks_soon(job: Path, report: FailureReport) -> None:
    """After a failure the other ranks get seconds to end; torch would give them its shutdown timeout."""
    close = PContext.close

    def close_soon(self: Any, death_sig: Any = None, timeout: int = _FAILURE_SECONDS) -> None:
        if death_sig is None:  # not for a signal to this process
            note_end(job)
            handlers = getattr(self, "subprocess_handlers", {})
            report.dead = {rank for rank, one in handlers.items() if one.proc.poll() is not None}
        close(self, death_sig, timeout)

    PContext.close = close_soon  # type: ignore[method-assign]
