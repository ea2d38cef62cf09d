"""LLaMA-Factory's YAML as settings of our recipes."""

from __future__ import annotations

from pathlib import Path

from ....trainer.config.yaml_reader import YamlText
from ..reading import DEFAULT, NONE, READ, REFUSED, Reading
from ..section import Findings, Section, whole_mapping
from . import llama_factory_names as names
from . import run
from .draft import Draft, SettingsOf, is_off, refused, words
from .llama_factory_data import add_data
from .optimization import add_batches, add_length_of_run, add_optimizer, add_schedule

SOURCE = "LLaMA-Factory"
_ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager"}
_TEMPLATES = {"chatml": "chatml", "default": "plain", "alpaca": "plain"}
_IDLE = "it is for finetuning_type: lora"
_CHOSEN = "the fastest attention that keeps packed samples apart is found by itself"


def read_llama_factory(text: YamlText, file: Path, settings_of: SettingsOf) -> Reading:
    """What a file of LLaMA-Factory is here.

    Args:
        text: The content of the file.
        file: The file, for messages, and to find files that it names.
        settings_of: The settings of our recipes.

    Raises:
        PacelineError: one report of all values that are wrong, and of keys that are typos.
    """
    top = Section(Findings(text, str(file), SOURCE), whole_mapping(text, str(file)))
    refusal = _refusal(top)
    if refusal is not None:
        return refused(SOURCE, top, *refusal)
    stage = top.word("stage", (*names.RECIPES, "ppo")) or "sft"
    recipe = names.RECIPES.get(stage, "llm-finetune")
    draft = Draft(top, recipe, settings_of(recipe))
    top.note("stage", READ, f"recipe: {recipe}")
    adapters = str(top.get("finetuning_type") or "lora").lower() in ("lora", "oft")
    draft.translate(names.SETTINGS, None if adapters else _IDLE)
    _method(draft)
    _model(draft)
    add_data(draft, file, stage)
    draft.translate(run.TRAINER)
    draft.usual(learning_rate=5e-5, length=2048)
    _learned(draft, stage)
    _objective(draft)
    _optimization(draft)
    _run(draft, file)
    return draft.finish(SOURCE, names.KNOWN, (*names.READ_HERE, *names.SETTINGS, *run.TRAINER))


def _refusal(top: Section) -> tuple[str, str] | None:
    """The key for which a file is refused as a whole, and why."""
    for key in ("model_class", "train_dataset", "dist_config", "sample_backend", "peft_config"):
        if key in top:
            return key, names.V1
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "use_megatron_bridge"):
        if key in top:
            return key, names.MEGATRON_FILE
    if str(top.get("stage")) == "ppo":
        return "stage", names.PPO
    if "export_dir" in top and "do_train" not in top:
        return "export_dir", names.MERGE
    if "infer_backend" in top and "do_train" not in top:
        return "infer_backend", names.CHAT
    if "do_train" not in top or is_off(top.get("do_train")):
        found = [one for one in ("do_train", "do_predict", "do_eval", "tokenized_path") if one in top]
        return (found[0], names.NO_RUN) if found else None
    return None


def _method(draft: Draft) -> None:
    """What is trained: all weights, adapters or layers."""
    top = draft.top
    kind = top.word("finetuning_type", ("lora", "oft", "freeze", "full")) or "lora"
    if kind == "oft":
        top.note("finetuning_type", REFUSED, "no OFT: finetuning_type: lora")
    method = "lora" if kind == "oft" else kind
    draft.set("method", method)
    top.note("finetuning_type", READ, f"method: {method}")
    extra = words(top, "additional_target")
    if method == "lora":
        _adapters(draft, extra)
        return
    for key in ("lora_rank", "lora_alpha", "lora_target", "pissa_init", "pissa_iter"):
        top.note(key, DEFAULT, _IDLE)
    top.note("adapter_name_or_path", REFUSED, "adapters are trained by finetuning_type: lora")
    if method == "freeze":
        layers = top.get("freeze_trainable_layers")
        count = layers if isinstance(layers, int) and not isinstance(layers, bool) else 2
        draft.set("train_layers", count)
        top.read("freeze_trainable_layers", "train_layers", count)
        if (words(top, "freeze_trainable_modules") or ["all"]) != ["all"]:
            sentence = "all of a layer is trained; train_modules has names of parameters"
            top.note("freeze_trainable_modules", REFUSED, sentence)
        more = words(top, "freeze_extra_modules")
        if more:
            draft.put("freeze_extra_modules", "train_modules", more)
    for key in ("freeze_trainable_layers", "freeze_extra_modules", "additional_target"):
        top.note(key, DEFAULT, "it is for another finetuning_type")


def _adapters(draft: Draft, extra: list[str] | None) -> None:
    top = draft.top
    rank = top.integer("lora_rank") or 8
    alpha = top.integer("lora_alpha") or 2 * rank
    draft.put("lora_rank", "lora_rank", rank)
    draft.put("lora_alpha", "lora_alpha", float(alpha))
    targets = words(top, "lora_target") or ["all"]
    if targets != ["all"]:
        draft.put("lora_target", "lora_targets", targets)
    top.note("lora_target", READ, "lora_targets: all-linear")
    if extra:
        draft.put("additional_target", "modules_to_save", extra)
    if top.switch("pissa_init"):
        rounds = top.get("pissa_iter")
        count = rounds if isinstance(rounds, int) and not isinstance(rounds, bool) else 16
        draft.put("pissa_init", "lora_init", "pissa" if count < 0 else f"pissa_niter_{count}")
    top.note("pissa_init", DEFAULT, "lora_init: default")
    top.note("pissa_iter", READ, f"lora_init: {draft.get('lora_init') or 'default'}")
    adapters = words(top, "adapter_name_or_path")
    if adapters and len(adapters) > 1:
        top.note("adapter_name_or_path", REFUSED, "one adapter: merge the first ones into the model")
    elif adapters:
        draft.put("adapter_name_or_path", "adapter", adapters[0])
    for key in ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"):
        top.note(key, DEFAULT, "it is for finetuning_type: freeze")


def _model(draft: Draft) -> None:
    """How the model is loaded."""
    top = draft.top
    bits = top.integer("quantization_bit")
    methods = ("bnb", "bitsandbytes")
    if bits in (4, 8) and str(top.get("quantization_method") or "bnb").lower() in methods:
        sentence = "the base is kept in 4 bits, or whole: quantization_bit: 4"
        draft.put("quantization_bit", f"load_in_{bits}bit", True, without=(REFUSED, sentence))
    elif bits is not None:
        top.note("quantization_bit", REFUSED, "quantization_method: bnb, and 4 or 8 bits")
    if str(top.get("quantization_type") or "nf4") != "nf4":
        top.note("quantization_type", REFUSED, "quantization_type: nf4")
    attention = top.text("flash_attn")
    name = _ATTENTION.get((attention or "").lower(), attention)
    if name == "eager":
        draft.put("flash_attn", "attn_implementation", name)
    top.note("flash_attn", DEFAULT, _CHOSEN)
    if not top.switch("disable_gradient_checkpointing"):
        draft.set("gradient_checkpointing", True)
    on = bool(draft.get("gradient_checkpointing"))
    top.note("disable_gradient_checkpointing", READ, f"gradient_checkpointing: {str(on).lower()}")
    template = _TEMPLATES.get(top.text("template") or "")
    if template is not None:
        draft.put("template", "chat_template", template)
    revision = top.text("model_revision")
    if revision not in (None, "main"):
        sentence = "download that revision: hf download MODEL --revision ..., and give its folder"
        draft.put("model_revision", "revision", revision, without=(REFUSED, sentence))
    top.note("model_revision", DEFAULT, "main")
    if not draft.has("trust_remote_code"):
        top.note(
            "trust_remote_code", NONE, "models of transformers alone: no code of a model's folder is run"
        )
    tokens = [one for key in ("add_tokens", "add_special_tokens") for one in words(top, key) or []]
    for key in ("add_tokens", "add_special_tokens"):
        sentence = "tokens are not added: add them to the model's folder, with resize_token_embeddings"
        draft.put(key, "added_tokens", tokens, without=(REFUSED, sentence)) if key in top else None


def _learned(draft: Draft, stage: str) -> None:
    """Which tokens are learned, and whether rows have several samples."""
    top = draft.top
    packing = top.switch("packing")
    neat = top.switch("neat_packing")
    packed = (stage == "pt") if packing is None else packing
    if draft.has("packing"):
        draft.set("packing", bool(packed or neat))
    run.add_grouping(draft)
    text = f"packing: {str(bool(packed or neat)).lower()}"
    top.note("packing", READ if draft.has("packing") else NONE, text if draft.has("packing") else "pairs")
    if draft.has("train_on"):
        everything = stage == "pt" or top.switch("train_on_prompt")
        last = top.switch("mask_history")
        if everything or last:
            draft.set("train_on", "all" if everything else "last")
    for key in ("train_on_prompt", "mask_history"):
        top.note(key, READ, f"train_on: {draft.get('train_on') or 'answers'}")


def _objective(draft: Draft) -> None:
    """Settings of preferences."""
    top = draft.top
    kind = top.text("pref_loss") or "sigmoid"
    if draft.recipe == "dpo":
        if kind in ("sigmoid", "hinge", "ipo", "orpo", "simpo"):
            draft.put("pref_loss", "objective", kind)
        top.note("pref_loss", REFUSED, "sigmoid, hinge, ipo, orpo or simpo; stage: kto for labels")
        part = top.number("pref_ftx")
        if part:
            draft.put("pref_ftx", "sft_weight", part)
    if draft.recipe in ("dpo", "kto"):
        beta = top.number("pref_beta")
        if beta is not None:
            draft.put("pref_beta", "beta", beta)
    for key in ("pref_loss", "pref_beta", "pref_ftx"):
        top.note(key, DEFAULT, f"the recipe {draft.recipe} has no use for it")


def _optimization(draft: Draft) -> None:
    top = draft.top
    if top.switch("use_muon"):
        draft.put("use_muon", "optimizer", "MuonWithAdamW")
        top.note("optim", DEFAULT, "use_muon says it")
    else:
        add_optimizer(draft, "optim")
    top.note("use_muon", DEFAULT, "it is off")
    add_schedule(draft, "lr_scheduler_type", "linear", 0)
    add_batches(draft, "per_device_train_batch_size", 8)
    add_length_of_run(draft, "num_train_epochs", 3)
    if top.switch("disable_shuffling"):
        draft.set("shuffle", False)
    top.note("disable_shuffling", READ, f"shuffle: {str(not top.switch('disable_shuffling')).lower()}")


def _run(draft: Draft, file: Path) -> None:
    top = draft.top
    pure, bf16, fp16 = (top.switch(key) for key in ("pure_bf16", "bf16", "fp16"))
    precision = "bf16-true" if pure else "bf16" if bf16 else "fp16" if fp16 else None
    if precision in ("bf16", "bf16-true") and (draft.get("method") == "lora" or pure):
        draft.set("dtype", "bfloat16")
    run.add_precision(draft, precision)
    run.add_strategy(draft, file, Section(top.findings, {}))
    run.add_validation_times(draft)
    run.add_early_stopping(draft, "early_stopping_steps")
    run.add_checkpoints(draft)
    run.add_log_times(draft)
    run.add_trackers(draft)
    run.add_compilation(draft)
    for key in ("enable_liger_kernel", "use_liger_kernel"):
        run.add_liger(draft, key)
    run.add_hub(draft, "hub_model_id")
