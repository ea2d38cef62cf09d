"""DeepSpeed itself, imported for a device."""

from __future__ import annotations

import logging
import os
import warnings
from importlib.util import find_spec
from typing import Any

import torch

from ...errors import PacelineError
from . import internals


def check_installed() -> None:
    """See that it is installed, before ranks are started.

    Raises:
        PacelineError: where it is not installed.
    """
    if find_spec("deepspeed") is None:
        raise _not_installed("no package deepspeed")


def _not_installed(got: str) -> PacelineError:
    return PacelineError(
        "strategy deepspeed needs DeepSpeed, which is not installed",
        code="package-missing",
        got=got,
        fix="pip install deepspeed (Linux), or strategy='fsdp'",
    )


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for this device, without its notices and its compiled kernels.

    Raises:
        PacelineError: where it is not installed.
    """
    # The process group exists; DeepSpeed asks for this variable all the same.
    os.environ.setdefault("LOCAL_RANK", "0")
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise _not_installed(str(error)) from None
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    for handler in logger.handlers:
        handler.setLevel(logging.ERROR)
    warnings.filterwarnings(
        "ignore", category=FutureWarning, message=r".*torch\.distributed\..*deprecated.*"
    )
    internals.needs_no_compiler(deepspeed)
    backend = "gloo" if device.type == "cpu" else None  # None: the accelerator's own
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return deepspeed
