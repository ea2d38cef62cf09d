"""Accelerate's sections for FSDP and DeepSpeed as our strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...other_trainers.engines import CONTEXT
from . import accelerate_names as names
from .deepspeed import as_strategy, read_zero_file
from .reading import DEFAULT, NONE, READ, REFUSED
from .section import Findings, Section

_REFUSED = {"cp_size": CONTEXT, "sp_size": CONTEXT}
_NOT_NEEDED = "it belongs to a size that is 1"


def read_sharded(section: Section, parallel: Section, ranks: int | None, machines: int) -> Any:
    """The strategy of an ``fsdp_config``.

    Args:
        section: The section.
        parallel: ``parallelism_config``.
        ranks: Processes in all; None where that is not known.
        machines: How many there are.
    """
    section.integer("fsdp_version")
    section.note("fsdp_version", DEFAULT, "torch's fully_shard, FSDP of version 2, for both")
    sharding, reshard = _sharding(section)
    options: dict[str, Any] = {}
    if sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") or reshard is False:
        options["reshard_after_forward"] = False
    for key, name in (
        ("fsdp_offload_params", "cpu_offload"),
        ("fsdp_activation_checkpointing", "activation_checkpointing"),
        ("fsdp_activation_checkpointing_offload", "activation_offload"),
    ):
        if section.switch(key):
            options[name] = True
            section.read(key, name, "true")
        section.note(key, DEFAULT, f"{name}: false")
    hybrid = sharding is not None and sharding.startswith("HYBRID") and machines > 1
    replicate, tensor = _parallel(parallel, ranks)
    if tensor > 1:
        options["tensor"] = tensor
    section.rest(names.FSDP, names.READ_FSDP)
    if sharding == "NO_SHARD":
        options.pop("cpu_offload", None)
        return {"class": "DDP", **options} if options else "ddp"
    if replicate is not None and replicate > 1:
        return {"class": "HSDP", "replicate": replicate, **options}
    name = "HSDP" if hybrid else "FSDP"
    return {"class": name, **options} if options else name.lower()


def _sharding(section: Section) -> tuple[str | None, bool | None]:
    """FSDP1's sharding strategy, and whether parameters are freed after forward; under two keys."""
    found: list[str] = []
    reshard: bool | None = None
    for key in ("fsdp_sharding_strategy", "fsdp_reshard_after_forward"):
        value = section.get(key)
        if value is None:
            continue
        number = (isinstance(value, int) and not isinstance(value, bool)) or str(value).isdecimal()
        if number and 1 <= int(value) <= len(names.SHARDING):
            name: str | None = names.SHARDING[int(value) - 1]
        elif key == "fsdp_reshard_after_forward" and str(value).upper() not in names.SHARDING:
            reshard = section.switch(key)
            section.read(key, "reshard_after_forward", "true" if reshard else "false")
            continue
        else:
            name = section.word(key, names.SHARDING)
        if name is not None:
            found.append(name)
            section.note(key, READ, f"{name}: {_about(name)}")
    if len(set(found)) > 1:
        section.problem(
            "fsdp_sharding_strategy", f"{found[0]} here, {found[1]} in fsdp_reshard_after_forward"
        )
    return (found[0] if found else None), reshard


def _about(sharding: str) -> str:
    return {
        "FULL_SHARD": "parameters are freed after forward",
        "SHARD_GRAD_OP": "reshard_after_forward: false",
        "NO_SHARD": "strategy: ddp",
        "HYBRID_SHARD": "strategy: hsdp on several machines, fsdp on one",
        "HYBRID_SHARD_ZERO2": "hsdp on several machines, fsdp on one, with reshard_after_forward: false",
    }[sharding]


def _parallel(section: Section, ranks: int | None) -> tuple[int | None, int]:
    """How many groups of ranks hold the same shards, and over how many each layer is split."""
    for key, sentence in _REFUSED.items():
        key = f"parallelism_config_{key}"
        if (section.integer(key) or 1) > 1:
            section.note(key, REFUSED, sentence)
        section.note(key, DEFAULT, "1: a sequence is on one rank")
    tensor = section.integer("parallelism_config_tp_size") or 1
    if tensor > 1:
        if ranks and ranks % tensor:
            section.problem("parallelism_config_tp_size", f"{ranks} processes are not groups of {tensor}")
        section.read("parallelism_config_tp_size", "tensor", tensor)
        ranks = ranks // tensor if ranks and ranks % tensor == 0 else None
    section.note("parallelism_config_tp_size", DEFAULT, "1: layers are not split")
    replicate = section.integer("parallelism_config_dp_replicate_size")
    shard = section.integer("parallelism_config_dp_shard_size")
    if ranks and replicate and ranks % replicate:
        section.problem(
            "parallelism_config_dp_replicate_size",
            f"{ranks} processes are not {replicate} groups of one size",
        )
    section.read("parallelism_config_dp_replicate_size", "replicate", replicate)
    if ranks and shard and shard > 1 and (replicate or 1) * shard != ranks:
        text = f"{replicate or 1} x {shard} processes, and num_processes is {ranks}"
        section.problem("parallelism_config_dp_shard_size", text)
    section.note("parallelism_config_dp_shard_size", DEFAULT, "all ranks, divided by replicate")
    section.rest({f"parallelism_config_{name}": (DEFAULT, _NOT_NEEDED) for name in names.PARALLEL})
    return replicate, tensor


def read_zero(
    section: Section, findings: Findings, file: Path, ranks: int | None, precision: str | None, top: Section
) -> dict[str, Any]:
    """The Trainer's arguments of a ``deepspeed_config``.

    Args:
        section: The section.
        findings: Takes the notes of a further file.
        file: The file of the section, in whose folder a further file is searched too.
        ranks: Processes in all; None where that is not known.
        precision: The Trainer's, where the file says one.
        top: The whole file.
    """
    config = section.text("deepspeed_config_file")
    if config == "none":
        config = None
    if config is not None:
        trainer = read_zero_file(section, "deepspeed_config_file", findings, file, ranks, precision)
        for key in names.READ_DEEPSPEED[2:]:
            section.note(key, DEFAULT, "deepspeed_config_file says it")
        section.note("zero_stage", DEFAULT, "deepspeed_config_file says it")
    else:
        trainer = _of_section(section)
        trainer |= {"precision": precision} if precision else {}
    section.rest(names.DEEPSPEED, names.READ_DEEPSPEED)
    top.section("parallelism_config").skip("it is for FSDP of version 2")
    top.read("distributed_type", "strategy", trainer.get("strategy", "deepspeed"))
    return trainer


def _of_section(section: Section) -> dict[str, Any]:
    trainer: dict[str, Any] = {}
    stage = section.integer("zero_stage", least=0)
    if stage is not None and stage > 3:
        section.wrong("zero_stage", "0, 1, 2, 3")
    section.read("zero_stage", "stage", stage)
    stage = 2 if stage is None else stage
    zero: dict[str, Any] = {}
    for part, least in (("optimizer", 1), ("param", 3)):
        block = _offload(section, part, stage, least)
        if block is not None:
            zero[f"offload_{part}"] = block
    trainer["strategy"] = as_strategy(stage, {"zero_optimization": zero} if zero else {}, None)
    for key, argument in (
        ("gradient_accumulation_steps", "accumulate"),
        ("gradient_clipping", "clip_grad_norm"),
    ):
        if section.get(key) == "auto":
            section.note(key, DEFAULT, f"the Trainer's {argument}")
            continue
        value = section.integer(key) if argument == "accumulate" else section.number(key)
        if value and value != (1 if argument == "accumulate" else 0):
            trainer[argument] = value
            section.read(key, argument, value)
        section.note(key, DEFAULT, f"{argument}: {1 if argument == 'accumulate' else 'null'}")
    return trainer


def _offload(section: Section, part: str, stage: int, least: int) -> dict[str, Any] | None:
    device = section.word(f"offload_{part}_device", ("none", "cpu", "nvme"))
    folder = section.text(f"offload_{part}_nvme_path")
    path = f"offload_{part}_nvme_path"
    if device in (None, "none"):
        section.note(f"offload_{part}_device", DEFAULT, "nothing is offloaded")
        section.note(path, DEFAULT, "nothing is offloaded")
        return None
    if stage < least:
        section.note(f"offload_{part}_device", NONE, f"stage {stage} has nothing of it to offload")
        section.note(path, DEFAULT, "nothing is offloaded")
        return None
    assert device is not None
    if device == "cpu":
        section.read(f"offload_{part}_device", f"offload of {part}", "cpu")
        section.note(path, DEFAULT, "it is offloaded to the host's memory")
        return {"device": "cpu"}
    section.read(f"offload_{part}_device", f"zero_optimization.offload_{part}.device", "nvme")
    section.read(path, f"zero_optimization.offload_{part}.nvme_path", folder)
    return {"device": "nvme", "nvme_path": folder or "/nvme"}
