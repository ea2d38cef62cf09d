"""torch's elastic agent, and what a job here needs beyond it.

All that the launcher uses of torch without a public name is in this file, each with its reason;
``tests/strategies/launch/test_elastic_agent.py`` fails by name where a torch lacks one of them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server import WorkerState
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
)
from torch.distributed.launcher import api

from .failure_report import FailureReport
from .job_notes import JOB, LAUNCHER, failures, forget, has_trained, micro_batches, note_end, stops
from .port import hold_port
from .slurm import SIGNALS, current_job, ignore_signals

_ANSWER_SECONDS = 2.0
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
    Agent.config, Agent.job, Agent.report = config, job, report
    api.LocalElasticAgent = Agent  # type: ignore[misc]  # it takes no other
    _end_ranks_soon(job, report)
    if current_job() is not None:
        _raise_from_now_on()
    try:
        api.launch_agent(config, program, arguments)
    except ChildFailedError as error:
        report.failures = error.failures
        return report.print()
    except RendezvousError as error:
        if stops(job):
            return _stopped(stops(job)[0], job)
        print(
            f"the machines of this job do not meet at {config.rdzv_endpoint or 'the first one'}: "
            f"{error.__cause__ or error}\n  fix: start the same command on each of them, and see that this "
            "address can be reached from all",
            file=sys.stderr,
        )
        return 1
    except SignalException as stopped:
        return _stopped(int(stopped.sigval), job)
    return _stopped(stops(job)[0], job) if stops(job) else 0


def _stopped(number: int, notes: Path) -> int:
    """The exit code of a job that a signal has stopped in order; SLURM's is requeued first.

    On its other machines the code is 0: srun would end the first one's launcher because of another.
    """
    job = current_job()
    if job is None:
        return 128 + number
    if os.environ.get("SLURM_NODEID", "0") != "0":
        return 0
    ignore_signals()  # a job that is requeued is ended
    if line := job.requeue_after(number, has_trained(notes)):
        print(line, flush=True)
    return 128 + number


def _raise_from_now_on() -> None:
    """Take a batch system's signals as torch does from the ranks' start on: a rendezvous may take long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SignalException(f"{signal.Signals(number).name} received", signal.Signals(number))

    for number in SIGNALS:
        signal.signal(number, stop)


class Agent(api.LocalElasticAgent):
    """Torch's, with the attempts of this process's one job.

    Attributes:
        config: torch's ``LaunchConfig``.
        job: The folder for the ranks' notes.
        report: Takes what is known of failures.
    """

    config: Any
    job: Path
    report: FailureReport
    _held: socket.socket | None = None
    _micro_batches: list[int] = []
    _why = ""  # of a restart that takes none of max_restarts

    def __init__(self, spec: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(spec, *arguments, **options)
        outlive_rendezvous(spec.rdzv_handler)

    def _initialize_workers(self, worker_group: Any) -> None:
        """Begin an attempt. On one machine the port is ours: torch lets go of the free one it found."""
        forget(self.job)
        if self.config.max_nodes == 1:
            if self._held is not None:
                self._held.close()
            self._held = hold_port()
            worker_group.spec.master_port = self._held.getsockname()[1]
        super()._initialize_workers(worker_group)
        self.report.failures = {}

    def _monitor_workers(self, worker_group: Any) -> Any:
        """Keep what is known of a failure, and do not repeat what would fail again.

        A rank that ran out of memory and asks for smaller micro-batches takes none of the restarts, and
        neither does a job of elastic size whose ranks have stopped in order. A signal to this launcher
        raises: the one that stopped them came to another machine, which leaves, or a machine joins.
        """
        result = super()._monitor_workers(worker_group)
        self._why = ""
        if result.is_failed():
            self.report.failures = result.failures
            asked_before, self._micro_batches = self._micro_batches, micro_batches(self.job)
            if any(failure.mistake for failure in failures(self.job).values()):
                self._remaining_restarts = 0
            elif self._micro_batches != asked_before:
                self._why = f"with micro-batches of at most {min(self._micro_batches)} samples"
        elif result.state == WorkerState.SUCCEEDED and stops(self.job) and self._is_elastic:
            result, self._why = RunResult(WorkerState.UNHEALTHY), "on the machines that are there now"
        if self._why:
            worker_group.spec.max_restarts += 1
            self._remaining_restarts += 1
        return result

    @property
    def _is_elastic(self) -> bool:
        return bool(self.config.min_nodes < self.config.max_nodes)

    def _restart_workers(self, worker_group: Any) -> None:
        """Report the failed attempt before the next one."""
        used = self.config.max_restarts - self._remaining_restarts
        how = f"starting again, {self._why or f'{used} of at most {self.config.max_restarts} times'}"
        if worker_group.state == WorkerState.HEALTHY:
            how = "starting again, with a machine that joins"
        self.report.print(how)
        super()._restart_workers(worker_group)  # type: ignore[no-untyped-call]

    def _exit_barrier(self) -> None:
        """After a signal another machine's agent, which took it, never comes."""
        if stops(self.job):
            self._exit_barrier_timeout = _FAILURE_SECONDS
        super()._exit_barrier()  # type: ignore[no-untyped-call]


def outlive_rendezvous(handler: RendezvousHandler) -> None:
    """Let an agent wait for its ranks when the machine with the rendezvous' store does not answer.

    It asks there whether machines want to join: none can. Without this, a signal that stops all ranks in
    order ends the slower machine with a connection error, and on a machine that is cut off the agent sees
    for a minute nothing of what its ranks do.
    """
    count_waiting = handler.num_nodes_waiting
    asking: threading.Thread | None = None
    waiting = 0

    def ask() -> None:
        nonlocal waiting
        try:
            waiting = count_waiting()
        except (RendezvousError, RuntimeError):
            waiting = 0

    def count_if_connected() -> int:
        nonlocal asking
        if asking is None or not asking.is_alive():
            asking = threading.Thread(target=ask, name="rendezvous", daemon=True)
            asking.start()
        asking.join(_ANSWER_SECONDS)
        return 0 if asking.is_alive() else waiting

    handler.num_nodes_waiting = count_if_connected  # type: ignore[method-assign]


def _wait_for_failed(job: Path, processes: dict[int, Any]) -> None:
    """Let ranks that have failed end by themselves, for seconds: they write what is to be printed."""
    ends = time.monotonic() + _FAILURE_SECONDS
    while time.monotonic() < ends:
        if all(processes[rank].poll() is not None for rank in failures(job).keys() & processes.keys()):
            return
        time.sleep(0.02)


def _end_ranks_soon(job: Path, report: FailureReport) -> None:
    """After a failure the other ranks get seconds to end; torch would give them its shutdown timeout."""
    close = PContext.close

    def close_soon(self: Any, death_sig: Any = None, timeout: int | None = None) -> None:
        if death_sig is None:  # not for a signal to this process
            note_end(job)
            handlers = getattr(self, "subprocess_handlers", {})
            report.dead = {rank for rank, one in handlers.items() if one.proc.poll() is not None}
            processes = {int(self.envs[rank]["RANK"]): one.proc for rank, one in handlers.items()}
            _wait_for_failed(job, processes)
            return close(self, death_sig, _FAILURE_SECONDS if timeout is None else timeout)
        if timeout is None:  # until torch 2.11
            timeout = Agent.config.shutdown_timeout
        before = ignore_signals()  # the ranks are saving
        close(self, death_sig, timeout)
        for number, handler in before.items():
            signal.signal(number, handler)

    PContext.close = close_soon  # type: ignore[method-assign]
