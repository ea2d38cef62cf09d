"""Lightning's environments of processes. Ours are recognised by themselves, so these change nothing."""

from __future__ import annotations

import os
from typing import Any

from ...translation.refusals import refuse_import
from .plugin import Plugin

__all__ = [
    "ClusterEnvironment",
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LightningEnvironment",
    "MPIEnvironment",
    "SLURMEnvironment",
    "TorchElasticEnvironment",
]


class ClusterEnvironment(Plugin):
    """How processes find each other.

    Args:
        *args: Accepted: what started the processes is recognised.
        **accepted: Accepted.
    """

    variable = ""

    def __init__(self, *args: Any, **accepted: Any) -> None:
        pass

    @classmethod
    def detect(cls) -> bool:
        """Whether it started this process."""
        return cls.variable in os.environ


class LightningEnvironment(ClusterEnvironment):
    """The Trainer starts the processes."""


class SLURMEnvironment(ClusterEnvironment):
    """``srun`` starts them; a job that is requeued resumes by itself."""

    variable = "SLURM_NTASKS"


class TorchElasticEnvironment(ClusterEnvironment):
    """``torchrun`` starts them."""

    variable = "TORCHELASTIC_RUN_ID"


class MPIEnvironment(ClusterEnvironment):
    """``mpirun`` starts them."""

    variable = "OMPI_COMM_WORLD_SIZE"


class KubeflowEnvironment(ClusterEnvironment):
    """Kubeflow starts them."""

    variable = "KUBERNETES_PORT"


class LSFEnvironment(ClusterEnvironment):
    """``jsrun`` starts them."""

    variable = "JSM_NAMESPACE_RANK"


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {"XLAEnvironment": "no TPU is offered"})
