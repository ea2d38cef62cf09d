"""Axolotl's YAML as settings of our recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ....trainer.config.yaml_reader import YamlText
from ..reading import DEFAULT, ELSEWHERE, NONE, READ, REFUSED, Reading
from ..section import Findings, Section, whole_mapping
from . import axolotl_names as names
from . import axolotl_settings as settings
from . import run
from .axolotl_data import add_data
from .draft import Draft, SettingsOf, is_off, refused, words
from .optimization import add_batches, add_length_of_run, add_optimizer, add_schedule

SOURCE = "Axolotl"
_TOO_LONG = {"drop": "drop", "truncate": "cut", "raise": "error"}
_IDLE = "it is for adapter: lora"
_CHOSEN = "the fastest attention that keeps packed samples apart is found by itself"
_PATTERN = re.compile(r"\^?([\w.]*?)(?:\.\*|\.)?\$?")


def read_axolotl(text: YamlText, file: Path, settings_of: SettingsOf) -> Reading:
    """What a file of Axolotl is here.

    Args:
        text: The content of the file.
        file: The file, for messages, and to find files that it names.
        settings_of: The settings of our recipes.

    Raises:
        PacelineError: one report of all values that are wrong, and of keys that are typos.
    """
    top = Section(Findings(text, str(file), SOURCE), whole_mapping(text, str(file)))
    rl = str(top.get("rl") or "").lower()
    if rl and rl not in (*settings.OBJECTIVES, "kto"):
        return refused(SOURCE, top, "rl", names.NO_RL)
    if top.get("process_reward_model") not in (None, False):
        return refused(SOURCE, top, "process_reward_model", names.PROCESS)
    rewards = top.switch("reward_model")
    recipe = "reward-model" if rewards else "kto" if rl == "kto" else "dpo" if rl else "llm-finetune"
    draft = Draft(top, recipe, settings_of(recipe))
    for key in ("rl", "reward_model", "process_reward_model"):
        top.note(key, READ if top.get(key) else DEFAULT, f"recipe: {recipe}")
    draft.translate(settings.SETTINGS, _IDLE if is_off(top.get("adapter") or False) else None)
    _method(draft)
    _model(draft)
    add_data(draft)
    draft.translate(run.TRAINER)
    _learned(draft)
    _objective(draft, rl)
    add_optimizer(draft, "optimizer")
    add_schedule(draft, "lr_scheduler", "cosine", "3%")
    add_batches(draft, "micro_batch_size", 1)
    add_length_of_run(draft, "num_epochs", 1)
    _run(draft, file)
    return draft.finish(SOURCE, names.KNOWN, (*settings.READ_HERE, *settings.SETTINGS, *run.TRAINER))


def _method(draft: Draft) -> None:
    """What is trained: all weights, adapters, or parameters by their names."""
    top = draft.top
    kind = str(top.get("adapter") or "").lower()
    if kind not in ("", "lora", "qlora"):
        top.note("adapter", REFUSED, "adapter: lora or qlora")
    method = "lora" if kind else "full"
    top.note("adapter", READ, f"method: {method}")
    patterns = words(top, "unfrozen_parameters")
    if patterns and not kind:
        method = "freeze"
        found = [_PATTERN.fullmatch(one) for one in patterns]
        if all(one is not None and one[1] for one in found):
            modules = [f"{one[1]}*" for one in found if one is not None]
            draft.put("unfrozen_parameters", "train_modules", modules)
        sentence = "method: freeze, with names of parameters in train_modules: *.mlp.*, lm_head"
        top.note("unfrozen_parameters", REFUSED, sentence)
    top.note("unfrozen_parameters", DEFAULT, "it is for runs without adapters")
    draft.set("method", method)
    if method == "lora":
        _targets(draft)
        return
    for key in ("lora_target_modules", "lora_target_linear", "peft_init_lora_weights"):
        top.note(key, DEFAULT, _IDLE)


def _targets(draft: Draft) -> None:
    top = draft.top
    if "lora_alpha" in draft.settings:
        draft.set("lora_alpha", float(draft.get("lora_alpha")))
    draft.usual(lora_rank=8)
    targets = top.get("lora_target_modules")
    linear = top.switch("lora_target_linear")
    if isinstance(targets, str) and not linear:
        plain = "all-linear" if targets in ("all-linear", "all") else targets
        draft.put("lora_target_modules", "lora_targets", plain)
    elif targets is not None and not linear:
        draft.put("lora_target_modules", "lora_targets", words(top, "lora_target_modules"))
    for key in ("lora_target_modules", "lora_target_linear"):
        top.note(key, READ, f"lora_targets: {draft.get('lora_targets') or 'all-linear'}")
    init = top.get("peft_init_lora_weights")
    if isinstance(init, str):
        good = init in ("gaussian", "olora", "orthogonal", "pissa") or init.startswith("pissa_niter_")
        if good:
            draft.put("peft_init_lora_weights", "lora_init", init)
        sentence = "lora_init: default, gaussian, olora, orthogonal or pissa"
        top.note("peft_init_lora_weights", REFUSED, sentence)
    top.note("peft_init_lora_weights", DEFAULT, "lora_init: default")


def _model(draft: Draft) -> None:
    """How the model is loaded."""
    top = draft.top
    for bits in (4, 8):
        key = f"load_in_{bits}bit"
        if top.switch(key) and draft.get("method") != "lora":
            top.note(key, NONE, "Axolotl trains adapters alone on a model in 4 or 8 bits")
        elif top.switch(key):
            draft.put(key, key, True, without=(REFUSED, "a model is kept in 4 bits: load_in_4bit: true"))
        top.note(key, DEFAULT, "it is off")
    attention = top.text("attn_implementation")
    if attention == "eager" or top.switch("eager_attention"):
        draft.put("attn_implementation", "attn_implementation", "eager")
        draft.put("eager_attention", "attn_implementation", "eager")
    for key in ("attn_implementation", "eager_attention"):
        top.note(key, DEFAULT, _CHOSEN)
    value = top.get("gradient_checkpointing")
    on = value is not None and not is_off(value)
    draft.set("gradient_checkpointing", on)
    more = "; activations are not moved" if isinstance(value, str) and on else ""
    top.note("gradient_checkpointing", READ, f"gradient_checkpointing: {str(on).lower()}{more}")
    if not draft.has("trust_remote_code"):
        top.note(
            "trust_remote_code", NONE, "models of transformers alone: no code of a model's folder is run"
        )
    if top.get("revision_of_model") is not None:
        sentence = "download that revision: hf download MODEL --revision ..., and give its folder"
        draft.put(
            "revision_of_model", "revision", top.text("revision_of_model"), without=(REFUSED, sentence)
        )
    _tokens(draft)
    _template(draft)


def _tokens(draft: Draft) -> None:
    top = draft.top
    sentence = "tokens are not added: add them to the model's folder, with resize_token_embeddings"
    if isinstance(top.get("tokens"), dict):
        top.note("tokens", ELSEWHERE, "the tokens of the model's folder are its own")
    elif "tokens" in top:
        draft.put("tokens", "added_tokens", words(top, "tokens"), without=(REFUSED, sentence))


def _template(draft: Draft) -> None:
    top = draft.top
    own = "the tokenizer's own chat template; else chat_template: chatml, or a file of Jinja"
    text = top.text("chat_template_jinja")
    if text is not None:
        if "{" in text:
            top.note("chat_template_jinja", REFUSED, "write it into a file, and that here")
        else:
            draft.put("chat_template_jinja", "chat_template", text)
    name = top.text("chat_template")
    if name == "chatml":
        draft.put("chat_template", "chat_template", name)
    top.note("chat_template", DEFAULT if name in (None, "jinja") else ELSEWHERE, own)


def _learned(draft: Draft) -> None:
    """Which tokens are learned, and what becomes of what is too long."""
    top = draft.top
    is_text = "pretraining_dataset" in top
    if draft.has("train_on") and (is_text or top.switch("train_on_inputs")):
        draft.set("train_on", "all")
    top.note("train_on_inputs", READ, f"train_on: {draft.get('train_on') or 'answers'}")
    longer = top.word("excess_length_strategy", _TOO_LONG)
    draft.set("too_long", "cut" if is_text else _TOO_LONG[longer or "drop"])
    top.note("excess_length_strategy", READ, f"too_long: {draft.get('too_long')}")
    draft.usual(packing=False, length=512)
    if top.switch("curriculum_sampling"):
        draft.set("shuffle", False)
    run.add_grouping(draft)


def _objective(draft: Draft, rl: str) -> None:
    """Settings of preferences."""
    top = draft.top
    if rl in settings.OBJECTIVES:
        objective = settings.OBJECTIVES[rl]
        kinds = words(top, "dpo_loss_type")
        if rl == "dpo" and kinds is not None:
            if kinds in (["sigmoid"], ["ipo"], ["hinge"]):
                objective = kinds[0]
                top.note("dpo_loss_type", READ, f"objective: {objective}")
            top.note("dpo_loss_type", REFUSED, "one of sigmoid, ipo and hinge; rl: orpo or simpo")
        draft.set("objective", objective)
    for key in ("rl_beta", "dpo_beta", "orpo_alpha"):
        beta = top.number(key)
        if beta is not None and rl:
            draft.put(key, "beta", beta)
    part = top.number("cpo_alpha")
    if rl == "simpo":  # as TRL's CPOTrainer has it, and below its ORPOTrainer
        draft.set("sft_weight", 1.0 if part is None else part)
    if rl in ("simpo", "orpo"):
        draft.set("sft_mean", "tokens")
        draft.set("sft_on", "all" if rl == "orpo" else "answers")


def _run(draft: Draft, file: Path) -> None:
    top = draft.top
    trains_all = draft.get("method") != "lora"
    sharded = any(top.get(key) not in (None, [], {}) for key in ("fsdp", "fsdp_config", "deepspeed"))
    half, whole = (not is_off(top.get(key) or False) for key in ("bf16", "bfloat16"))
    precision = "fp16" if not is_off(top.get("fp16") or top.get("float16") or False) else None
    if half or whole:  # the weights too: under FSDP and DeepSpeed with copies in 32 bits
        precision = "bf16-true" if trains_all and not sharded else "bf16"
        draft.set("dtype", "float32" if trains_all else "bfloat16")
    run.add_precision(draft, precision)
    top.note("float32", DEFAULT, f"trainer.precision: {precision or 32}")
    top.note("torch_dtype", DEFAULT, f"trainer.precision: {precision or 32}")
    run.add_strategy(draft, file, _parallel(top))
    run.add_validation_times(draft)
    run.add_early_stopping(draft, "early_stopping_patience")
    run.add_checkpoints(draft)
    run.add_log_times(draft)
    _loggers(draft)
    run.add_compilation(draft)
    top.note("torch_compile_options", NONE, "trainer.compile: {options: ...}, arguments of torch.compile")
    run.add_liger(draft, "liger_fused_linear_cross_entropy")
    run.add_hub(draft, "hub_model_id")


def _parallel(top: Section) -> Section:
    """Sizes of groups of ranks, under the names that Accelerate has for them."""
    values: dict[str, Any] = {}
    for key in ("dp_shard_size", "dp_replicate_size"):
        if key in top.values:
            values[key] = top.values[key]
            top.note(key, READ, "trainer.strategy: FSDP over the ranks, HSDP where they are copied")
    if "tensor_parallel_size" in top.values:
        values["tp_size"] = top.values["tensor_parallel_size"]
        top.note("tensor_parallel_size", READ, "tensor of FSDP in trainer.strategy")
    return Section(Findings(YamlText({}, {}), "", SOURCE), values, "", "parallelism_config_")


def _loggers(draft: Draft) -> None:
    top = draft.top
    for name, table in settings.LOGGERS.items():
        found = {ours: top.text(key) for key, ours in table.items() if key in top}
        if top.switch(settings.SWITCHES[name]) is False:
            found = {}
        elif found or top.switch(settings.SWITCHES[name]):
            draft.trainer.setdefault("loggers", []).append({"class": name, **found})
        for key, ours in table.items():
            top.note(key, READ if found else DEFAULT, f"{ours} of {name} in trainer.loggers")
        top.note(settings.SWITCHES[name], READ, f"{name} in trainer.loggers")
