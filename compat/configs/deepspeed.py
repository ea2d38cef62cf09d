"""A DeepSpeed configuration as arguments of the Trainer: what the run decides, and what is passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import shown
from ...trainer.config.yaml_reader import YamlText
from . import deepspeed_names as names
from .files import read_places
from .reading import DEFAULT, ELSEWHERE, READ, Reading
from .section import Findings, Section, whole_mapping

_AUTO = "auto: the run decides it"
_FP16 = (
    "precision: fp16, fp32 parameters with products in float16 and a loss scale; AutocastFP16 of "
    "paceline.strategies has its settings"
)


def read_deepspeed(text: YamlText, file: Path) -> Reading:
    """What a DeepSpeed configuration is here.

    Args:
        text: The content of the file.
        file: The file, which the strategy is given where nothing in it contradicts a run.

    Raises:
        PacelineError: one report of all values that are wrong, and of keys that are typos.
    """
    findings = Findings(text, str(file), "DeepSpeed")
    top = Section(findings, whole_mapping(text, str(file)))
    trainer = add_deepspeed(top, findings, file, None, None)
    findings.check()
    return Reading("DeepSpeed", trainer, (), findings.in_order())


def add_deepspeed(
    top: Section, findings: Findings, file: Path, ranks: int | None, precision: str | None
) -> dict[str, Any]:
    """The Trainer's arguments, and the notes.

    Args:
        top: The whole file.
        findings: Takes the notes.
        file: The file.
        ranks: Processes in all; None where that is not known.
        precision: The Trainer's, where it is said elsewhere.
    """
    given = top.values
    for name in given:
        if top.get(name) == "auto":
            top.note(name, DEFAULT, _AUTO)
    trainer: dict[str, Any] = {}
    said, as_file = _precision(top)
    precision = said or precision
    if precision is not None:
        trainer["precision"] = precision
    _batch(top, ranks, trainer)
    _clip(top, trainer)
    as_file = _optimizer(top) and as_file
    stage = _stage(top)
    for name in names.DROPPED:
        block = top.get(name)
        if isinstance(block, dict) and block.get("enabled") is False:
            top.note(name, DEFAULT, "it is off")
        elif block is not None:
            as_file = False
    if as_file and precision not in (None, "bf16", "bf16-true"):
        as_file = top.get("bf16") is None
    top.rest({**names.KEPT, **names.DROPPED}, (*names.RUN, "zero_optimization"))
    rest = {
        key: value
        for key, value in without_auto(given).items()
        if key not in (*names.RUN, *names.DROPPED) and value is not None
    }
    trainer["strategy"] = as_strategy(stage, rest, str(file) if as_file else None)
    order = {"strategy": trainer.pop("strategy")}
    return order | trainer


def read_zero_file(
    section: Section, key: str, findings: Findings, file: Path, ranks: int | None, precision: str | None
) -> dict[str, Any]:
    """The Trainer's arguments of DeepSpeed's file that a key of another file names.

    Args:
        section: Has the key.
        key: It.
        findings: Takes the notes of DeepSpeed's file.
        file: The other file, in whose folder it is searched too.
        ranks: Processes in all; None where that is not known.
        precision: The Trainer's, where it is said elsewhere.
    """
    named = section.text(key) or ""
    path = Path(named).expanduser()
    if not os.path.isfile(path):
        path = file.parent / path
    if not os.path.isfile(path):
        section.problem(key, f"got {shown(named, 80)}; there is no such file")
        return {}
    text = read_places(path)
    further = Findings(text, str(path), "DeepSpeed")
    section.read(key, "strategy, config", str(path))
    top = Section(further, whole_mapping(text, str(path)))
    trainer = add_deepspeed(top, further, path, ranks, precision)
    further.check()
    findings.notes.extend(further.in_order())
    return trainer


def without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its values that are ``"auto"``."""
    return {
        key: without_auto(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != "auto"
    }


def as_strategy(stage: int | None, config: dict[str, Any], file: str | None) -> Any:
    """The shortest form of the strategy.

    Args:
        stage: The ZeRO stage; None for the default, 2.
        config: What DeepSpeed is to be given.
        file: The file, where it can be given that.
    """
    given = config.get("zero_optimization")
    zero = {k: v for k, v in given.items() if k != "stage"} if isinstance(given, dict) else {}
    others = {key: value for key, value in config.items() if key != "zero_optimization"}
    name = "deepspeed" if stage is None else f"deepspeed_stage_{stage}"
    if not others and not zero:
        return name
    offload = {"offload_optimizer": {"device": "cpu"}}
    if stage == 3:
        offload["offload_param"] = {"device": "cpu"}
    if stage and not others and zero == offload:
        return f"{name}_offload"
    if file is not None:
        stated = isinstance(given, dict) and "stage" in given
        return {
            "class": "DeepSpeed",
            **({} if stated or stage is None else {"stage": stage}),
            "config": file,
        }
    block = others | ({"zero_optimization": zero} if zero else {})
    return {"class": "DeepSpeed", **({} if stage is None else {"stage": stage}), "config": block}


def _precision(top: Section) -> tuple[str | None, bool]:
    """The precision that is switched on, and whether the strategy can have the blocks as they are."""
    found: str | None = None
    as_file = True
    for key in ("bf16", "bfloat16", "fp16", "amp", "torch_autocast"):
        value = top.get(key)
        if value == "auto":
            continue
        if value is not None and not isinstance(value, dict):
            top.wrong(key, '{"enabled": true}')
            continue
        block = Section(top.findings, value or {}, top.path(key))
        enabled = None if block.get("enabled") == "auto" else block.switch("enabled")
        if not enabled:
            top.note(key, DEFAULT, "precision decides it")
            continue
        as_file = as_file and key in ("bf16", "fp16")
        if found is not None:
            top.problem(key, f"it is enabled, and precision {found} is too")
        elif key == "bf16" and block.switch("bf16_master_weights_and_grads"):
            found = "bf16-true"
            top.read(key, "precision", found)
        elif key in ("bf16", "bfloat16") or (
            key == "torch_autocast" and str(block.get("dtype")).rpartition(".")[2] != "float16"
        ):
            found = "bf16"
            top.note(key, READ, "precision: bf16, fp32 parameters with products in bfloat16")
        else:
            found = "fp16"
            top.note(key, READ, _FP16)
    return found, as_file


def _batch(top: Section, ranks: int | None, trainer: dict[str, Any]) -> None:
    total, micro, steps = (
        None if top.get(key) == "auto" else top.integer(key)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if total and micro and steps and ranks and total != micro * steps * ranks:
        text = f"{total} is not {micro} samples x {steps} micro-batches x {ranks} ranks"
        top.problem("train_batch_size", text)
    if total is not None:
        trainer["global_batch_size"] = total
        top.read("train_batch_size", "global_batch_size", total)
        top.note(
            "gradient_accumulation_steps", DEFAULT, "global_batch_size and the loader's batch_size give it"
        )
    elif steps is not None and steps > 1:
        trainer["accumulate"] = steps
        top.read("gradient_accumulation_steps", "accumulate", steps)
    top.note("gradient_accumulation_steps", DEFAULT, "accumulate: 1")
    top.note("train_micro_batch_size_per_gpu", ELSEWHERE, f"DataLoader(..., batch_size={micro})")


def _clip(top: Section, trainer: dict[str, Any]) -> None:
    if top.get("gradient_clipping") == "auto":
        return
    norm = top.number("gradient_clipping")
    if norm:
        trainer["clip_grad_norm"] = norm
        top.read("gradient_clipping", "clip_grad_norm", norm)
    top.note("gradient_clipping", DEFAULT, "gradients are not clipped")


def _optimizer(top: Section) -> bool:
    """Note optimizer and scheduler; whether both are missing."""
    free = True
    for key, sentence in (("optimizer", _torch_optimizer), ("scheduler", _schedule)):
        value = top.get(key)
        if value is None or value == "auto":
            continue
        free = False
        if not isinstance(value, dict):
            top.wrong(key, '{"type": ..., "params": {...}}')
            continue
        parameters = value.get("params")
        known = parameters if isinstance(parameters, dict) else {}
        top.note(key, ELSEWHERE, sentence(str(value.get("type", "")), without_auto(known)))
    return free


def _torch_optimizer(kind: str, parameters: dict[str, Any]) -> str:
    ours = names.OPTIMIZERS.get(kind.lower().removeprefix("cpu").removeprefix("fused"))
    if ours == "AdamW" and parameters.get("adam_w_mode") is False:
        ours = "Adam"
    if ours is None:
        return f"configure_optimizers returns the optimizer; torch has no {kind or 'such one'}"
    known = {name: parameters[name] for name in names.OPTIMIZER_ARGUMENTS if name in parameters}
    pairs = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    arguments = "".join(f", {name}={value!r}" for name, value in pairs.items())
    return f"configure_optimizers returns torch.optim.{ours}(self.parameters(){arguments})"


def _schedule(kind: str, parameters: dict[str, Any]) -> str:
    ours = names.SCHEDULES.get(kind.lower())
    if ours is None:
        other = names.OTHER_SCHEDULES.get(kind.lower())
        return other or 'configure_optimizers returns the schedule as "lr_scheduler"'
    steps = parameters.get("warmup_num_steps")
    warmup = f"warmup={steps}" if steps else ""
    return f'configure_optimizers returns "lr_scheduler": {ours}({warmup}), of paceline.schedules'


def _stage(top: Section) -> int | None:
    """The ZeRO stage; None where the run decides it."""
    if top.get("zero_optimization") == "auto":
        return None
    section = top.section("zero_optimization")
    for name in section.values:
        if section.get(name) == "auto":
            section.note(name, DEFAULT, _AUTO)
    if section.get("stage") == "auto":
        stage = None
    else:
        stage = section.integer("stage", least=0)
        if stage is not None and stage > 3:
            section.wrong("stage", "0, 1, 2, 3")
        stage = stage or 0
    section.read("stage", "stage", stage)
    section.rest(names.ZERO, ["stage"])
    return stage
