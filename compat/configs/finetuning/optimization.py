"""Optimizers, schedules and batches, as transformers' TrainingArguments have them, as settings of ours."""

from __future__ import annotations

from typing import Any

from ..reading import DEFAULT, NONE, READ, REFUSED
from .draft import Draft

_ADAM = ("AdamW", "AdamW8bit", "AdamW4bit", "AdamWFp8")
OPTIMIZERS = {
    **dict.fromkeys(
        (
            *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla"),
            *("adamw_torch_npu_fused", "adamw", "paged_adamw", "paged_adamw_32bit", "adamw_anyprecision"),
        ),
        "AdamW",
    ),
    **dict.fromkeys(
        ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ao_adamw_8bit"),
        "AdamW8bit",
    ),
    **dict.fromkeys(("adamw_torch_4bit", "ao_adamw_4bit"), "AdamW4bit"),
    **dict.fromkeys(("adamw_torch_fp8", "ao_adamw_fp8"), "AdamWFp8"),
    **dict.fromkeys(("lion", "lion_32bit", "paged_lion", "paged_lion_32bit"), "Lion"),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), "bitsandbytes.optim:Lion8bit"),
    **dict.fromkeys(("ademamix", "paged_ademamix_32bit"), "bitsandbytes.optim:AdEMAMix"),
    **dict.fromkeys(("ademamix_8bit", "paged_ademamix_8bit"), "bitsandbytes.optim:AdEMAMix8bit"),
    "adafactor": "Adafactor",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
    "muon": "MuonWithAdamW",
    "prodigy": "Prodigy",
}
"""Ours, by their names."""
_BETAS = ("adam_beta1", "adam_beta2", "adam_epsilon")
_OTHER_OPTIMIZER = "optimizer takes any class: optimizer: {class: PACKAGE.MODULE:CLASS}"
_OTHER_SCHEDULE = "scheduler takes any class: scheduler: {class: PACKAGE.MODULE:CLASS}, or wsd"
SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_restarts": "cosine-with-restarts",
    "polynomial": "polynomial",
    "inverse_sqrt": "inverse-sqrt",
    "cosine_with_min_lr": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
}
"""Ours, by their names."""
_ARGUMENTS = {"num_cycles": "cycles", "power": "power", "min_lr_rate": "end", "timescale": "timescale"}


def add_optimizer(draft: Draft, key: str) -> None:
    """The optimizer, and its arguments.

    Args:
        draft: Takes the settings.
        key: Theirs.
    """
    top = draft.top
    if draft.get("trainer.clip_grad_norm") == 0:
        draft.set("trainer.clip_grad_norm", None)
    name = top.text(key)
    found = OPTIMIZERS.get((name or "adamw_torch").lower())
    if found is None:
        top.note(key, REFUSED, _OTHER_OPTIMIZER)
        found = "AdamW"
    of_adam = found in _ADAM
    given = {one: top.number(one) for one in _BETAS if one in top}
    beta1, beta2 = given.get("adam_beta1"), given.get("adam_beta2")
    more: dict[str, Any] = {}
    if of_adam and (beta1 is not None or beta2 is not None):
        betas = [0.9 if beta1 is None else beta1, 0.999 if beta2 is None else beta2]
        more |= {} if betas == [0.9, 0.999] else {"betas": betas}
    if of_adam and given.get("adam_epsilon") not in (None, 1e-8):
        more["eps"] = given["adam_epsilon"]
    setting: Any = found if not more else {"class": found, **more}
    if setting != "AdamW":
        draft.set("optimizer", setting)
    about = "; of torchao" if found in _ADAM[1:] else ""
    top.note(key, READ, f"optimizer: {found}{about}")
    for one in given:
        top.note(one, READ if of_adam else NONE, "an argument of optimizer" if of_adam else "AdamW alone")


def add_schedule(draft: Draft, key: str, usual: str, warmup: float | str) -> None:
    """The schedule, its arguments and the warm-up.

    Args:
        draft: Takes the settings.
        key: Theirs.
        usual: Theirs, where the file does not say it.
        warmup: Where the file does not say it.
    """
    top = draft.top
    name = (top.text(key) or usual).lower()
    found = SCHEDULES.get(name)
    if found is None:
        top.note(key, REFUSED, _OTHER_SCHEDULE)
        return
    setting: dict[str, Any] = {"class": found}
    _schedule_arguments(draft, setting, name)
    said = _warmup(draft)
    length = warmup if said is None else said
    if name == "constant":
        length = 0
        for one in ("warmup_ratio", "warmup_steps"):
            top.note(one, DEFAULT, "a constant rate has no warm-up there either")
    elif length:
        setting["warmup_start"] = 0.0
    if setting.get("end", 0) >= 1:  # nothing falls
        setting = {key: value for key, value in setting.items() if key != "end"} | {"class": "constant"}
    draft.set("scheduler", setting["class"] if len(setting) == 1 else setting)
    draft.set("warmup", length)
    top.note(key, READ, f"scheduler: {setting['class']}")
    for one in ("warmup_ratio", "warmup_steps"):
        top.read(one, "warmup", length)


def _schedule_arguments(draft: Draft, setting: dict[str, Any], name: str) -> None:
    top = draft.top
    section = top.section("lr_scheduler_kwargs")
    for key, ours in _ARGUMENTS.items():
        value = section.number(key)
        if value is not None:
            setting[ours] = int(value) if ours in ("cycles", "timescale") else value
            section.read(key, f"scheduler.{ours}", setting[ours])
    rate = draft.get("learning_rate")
    for key in ("min_lr", "lr_end"):
        value = section.number(key)
        if value is not None and rate:
            setting["end"] = value / rate
            section.note(key, READ, f"scheduler.end: {value / rate:g} of learning_rate")
    if name == "polynomial":
        setting.setdefault("end", 1e-7 / rate if rate else 0.0)
    for key in section.values:
        section.note(key, REFUSED, _OTHER_SCHEDULE)
    ratio = top.number("cosine_min_lr_ratio")
    if ratio:
        setting["end"] = ratio
    top.read("cosine_min_lr_ratio", "scheduler.end", ratio)


def _warmup(draft: Draft) -> int | str | None:
    """``warmup``; None where the file has none."""
    steps, ratio = (draft.top.number(key) for key in ("warmup_steps", "warmup_ratio"))
    if steps is not None and (steps >= 1 or ratio is None):
        return int(steps) if steps >= 1 or steps == 0 else _percent(steps)
    return None if ratio is None else _percent(ratio)


def _percent(part: float) -> int | str:
    return f"{part * 100:.6f}".rstrip("0").rstrip(".") + "%" if part else 0


def add_batches(draft: Draft, size: str, usual: int) -> None:
    """Samples of a micro-batch, and micro-batches of a step.

    Args:
        draft: Takes the settings.
        size: Their key of the one.
        usual: That, where the file does not say it.
    """
    top = draft.top
    micro = top.integer(size) or usual
    steps = top.integer("gradient_accumulation_steps")
    total = top.integer("batch_size") if size == "micro_batch_size" else None
    if steps is None and total is not None:
        steps = max(1, total // micro)
        top.note("batch_size", READ, f"batch_size: {micro}, trainer.accumulate: {steps}")
    top.note("batch_size", DEFAULT, "gradient_accumulation_steps says it")
    draft.set("batch_size", micro)
    top.note(size, READ, f"batch_size: {micro}")
    if steps is not None and steps > 1:
        draft.set("trainer.accumulate", steps)
    top.note("gradient_accumulation_steps", READ, f"trainer.accumulate: {steps}")


def add_length_of_run(draft: Draft, key: str, usual: int) -> None:
    """Epochs and steps: theirs end at ``max_steps``, however many epochs that is.

    Args:
        draft: Takes the settings.
        key: Of epochs.
        usual: Epochs, where the file does not say it.
    """
    top = draft.top
    steps = top.integer("max_steps", least=-1)
    if steps is not None and steps > 0:
        draft.set("trainer.max_steps", steps)
        draft.set("trainer.max_epochs", None)
        top.read("max_steps", "trainer.max_steps", steps)
        top.note(key, DEFAULT, "max_steps says when it ends")
        return
    top.note("max_steps", DEFAULT, "epochs say when it ends")
    epochs = top.number(key)
    if epochs is not None and (epochs < 1 or epochs % 1):
        top.note(key, REFUSED, "epochs is a whole number; max_steps ends a run anywhere")
        return
    draft.set("epochs", int(epochs or usual))
    top.read(key, "epochs", int(epochs or usual))
