"""The process group of this process: one that exists is used, else one is made, once."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist

from .environment import Environment
from .job_notes import die_with_launcher

_usual = dist.default_pg_timeout
_MANY_RANKS = 128
"""From here on two ranks are connected when they first send each other something. Gloo else connects all
with all: what the store of rank 0 has to answer grows with the square of the ranks. Fewer ranks are all
connected: that one died is seen at once, whether or not it has sent anything yet."""


def join(environment: Environment, collective_timeout: float | None = None) -> None:
    """Join the process group. Waits until all are there; later calls do nothing.

    Args:
        environment: Rank, world size and device of this process.
        collective_timeout: Seconds that a collective may take; None is torch's default.
    """
    global _usual
    if dist.is_initialized():
        return
    if collective_timeout is not None:
        _usual = timedelta(seconds=collective_timeout)
    die_with_launcher()
    if environment.local_world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // environment.local_world_size))
    device = environment.device
    backend = "gloo"
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
        # A backend for tensors on the CPU too: offload and host values need one.
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    if environment.world_size >= _MANY_RANKS:
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    hook = sys.excepthook
    if environment.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        rank, world_size = environment.rank, environment.world_size
        timeout = None if collective_timeout is None else _usual
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=timeout)
    sys.excepthook = hook  # torch's shows every frame
    atexit.register(_leave)


def reaches_rank_zero(seconds: float) -> bool:
    """Whether the host of rank 0 answers, from this one, where ranks have met.

    Args:
        seconds: How long to wait for the answer.
    """
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(place, timeout=seconds).close()
    except (ConnectionRefusedError, KeyError, ValueError):
        return True  # the host answers, or nothing is known
    except OSError:
        return False
    return True


def _leave() -> None:
    if dist.is_initialized() and hasattr(sys, "last_value") and dist.get_world_size() > 1:
        # An error ends this rank: others may be inside a collective, and waiting for them would hide it.
        _forget_groups()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    leave()


def leave() -> None:
    """Leave the process group, if there is one; for a rank that has ended well, as all do."""
    _forget_groups()  # a group that outlives the others aborts the process
    if dist.is_initialized():
        dist.destroy_process_group()


def host_group() -> dist.ProcessGroup:
    """A group of all ranks for values on the host, apart from the one gradients go through."""
    assert dist.group.WORLD is not None
    return _extra_group(dist.group.WORLD, "host")


def writers_group() -> dist.ProcessGroup:
    """Another one, for the thread that writes checkpoints while the main one trains."""
    assert dist.group.WORLD is not None
    return _extra_group(dist.group.WORLD, "writers")


def data_group(tensor: int) -> dist.ProcessGroup:
    """The ranks with this one's place in groups of ``tensor`` neighbours. First called on all ranks."""
    assert dist.group.WORLD is not None
    return _place_group(dist.group.WORLD, tensor)


def _forget_groups() -> None:
    _extra_group.cache_clear()
    _place_group.cache_clear()


@cache
def _place_group(everyone: dist.ProcessGroup, tensor: int) -> dist.ProcessGroup:
    atexit.register(_place_group.cache_clear)
    world_size, place = dist.get_world_size(), dist.get_rank() % tensor
    groups = [dist.new_group([*range(first, world_size, tensor)], _usual) for first in range(tensor)]
    found: dist.ProcessGroup = groups[place]
    return found


@cache
def _extra_group(everyone: dist.ProcessGroup, use: str) -> dist.ProcessGroup:
    atexit.register(_extra_group.cache_clear)  # before the interpreter takes everything apart
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=_usual)
    return group
