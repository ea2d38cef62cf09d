"""What ranks can talk through here, and which strategies any installation can train with."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.distributed as dist

PACKAGES = ("torch", "deepspeed", "mpi4py")
"""What strategies compute and communicate with."""


def usual_strategies() -> list[str]:
    """The strategies worth a check on any machine: replicas, shards, and DeepSpeed where it is installed.

    Example:
        >>> usual_strategies()[:2]
        ['ddp', 'fsdp']
    """
    more = ["deepspeed_stage_2"] if find_spec("deepspeed") is not None else []
    return ["ddp", "fsdp", *more]


def communication_backends() -> dict[str, str]:
    """The backends of process groups that this build of torch has, with a version where they have one.

    Example:
        >>> communication_backends()["gloo"]
        'available'
    """
    if not dist.is_available():
        return {}
    nccl = "missing"
    if dist.is_nccl_available():
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        nccl = ".".join(map(str, version))
    others = {"gloo": dist.is_gloo_available, "mpi": dist.is_mpi_available, "ucc": dist.is_ucc_available}
    return {"nccl": nccl} | {name: "available" if has() else "missing" for name, has in others.items()}
