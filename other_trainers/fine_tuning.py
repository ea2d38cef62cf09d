"""Settings of TRL, transformers, LLaMA-Factory and Axolotl, answered with those of our recipes."""

from __future__ import annotations

_NOT_NEEDED = "remove it: it is not needed"
_PROCESSING = "remove it: samples are read by one process, and not kept as files"
_EVALUATION = "remove it: validation uses batch_size and trainer.precision too"
_HUB = "hub, or remove it: hf upload pushes exported of the run"
_CHECKPOINT = "trainer.callbacks: [{class: Checkpoint, "
_ARGUMENTS = "optimizer: {class: AdamW, "
_REFERENCE = "remove it: the reference is the model as it was, computed in each step"
_TOKENS = "remove it: the tokens of the tokenizer's folder"
_METRICS = "remove it: losses are means over tokens, and the best checkpoint is chosen by them"
_LOGS = "remove it: metrics.jsonl, TensorBoard's files and curves.png are always written"
_FOUND = "remove it: it is found by itself"
_GENERATED = "remove it: validation gives losses; samples of text are no part of it"
_MOE = "remove it: there is no loss of the router"

OF_RECIPES: dict[str, str] = {
    # the model
    **dict.fromkeys(("model_name_or_path", "base_model", "model_name"), "model"),
    **dict.fromkeys(
        ("model_revision", "revision_of_model"), "revision, or model: the folder that hf download wrote"
    ),
    **dict.fromkeys(("torch_dtype", "bnb_4bit_compute_dtype"), "dtype"),
    "trust_remote_code": "remove it: models of transformers alone, no code of a model's folder is run",
    "flash_attn": "attn_implementation, or remove it: the fastest attention is found by itself",
    **dict.fromkeys(
        ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention"),
        "attn_implementation, or remove it: the fastest attention is found by itself",
    ),
    "model_init_kwargs": "dtype, attn_implementation and dropout",
    "chat_template_path": "chat_template",
    "template": "chat_template, or remove it: the tokenizer's own is used",
    **dict.fromkeys(("default_system", "default_system_message", "system_prompt"), "system"),
    "quantization_bit": "load_in_4bit: true",
    "load_in_8bit": "load_in_4bit: true",
    **dict.fromkeys(
        ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage", "double_quantization"),
        "remove it: load_in_4bit is NF4 with products in bfloat16",
    ),
    **dict.fromkeys(("eos_token", "pad_token", "special_tokens", "padding_value"), _TOKENS),
    **dict.fromkeys(("add_tokens", "add_special_tokens", "tokens"), "added_tokens"),
    "resize_vocab": _NOT_NEEDED,
    "is_encoder_decoder": "remove it: the models are causal language models",
    "use_cache": _NOT_NEEDED,
    "disable_dropout": "dropout: 0",
    "router_aux_loss_coef": _MOE,
    **dict.fromkeys(
        ("gradient_checkpointing_kwargs", "disable_gradient_checkpointing"), "gradient_checkpointing"
    ),
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing",
    "activation_offloading": "trainer.strategy: {class: FSDP, activation_offload: true}",
    # adapters
    "finetuning_type": "method: full, lora or freeze",
    **dict.fromkeys(("use_peft", "use_lora", "adapter_type"), "method: lora"),
    "lora_r": "lora_rank",
    **dict.fromkeys(
        ("lora_target", "lora_target_modules", "lora_target_linear", "target_modules"), "lora_targets"
    ),
    **dict.fromkeys(("lora_modules_to_save", "additional_target"), "modules_to_save"),
    "lora_target_parameters": "lora_targets",
    "lora_task_type": _FOUND,
    **dict.fromkeys(("use_rslora", "peft_use_rslora"), "lora_rslora"),
    **dict.fromkeys(("use_dora", "peft_use_dora"), "lora_dora"),
    "loraplus_lr_ratio": "lora_plus_ratio",
    "pissa_init": "lora_init: pissa",
    **dict.fromkeys(("peft_init_lora_weights", "init_lora_weights"), "lora_init"),
    **dict.fromkeys(("adapter_name_or_path", "lora_model_dir"), "adapter"),
    "freeze_trainable_layers": "train_layers",
    **dict.fromkeys(
        ("freeze_trainable_modules", "freeze_extra_modules", "unfrozen_parameters"), "train_modules"
    ),
    # the data
    **dict.fromkeys(("dataset", "datasets", "dataset_name", "dataset_path", "train_dataset"), "data"),
    **dict.fromkeys(("eval_dataset", "test_datasets", "val_set_size", "val_size"), "validation"),
    "test_split_size": "validation",
    **dict.fromkeys(("dataset_config", "dataset_train_split"), "data: {path: ..., name: ..., split: ...}"),
    "dataset_test_split": "validation: {path: ..., split: ...}",
    "dataset_dir": "data: the file",
    "dataset_streaming": "streaming",
    **dict.fromkeys(("max_length", "max_seq_length", "cutoff_len", "sequence_len"), "length"),
    **dict.fromkeys(("max_prompt_length", "max_completion_length"), "length, of prompt and answer"),
    **dict.fromkeys(("truncation_mode", "excess_length_strategy"), "too_long: cut, drop or error"),
    "dataset_text_field": "data: {path: ..., columns: {text: NAME}}",
    "dataset_kwargs": _NOT_NEEDED,
    **dict.fromkeys(
        ("dataset_num_proc", "dataset_processes", "preprocessing_num_workers", "overwrite_cache"),
        _PROCESSING,
    ),
    **dict.fromkeys(("shuffle_dataset", "disable_shuffling"), "shuffle"),
    **dict.fromkeys(("sample_packing", "neat_packing", "eval_packing"), "packing"),
    "packing_strategy": "packing: rows are filled by length, and samples that are too long are cut",
    "padding_free": "packing, or remove it: group_by_length leaves less to fill up",
    "pad_to_multiple_of": _NOT_NEEDED,
    "train_on_inputs": "train_on: all",
    "train_on_prompt": "train_on: all",
    "mask_history": "train_on: last",
    **dict.fromkeys(("completion_only_loss", "assistant_only_loss"), "train_on: answers"),
    "remove_unused_columns": _NOT_NEEDED,
    "label_names": _NOT_NEEDED,
    **dict.fromkeys(("train_sampling_strategy", "length_column_name"), "group_by_length"),
    # batches and the length of a run
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size", "train_batch_size"), "batch_size"),
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_batch_size", "eval_accumulation_steps"), _EVALUATION
    ),
    "gradient_accumulation_steps": "trainer.accumulate, or trainer.global_batch_size",
    "average_tokens_across_devices": "remove it: losses are always means over the tokens of all ranks",
    "auto_find_batch_size": "trainer.batch_size: auto",
    **dict.fromkeys(("num_train_epochs", "num_epochs", "max_epochs"), "epochs"),
    "max_steps": "trainer.max_steps",
    **dict.fromkeys(("dataloader_num_workers", "num_workers"), "workers"),
    **dict.fromkeys(
        (
            *("dataloader_drop_last", "dataloader_pin_memory", "dataloader_persistent_workers"),
            *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
        ),
        "remove it: workers is the setting of the dataloaders",
    ),
    # optimization
    "lr": "learning_rate",
    "optim": "optimizer",
    **dict.fromkeys(("adam_beta1", "adam_beta2"), f"{_ARGUMENTS}betas: [...]}}"),
    **dict.fromkeys(("adam_epsilon", "adam_eps"), f"{_ARGUMENTS}eps: ...}}"),
    "optim_args": f"{_ARGUMENTS}NAME: VALUE}}",
    "optim_target_modules": "optimizer: {class: PACKAGE.MODULE:CLASS}",
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), "scheduler"),
    "lr_scheduler_kwargs": "scheduler: {class: cosine, NAME: VALUE}",
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "warmup: 3%, or a number of steps"),
    **dict.fromkeys(("max_grad_norm", "gradient_clipping"), "trainer.clip_grad_norm"),
    "label_smoothing_factor": "label_smoothing",
    **dict.fromkeys(("neftune_noise_alpha", "noisy_embedding_alpha"), "neftune_alpha"),
    "embedding_lr": "embedding_learning_rate",
    **dict.fromkeys(("use_liger_kernel", "enable_liger_kernel", "liger_kernel_config"), "liger"),
    # objectives
    **dict.fromkeys(
        ("loss_type", "pref_loss", "rl"), "objective, of the recipe dpo; kto is another recipe"
    ),
    **dict.fromkeys(("rl_beta", "pref_beta", "orpo_alpha"), "beta"),
    **dict.fromkeys(("simpo_gamma", "gamma_beta_ratio"), "gamma"),
    **dict.fromkeys(("cpo_alpha", "rpo_alpha", "pref_ftx"), "sft_weight"),
    "dpo_label_smoothing": "label_smoothing",
    **dict.fromkeys(("desirable_weight", "kto_desirable_weight", "kto_chosen_weight"), "good_weight"),
    **dict.fromkeys(("undesirable_weight", "kto_undesirable_weight", "kto_rejected_weight"), "bad_weight"),
    "center_rewards_coefficient": "center",
    **dict.fromkeys(
        (
            *("loss_weights", "ld_alpha", "f_divergence_type", "f_alpha_divergence_coef", "use_weighting"),
            *("discopop_tau", "alpha"),
        ),
        "remove it: objectives are sigmoid, ipo, hinge, orpo and simpo, with beta and sft_weight",
    ),
    **dict.fromkeys(
        (
            *("precompute_ref_log_probs", "precompute_ref_batch_size", "sync_ref_model"),
            *("ref_model_mixup_alpha", "ref_model_sync_steps", "ref_model"),
        ),
        _REFERENCE,
    ),
    **dict.fromkeys(("generate_during_eval", "predict_with_generate"), _GENERATED),
    # where and how it computes
    "bf16": "trainer.precision: bf16",
    "fp16": "trainer.precision: fp16",
    "pure_bf16": "trainer.precision: bf16-true",
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), _EVALUATION),
    "tf32": "trainer.fp32_precision: tf32",
    "use_cpu": "trainer.accelerator: cpu",
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode"), "trainer.compile"),
    "torch_empty_cache_steps": _NOT_NEEDED,
    "deepspeed": "trainer.strategy: deepspeed_stage_3",
    **dict.fromkeys(("fsdp", "fsdp_config"), "trainer.strategy: fsdp"),
    **dict.fromkeys(("accelerator_config", "parallelism_config"), "trainer.strategy"),
    **dict.fromkeys(
        (
            *(
                "ddp_find_unused_parameters",
                "ddp_bucket_cap_mb",
                "ddp_broadcast_buffers",
                "ddp_static_graph",
            ),
            "ddp_backend",
        ),
        "trainer.strategy: {class: DDP}",
    ),
    "ddp_timeout": "trainer.timeouts",
    "local_rank": _FOUND,
    "seed": "trainer.seed",
    "data_seed": "trainer.seed",
    "full_determinism": "trainer.deterministic",
    # what it writes
    "output_dir": "trainer.run_dir",
    "run_name": "trainer.name",
    **dict.fromkeys(("overwrite_output_dir", "logging_dir"), "remove it: each run has a new folder"),
    "plot_loss": _LOGS,
    "logging_steps": "trainer.log_every",
    **dict.fromkeys(("logging_strategy", "logging_first_step"), "trainer.log_every; step 1 is logged"),
    **dict.fromkeys(("log_on_each_node", "log_level", "log_level_replica"), _LOGS),
    "logging_nan_inf_filter": "trainer.nonfinite",
    **dict.fromkeys(
        ("include_num_input_tokens_seen", "include_tokens_per_second"), "trainer.callbacks: [Throughput]"
    ),
    "disable_tqdm": "trainer.progress",
    "report_to": "trainer.loggers: [wandb]",
    **dict.fromkeys(
        ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        "trainer.loggers: [{class: Trackio, project: ..., space_id: ...}]",
    ),
    **dict.fromkeys(
        ("wandb_project", "wandb_entity", "wandb_name"), "trainer.loggers: [{class: WandB, project: ...}]"
    ),
    **dict.fromkeys(
        ("eval_strategy", "eval_steps", "evaluation_strategy", "evals_per_epoch"), "trainer.validate_every"
    ),
    **dict.fromkeys(("eval_delay", "eval_on_start"), "trainer.validate_every"),
    **dict.fromkeys(
        (
            *("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"),
            *("include_for_metrics", "batch_eval_metrics", "metric_for_best_model", "greater_is_better"),
        ),
        _METRICS,
    ),
    **dict.fromkeys(("save_strategy", "save_steps", "saves_per_epoch"), f"{_CHECKPOINT}every: ...}}]"),
    "save_total_limit": f"{_CHECKPOINT}keep: ...}}]",
    "save_only_model": f"{_CHECKPOINT}weights_only: true}}]",
    **dict.fromkeys(("save_on_each_node", "enable_jit_checkpoint"), _NOT_NEEDED),
    "load_best_model_at_end": "remove it: best of the run's folder is the best checkpoint",
    "early_stopping_patience": "trainer.callbacks: [{class: EarlyStopping, monitor: val/loss}]",
    **dict.fromkeys(
        ("resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
        "remove it: paceline fit FILE --resume auto",
    ),
    **dict.fromkeys(
        (
            "push_to_hub",
            "hub_token",
            "hub_private_repo",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
            "hub_revision",
        ),
        _HUB,
    ),
    **dict.fromkeys(
        ("do_train", "do_eval", "do_predict", "stage"), "remove it: paceline fit RECIPE trains"
    ),
    "debug": "trainer.debug",
    "skip_memory_metrics": "trainer.callbacks: [DeviceMonitor]",
    "ignore_bias_buffers": _NOT_NEEDED,
}
"""By their names; what begins with no setting of a recipe is answered for those that have the setting."""


def setting_here(name: str, known: frozenset[str]) -> str:
    """The end of a message about a setting that a recipe does not have; "" for names that none has.

    Args:
        name: As it was written.
        known: The settings of the recipe.

    Example:
        >>> setting_here("num_train_epochs", frozenset({"epochs"}))
        'use epochs'
        >>> setting_here("lora_r", frozenset({"epochs"}))
        ''
    """
    ours = OF_RECIPES.get(name, "")
    parts = [part for part in ours.split(", or ") if _may_be(part, known)]
    text = parts[0] if parts else ""
    return text if not text or text.startswith("remove it") else f"use {text}"


def _may_be(text: str, known: frozenset[str]) -> bool:
    first = text.replace(":", " ").replace(",", " ").partition(" ")[0]
    return text.startswith("remove it") or first.partition(".")[0] in known | {"trainer"}
