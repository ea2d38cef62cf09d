"""What a run writes, when it validates and saves, and where it computes, as arguments of the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..accelerate_names import FSDP
from ..accelerate_strategies import read_sharded
from ..deepspeed import add_deepspeed, read_zero_file
from ..reading import DEFAULT, ELSEWHERE, NONE, READ
from ..section import Known, Section
from .draft import Draft, Table, is_off, words

TRAINER: Table = {
    "output_dir": ("text", "trainer.run_dir"),
    "run_name": ("text", "trainer.name"),
    "seed": ("count", "trainer.seed"),
    "max_grad_norm": ("number", "trainer.clip_grad_norm"),
    "full_determinism": ("on", "trainer.deterministic"),
    "dataloader_num_workers": ("count", "workers"),
    "neftune_noise_alpha": ("positive", "neftune_alpha"),
    "label_smoothing_factor": ("number", "label_smoothing"),
    "weight_decay": ("number", "weight_decay"),
    "learning_rate": ("positive", "learning_rate"),
    "trust_remote_code": ("on", "trust_remote_code"),
}
"""Of transformers' TrainingArguments, which both have."""
_SAVED = "a checkpoint is written at the end of each epoch"
_LOGGERS = {"wandb": "WandB", "mlflow": "MLflow", "trackio": "Trackio"}
_ALWAYS = "metrics.jsonl, TensorBoard's files and curves.png are written anyway"
_FSDP: Known = {
    **FSDP,
    "fsdp_final_state_dict_type": FSDP["fsdp_state_dict_type"],
    "fsdp_cpu_offload_pin_memory": (DEFAULT, "memory is pinned where that is faster"),
    "fsdp_mixed_precision_policy": (DEFAULT, "precision says it"),
}
MONITORS = {"llm-finetune": "val/loss"}
"""What the best checkpoint of a recipe is chosen by; of the others ``val/accuracy``, ``kto`` aside."""


def add_grouping(draft: Draft) -> None:
    """Batches of about the same length, which packed rows are anyway."""
    on = draft.top.switch("group_by_length")
    if on and draft.get("packing"):
        draft.top.note("group_by_length", DEFAULT, "packed rows are all as long")
    elif on:
        draft.put("group_by_length", "group_by_length", True)
    draft.top.note("group_by_length", DEFAULT, "it is off")


def add_validation_times(draft: Draft) -> None:
    """How often a run validates."""
    top = draft.top
    strategy = next((top.text(key) for key in ("eval_strategy", "evaluation_strategy") if key in top), None)
    steps = top.number("eval_steps")
    times = top.number("evals_per_epoch")
    every: Any = None
    if times:
        every = _part_of_epoch(times)
    elif strategy == "epoch":
        every = "1ep"
    elif steps and strategy != "no":
        every = int(steps) if steps >= 1 else None
    never = strategy == "no" or times == 0
    if draft.get("validation") in (None, 0):
        every, never = None, False
    elif every is not None or never:
        draft.set("trainer.validate_every", every)
    text = f"trainer.validate_every: {'null' if every is None else every}"
    if every is None and not never:
        text = "at the end of each epoch, where there is validation"
    for key in ("eval_strategy", "evaluation_strategy", "evals_per_epoch", "eval_steps"):
        top.note(key, READ if every is not None or never else DEFAULT, text)


def add_checkpoints(draft: Draft) -> None:
    """How often a run saves, and what it keeps."""
    top = draft.top
    strategy, steps, times = (
        top.text("save_strategy"),
        top.number("save_steps"),
        top.number("saves_per_epoch"),
    )
    every: Any = None
    if times:
        every = _part_of_epoch(times)
    elif steps and steps >= 1 and strategy in (None, "steps"):
        every = int(steps)
    arguments: dict[str, Any] = {} if every in (None, "1ep") else {"every": every}
    keep = top.integer("save_total_limit")
    arguments |= {} if keep is None else {"keep": keep}
    if top.switch("save_only_model"):
        arguments["weights_only"] = True
    if arguments:
        if draft.get("validation") not in (None, 0):
            arguments["monitor"] = monitor_of(draft)
        draft.callback("Checkpoint", **arguments)
    text = _SAVED if every in (None, "1ep") else f"Checkpoint of trainer.callbacks: every: {every}"
    for key in ("save_strategy", "save_steps", "saves_per_epoch"):
        top.note(key, READ if arguments else DEFAULT, text)
    top.read("save_total_limit", "Checkpoint of trainer.callbacks, keep", keep)
    only = bool(arguments.get("weights_only"))
    top.note(
        "save_only_model",
        READ if only else DEFAULT,
        f"Checkpoint of trainer.callbacks: weights_only: {'true' if only else 'false'}",
    )


def monitor_of(draft: Draft) -> str:
    """What the best checkpoint is chosen by."""
    return MONITORS.get(draft.recipe, "val/loss" if draft.recipe == "kto" else "val/accuracy")


def _part_of_epoch(times: float) -> str:
    return f"{1 / times:.6f}".rstrip("0").rstrip(".") + "ep"


def add_early_stopping(draft: Draft, key: str) -> None:
    """A stop where validation gets no better."""
    patience = draft.top.integer(key)
    if patience is None:
        return
    if draft.get("validation") in (None, 0):
        draft.top.note(key, NONE, "nothing is validated")
        return
    draft.callback("EarlyStopping", monitor=monitor_of(draft), patience=patience)
    draft.top.read(key, "EarlyStopping of trainer.callbacks, patience", patience)


def add_log_times(draft: Draft) -> None:
    """How often a run logs."""
    steps = draft.top.number("logging_steps")
    if steps is not None and steps >= 1:
        draft.put("logging_steps", "trainer.log_every", int(steps))
    draft.top.note("logging_steps", NONE, "trainer.log_every is a number of steps, 50 unless given")


def add_trackers(draft: Draft) -> None:
    """Loggers beside those of every run."""
    names = words(draft.top, "report_to") or []
    found = [_LOGGERS[name] for name in names if name in _LOGGERS]
    others = [name for name in names if name not in (*_LOGGERS, "tensorboard", "all", "none")]
    for name in found:
        draft.trainer.setdefault("loggers", []).append({"class": name})
    if others:
        draft.top.note("report_to", NONE, f"no logger for {', '.join(others)}; {_ALWAYS}")
    draft.top.note(
        "report_to",
        READ if found else DEFAULT,
        f"trainer.loggers: {', '.join(found)}" if found else _ALWAYS,
    )


def add_compilation(draft: Draft) -> None:
    """``torch.compile``."""
    top = draft.top
    on = False if top.get("torch_compile") == "auto" else top.switch("torch_compile")
    mode, backend = top.text("torch_compile_mode"), top.text("torch_compile_backend")
    if on:
        options = {} if backend in (None, "inductor") else {"backend": backend}
        options |= {} if mode in (None, "default") else {"mode": mode}
        draft.set("trainer.compile", options or True)
        top.read("torch_compile", "trainer.compile", options or True)
    for key in ("torch_compile_mode", "torch_compile_backend"):
        top.note(key, READ if on else DEFAULT, "an argument of trainer.compile" if on else "it is off")
    top.note("torch_compile", DEFAULT, "trainer.compile: false")


def add_liger(draft: Draft, key: str) -> None:
    """The loss by the kernel of liger-kernel, where a recipe has that."""
    if not draft.top.switch(key):
        draft.top.note(key, DEFAULT, "it is off")
        return
    if draft.get("load_in_4bit") or draft.get("load_in_8bit"):
        draft.top.note(key, NONE, "of a model in 4 or 8 bits the loss is computed by torch")
        return
    draft.put(key, "liger", True, "of the loss; other layers are transformers'")


def add_precision(draft: Draft, precision: str | None) -> None:
    """The Trainer's precision; none: 32 bits.

    Args:
        draft: Takes it.
        precision: The Trainer's name of it.
    """
    if precision is not None:
        draft.set("trainer.precision", precision)
    for key in ("bf16", "fp16", "bfloat16", "float16", "pure_bf16"):
        on = draft.top.get(key) not in (None, False)
        text = f"trainer.precision: {precision or 32}"
        draft.top.note(key, READ if on else DEFAULT, text if on else "it is off")
    if draft.top.get("tf32") not in (None, "auto") and draft.top.switch("tf32"):
        draft.put("tf32", "trainer.fp32_precision", "tf32")
    draft.top.note("tf32", DEFAULT, "trainer.fp32_precision is as torch has it")


def add_strategy(draft: Draft, file: Path, parallel: Section) -> None:
    """DeepSpeed or FSDP, where the file names them.

    Args:
        draft: Takes it.
        file: The file, in whose folder files that it names are searched too.
        parallel: Sizes of groups of ranks, under the names that Accelerate has for them.
    """
    top = draft.top
    precision = draft.get("trainer.precision")
    given = top.get("deepspeed")
    if given is not None and not is_off(given):
        findings = top.findings
        if isinstance(given, dict):
            section = top.section("deepspeed")
            found = add_deepspeed(section, findings, file, None, precision)
        else:
            found = read_zero_file(top, "deepspeed", findings, file, None, precision)
        accumulate = draft.get("trainer.accumulate")
        draft.trainer |= found
        if "global_batch_size" in found and accumulate is not None:
            draft.trainer.pop("accumulate", None)
        parallel.skip("it is for FSDP")
        return
    sharded = bool(top.get("fsdp")) and not is_off(top.get("fsdp"))
    config = top.section("fsdp_config", "fsdp_")
    if not sharded and not config.values and len(parallel.values) == 0:
        return
    kinds = " ".join(words(top, "fsdp") or [])
    if "fsdp_version" in top.values:
        top.note("fsdp_version", DEFAULT, "torch's fully_shard, FSDP of version 2, for both")
    strategy = read_sharded_with(config, parallel, kinds)
    if strategy is not None and (sharded or config.values or strategy != "fsdp"):
        draft.set("trainer.strategy", strategy)
    top.note("fsdp", READ, f"trainer.strategy: {draft.get('trainer.strategy')}")


def read_sharded_with(config: Section, parallel: Section, kinds: str) -> Any:
    """The strategy of ``fsdp_config``, with the words that ``fsdp`` has.

    Args:
        config: The section.
        parallel: Sizes of groups of ranks.
        kinds: Words such as ``full_shard offload``.
    """
    for key in config.values:
        name = key if key.startswith("fsdp_") else f"fsdp_{key}"
        if name in _FSDP and name not in FSDP:
            config.note(name, *_FSDP[name])
    strategy = read_sharded(config, parallel, None, 2 if "hybrid" in kinds else 1)
    if strategy != "fsdp":
        return strategy
    options = {"reshard_after_forward": False} if "shard_grad_op" in kinds else {}
    options |= {"cpu_offload": True} if "offload" in kinds.split() else {}
    if "hybrid_shard" in kinds:
        return {"class": "HSDP", **options} if options else "hsdp"
    return {"class": "FSDP", **options} if options else strategy


def add_hub(draft: Draft, key: str) -> None:
    """The place on the hub, where a recipe pushes to it."""
    name = draft.top.text(key)
    if name is not None:
        without = (ELSEWHERE, "push the folder exported of the run, with hf upload")
        draft.put(key, "hub", name, without=without)
