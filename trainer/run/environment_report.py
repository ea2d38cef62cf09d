"""What a run runs on: versions, the machine and its limits, the commit, the variables that matter."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ...common.version import __version__
from ...errors import cut
from ...strategies.machine.backends import PACKAGES, communication_backends
from ...strategies.machine.device_report import devices_here, peer_access
from ..utils import machine
from ..utils.secrets import masked
from ..utils.text import shown_size
from .git_state import git_state

_PACKAGES = (
    *PACKAGES,
    *("numpy", "pydantic", "safetensors", "tensorboard", "matplotlib", "psutil"),
    *("typer", "tqdm", "PyYAML", "transformers", "peft", "accelerate", "datasets", "lightning"),
    *("torchmetrics", "torchvision", "torchaudio", "triton", "flash-attn", "bitsandbytes"),
    *("wandb", "mlflow", "trackio", "scikit-learn", "nvidia-ml-py"),
)
_VARIABLES = (
    *("CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_VISIBLE", "ROCR_", "HIP_", "HSA_", "TORCH", "PYTORCH_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GLOO_", "TP_", "UCX_", "FI_", "DS_", "HF_", "TRANSFORMERS_"),
    *("TOKENIZERS_", "PACELINE_", "SLURM_", "PET_", "OMPI_", "PMI_", "LOCAL_", "GROUP_", "ROLE_"),
    *("MASTER_", "RANK", "WORLD_SIZE", "NODE_RANK", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON"),
    *("VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "TMPDIR", "KUBERNETES_SERVICE_HOST"),
)
"""How the names of variables begin that are reported."""
_LONGEST = 300
_SIZES = ("total", "available", "cgroup", "memory", "free", "locked_memory", "shm", "shm_free")

Report = dict[str, Any]


def environment_report(*, initialise: bool = True, folder: Path | None = None) -> Report:
    """All of it, as plain data by section. Reading it never fails: what cannot be read is an ``error``.

    Args:
        initialise: Ask accelerators that this process does not use yet; that takes a second.
        folder: Whose commit is meant; None is the current folder.

    Returns:
        Sections ``versions``, ``torch``, ``platform``, ``cpu``, ``memory``, ``devices``, ``interconnect``,
        ``network``, ``limits``, ``git`` and ``variables``. Sizes are in bytes.
    """
    sections: dict[str, Callable[[], Any]] = {
        "versions": lambda: dict(_versions()),
        "torch": lambda: dict(_torch()),
        "platform": _platform,
        "cpu": _processors,
        "memory": _memory,
        "devices": lambda: devices_here(initialise),
        "interconnect": lambda: peer_access(initialise),
        "network": machine.network_interfaces,
        "limits": _limits,
        "git": lambda: git_state(folder or Path.cwd()),
        "variables": lambda: variables(os.environ),
    }
    found: Report = {}
    for name, read in sections.items():
        try:
            found[name] = read()
        except Exception as error:  # a report is no reason to end a run
            found[name] = {"error": cut(f"{type(error).__name__}: {error}")}
    return found


@cache
def _versions() -> dict[str, str]:
    """Of the packages that are installed, without importing them."""
    found = {"paceline": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def _torch() -> dict[str, Any]:
    import torch

    builds = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "xpu": torch.version.xpu}
    return {
        "version": torch.__version__,
        "commit": torch.version.git_version,
        "build": ", ".join(f"{kind} {v}" for kind, v in builds.items() if v) or "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": communication_backends(),
    }


def _platform() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "container": machine.container(),
    }


def _processors() -> dict[str, Any]:
    quota, _ = machine.cgroup_limits()
    model = None
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
        )
    return {
        "model": model,
        "count": os.cpu_count(),
        "affinity": machine.processors(),
        "quota": quota,
        "usable": machine.processors(quota),
    }


def _memory() -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    return {"total": memory.total, "available": memory.available, "cgroup": machine.cgroup_limits()[1]}


def _limits() -> dict[str, Any]:
    size, free = machine.space(machine.SHARED_MEMORY) or (None, None)
    return {**machine.resource_limits(), "shm": size, "shm_free": free}


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how a run computes and communicates; secrets are masked.

    Args:
        environment: All variables.

    Example:
        >>> variables({"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abc", "HOME": "/root"})
        {'HF_TOKEN': '***', 'NCCL_DEBUG': 'INFO'}
    """
    found = masked({name: environment[name] for name in sorted(environment) if _matters(name)})
    return {name: cut(text, _LONGEST) for name, text in found.items()}  # half a password has no @ after it


def _matters(name: str) -> bool:
    return name.startswith(_VARIABLES)


# -- for people --------------------------------------------------------------------------------


def report_text(report: Report) -> str:
    """The report as aligned sections.

    Args:
        report: What ``environment_report`` returned.
    """
    lines: list[str] = []
    for section, found in report.items():
        if isinstance(found, list):
            found = {one.pop("device"): _joined(one) for one in map(dict, found)}
        rows = {name: _shown(name, value) for name, value in found.items()}
        lines += [section] if rows else [f"{section}: none"]
        width = max(map(len, rows), default=0)
        lines += [f"  {name:<{width}}  {text}" for name, text in rows.items()]
    return "\n".join(lines)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return (
            "no limit" if name in ("cgroup", "quota", "open_files", "processes", "locked_memory") else "-"
        )
    if isinstance(value, dict):
        return _joined(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _SIZES and isinstance(value, int):
        return shown_size(value)
    return cut(str(value).replace("\n", " "), 160)


def _joined(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(name, value)}" for name, value in values.items())
