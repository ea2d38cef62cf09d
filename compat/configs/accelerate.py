"""Accelerate's ``default_config.yaml`` as arguments of the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...trainer.config.yaml_reader import YamlText
from . import accelerate_names as names
from .accelerate_strategies import read_sharded, read_zero
from .machines import Machines
from .reading import DEFAULT, ELSEWHERE, NONE, READ, REFUSED, Reading
from .section import Findings, Section, whole_mapping

_PRECISIONS = {"no": "32", "fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
_NOT_READ = "it is not read: the file is refused"


def read_accelerate(text: YamlText, file: Path, program: str) -> Reading:
    """What an Accelerate configuration is here.

    Args:
        text: The content of the file.
        file: The file, for messages, and to find files that it names.
        program: What Python runs on each machine.

    Raises:
        PacelineError: one report of all values that are wrong, and of keys that are typos.
    """
    findings = Findings(text, str(file), "Accelerate")
    top = Section(findings, whole_mapping(text, str(file)))
    refusal = _refusal(top)
    if refusal is not None:
        top.note(*refusal)
        top.skip(_NOT_READ)
        findings.check()
        return Reading("Accelerate", {}, (), findings.in_order())
    kind = top.word("distributed_type", names.KINDS)
    if kind is None and "distributed_type" not in top:
        top.problem("distributed_type", f"it is missing; allowed: {', '.join(names.KINDS)}")
    kind = kind or "NO"
    top.note("compute_environment", *names.TOP["compute_environment"])
    machines = _machines(top, kind)
    trainer: dict[str, Any] = {}
    _devices(top, kind, machines, trainer)
    precision = _precision(top)
    ranks = None if machines.ranks is None else machines.ranks * machines.count
    if kind == "DEEPSPEED":
        section = top.section("deepspeed_config", keys=(*names.DEEPSPEED, *names.READ_DEEPSPEED))
        trainer |= read_zero(section, findings, file, ranks, precision, top)
    else:
        trainer |= {"precision": precision} if precision else {}
        _strategy(top, kind, ranks, machines.count, trainer)
    _note_precision(top, precision, trainer.get("precision"))
    _switches(top, trainer)
    _compile(top, trainer)
    top.section("fp8_config", "fp8_").rest(names.FP8)
    top.rest(names.TOP, names.READ_TOP)
    findings.check()
    return Reading("Accelerate", trainer, machines.commands(program), findings.in_order())


def _refusal(top: Section) -> tuple[str, str, str] | None:
    """The key for which the file is refused, and the sentence that says what to use."""
    if str(top.get("compute_environment")).upper() == "AMAZON_SAGEMAKER":
        return "compute_environment", REFUSED, names.SAGEMAKER_SENTENCE
    kind = str(top.get("distributed_type")).upper()
    if kind in names.REFUSED_KINDS:
        return "distributed_type", REFUSED, names.REFUSED_KINDS[kind]
    return None


def _machines(top: Section, kind: str) -> Machines:
    count = top.integer("num_machines") or 1
    total = top.integer("num_processes", least=-1)
    ranks = None
    if kind == "NO":
        ranks = 1
        top.note("num_processes", DEFAULT, "distributed_type NO is one process")
    elif total is not None and total > 0:
        if total % count:
            sizes = f"{total - total % count} or {total + count - total % count}"
            text = f"{total} processes cannot be divided over {count} machines evenly; allowed: {sizes}"
            top.problem("num_processes", text)
        ranks = max(1, total // count)
        top.read(
            "num_processes", "devices", f"{ranks} on each of {count} machines" if count > 1 else f"{ranks}"
        )
    else:
        top.note("num_processes", DEFAULT, "all devices of a machine")
    top.note("num_machines", *((READ, f"num_nodes: {count}") if count > 1 else (DEFAULT, "one machine")))
    port = top.integer("main_process_port", least=0) or None
    address = top.text("main_process_ip")
    static = (top.text("rdzv_backend") or "static").lower() == "static"
    hosts = top.section("mpirun_config", "mpirun_")
    hostfile = hosts.text("mpirun_hostfile")
    hosts.note("mpirun_hostfile", ELSEWHERE, "--hostfile of the mpirun command")
    hosts.rest(names.MPIRUN, ["mpirun_hostfile"])
    if count == 1:
        top.note("machine_rank", DEFAULT, "one machine")
    elif not static:
        top.note("machine_rank", DEFAULT, "machines are numbered as they meet")
    if count > 1 and hostfile is None:
        option = "--master-addr" if static else "--rdzv-endpoint"
        top.note("main_process_ip", ELSEWHERE, f"{option} of the launch command")
        option = "--master-port" if static else option
        top.note("main_process_port", ELSEWHERE, f"{option} of the launch command")
        backend = "--node-rank numbers the machines" if static else "--rdzv-backend c10d"
        top.note("rdzv_backend", ELSEWHERE, f"{backend}, in the launch command")
    return Machines(count, ranks, address, port, static, hostfile)


def _devices(top: Section, kind: str, machines: Machines, trainer: dict[str, Any]) -> None:
    cpu = top.switch("use_cpu")
    accelerator = "cpu" if cpu else names.KINDS[kind]
    if accelerator is not None:
        trainer["accelerator"] = accelerator
    if cpu:
        top.read("use_cpu", "accelerator", "cpu")
    top.note("use_cpu", DEFAULT, "the accelerator, where there is one")
    if machines.ranks is not None:
        trainer["devices"] = machines.ranks
    if machines.count > 1:
        trainer["num_nodes"] = machines.count
    ids = _gpu_ids(top)
    if accelerator == "cpu" or ids is None:
        top.note(
            "gpu_ids", DEFAULT, "processes on a CPU have no ids" if accelerator == "cpu" else "all devices"
        )
        return
    ranks = machines.ranks or len(ids)
    if len(ids) < ranks:
        top.problem("gpu_ids", f"{len(ids)} ids, and {ranks} processes on a machine")
    trainer["devices"] = ids[:ranks]
    top.read("gpu_ids", "devices", ids[:ranks])


def _gpu_ids(top: Section) -> list[int] | None:
    value = top.get("gpu_ids")
    if value is None or value == "all":
        return None
    parts = value if isinstance(value, list) else str(value).split(",")
    if isinstance(value, (bool, dict)) or not all(str(part).strip().isdecimal() for part in parts):
        top.wrong("gpu_ids", "all, or ids such as 0,1")
        return None
    return [int(part) for part in parts]


def _precision(top: Section) -> str | None:
    """The Trainer's name of ``mixed_precision``; None where the file does not say it."""
    name = top.word("mixed_precision", _PRECISIONS)
    old = top.switch("fp16")
    name = name or ("fp16" if old else None)
    return _PRECISIONS.get(name or "")


def _note_precision(top: Section, said: str | None, final: str | None) -> None:
    """Note ``mixed_precision``, which a file of DeepSpeed may say too."""
    if said == "32" and final != said:
        top.note("mixed_precision", DEFAULT, "deepspeed_config_file says it")
    elif said is not None and final is not None and not final.startswith(said):
        top.problem("mixed_precision", f"it is {said}, and deepspeed_config_file enables {final}")
    name = str(top.get("mixed_precision") or ("fp16" if top.switch("fp16") else "")).lower()
    for key in ("mixed_precision", "fp16"):
        if name == "fp8":
            top.note(
                key, NONE, "precision: bf16, which fp8 runs have for all but matrix products; no fp8 here"
            )
    top.read("mixed_precision", "precision", final)
    top.note("fp16", DEFAULT, f"an old form of mixed_precision; precision: {final or 32}")


def _strategy(top: Section, kind: str, ranks: int | None, machines: int, trainer: dict[str, Any]) -> None:
    parallel = top.section("parallelism_config", "parallelism_config_")
    if kind == "FSDP":
        section = top.section("fsdp_config", "fsdp_", keys=(*names.FSDP, *names.READ_FSDP))
        trainer["strategy"] = read_sharded(section, parallel, ranks, machines)
        top.read("distributed_type", "strategy", trainer["strategy"])
        return
    parallel.skip("it is for FSDP of version 2")
    if kind != "NO":
        trainer["strategy"] = "ddp"
        accelerator = f", accelerator: {trainer['accelerator']}"
        top.note("distributed_type", READ, f"strategy: ddp{accelerator}")
    top.note("distributed_type", READ, "devices: 1")


def _switches(top: Section, trainer: dict[str, Any]) -> None:
    for key, argument in (("debug", "debug"), ("enable_cpu_affinity", "numa_affinity")):
        if top.switch(key):
            trainer[argument] = True
            top.read(key, argument, "true")
        top.note(key, DEFAULT, f"{argument}: false")


def _compile(top: Section, trainer: dict[str, Any]) -> None:
    section = top.section("dynamo_config", "dynamo_")
    old = section if "dynamo_backend" in section else top  # a separate key in old files
    backend = old.word("dynamo_backend", names.BACKENDS)
    if backend is None or backend == "NO":
        old.note("dynamo_backend", DEFAULT, "compile: false")
        for key in (*names.DYNAMO, names.DYNAMO_BLOCKS):
            section.note(key, DEFAULT, "compile: false")
        section.rest({}, (*names.DYNAMO, names.DYNAMO_BLOCKS))
        return
    options: dict[str, Any] = {}
    if backend in names.NO_TRAINING:
        old.note(
            "dynamo_backend",
            NONE,
            "compile: true; torch has no such backend for training, and takes inductor",
        )
    else:
        options |= {} if backend == "INDUCTOR" else {"backend": backend.lower()}
        old.read(
            "dynamo_backend", "compile", "true" if backend == "INDUCTOR" else f"backend {backend.lower()}"
        )
    mode = section.text("dynamo_mode")
    if mode is not None and mode != "default":
        options["mode"] = mode
    section.read("dynamo_mode", "compile, mode", mode)
    for key, name in (
        ("dynamo_use_fullgraph", "fullgraph"),
        ("dynamo_use_dynamic", "dynamic"),
        (names.DYNAMO_BLOCKS, "blocks"),
    ):
        if section.switch(key):
            options[name] = True
            section.read(key, "compile", name)
        section.note(key, DEFAULT, f"{name} is off")
    section.rest({}, (*names.DYNAMO, names.DYNAMO_BLOCKS))
    trainer["compile"] = _short(options)


def _short(options: dict[str, Any]) -> Any:
    """The shortest form of torch.compile's arguments."""
    if options == {"blocks": True}:
        return "blocks"
    if [*options] == ["mode"]:
        return options["mode"]
    return options or True
