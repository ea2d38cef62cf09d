"""Optimizer state on an NVMe drive: what is supported, and the library that DeepSpeed needs for it."""

from __future__ import annotations

from typing import Any

from ...errors import PacelineError

_ON_HOST = 'the host\'s memory in its place: "device": "cpu"'


def is_used(config: dict[str, Any]) -> bool:
    """Whether a DeepSpeed configuration keeps anything on NVMe."""
    return any(_is_on_nvme(config, part) for part in ("offload_optimizer", "offload_param"))


def check_config(config: dict[str, Any], stage: int) -> None:
    """Refuse what is not supported, before anything is computed.

    Args:
        config: The user's DeepSpeed configuration.
        stage: The ZeRO stage.

    Raises:
        PacelineError: for parameters on NVMe, other stages than 3, and no path.
    """
    if _is_on_nvme(config, "offload_param"):
        raise PacelineError(
            "parameters cannot be on NVMe: DeepSpeed 0.19 fails in the second step once some are there",
            code="deepspeed-config",
            where="zero_optimization.offload_param",
            got='"device": "nvme"',
            allowed='"device": "cpu"; offload_optimizer may be on NVMe, which has the larger part',
        )
    if not is_used(config):
        return
    if stage != 3:
        raise PacelineError(
            "DeepSpeed offloads to NVMe under stage 3 alone",
            code="deepspeed-config",
            where="zero_optimization.offload_optimizer",
            got=f"stage {stage}",
            fix=f"DeepSpeed(stage=3, ...), or {_ON_HOST}",
        )
    if not config["zero_optimization"]["offload_optimizer"].get("nvme_path"):
        raise PacelineError(
            "offload to NVMe needs a folder on the drive",
            code="deepspeed-config",
            where="zero_optimization.offload_optimizer",
            fix='"nvme_path": "/local_nvme"',
        )


def build_library(builder: Any = None) -> None:
    """Build DeepSpeed's library for asynchronous files, unless that was done before (about a minute).

    Args:
        builder: DeepSpeed's ``AsyncIOBuilder``; an object with its methods ``is_compatible`` and ``load``.

    Raises:
        PacelineError: where it cannot be built, with the reason.
    """
    if builder is None:
        from deepspeed.ops.op_builder import AsyncIOBuilder

        builder = AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise _not_built("libaio and its headers are not installed", "apt-get install libaio-dev")
    try:
        builder.load(verbose=False)
    except Exception as error:  # of a compiler, a linker, or of torch, which calls them
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise _not_built(reason[0][:200], "install g++ and ninja") from error


def _not_built(reason: str, fix: str) -> PacelineError:
    return PacelineError(
        "offload to NVMe needs DeepSpeed's library async_io, which cannot be built here",
        code="deepspeed-config",
        where="zero_optimization.offload_optimizer",
        got=reason,
        fix=f"{fix}; or {_ON_HOST}",
    )


def _is_on_nvme(config: dict[str, Any], part: str) -> bool:
    found = config.get("zero_optimization", {}).get(part)
    return isinstance(found, dict) and found.get("device") == "nvme"
