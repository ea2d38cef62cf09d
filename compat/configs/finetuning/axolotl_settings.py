"""The keys of Axolotl's files that settings of ours are made of."""

from __future__ import annotations

from .draft import Table

OBJECTIVES = {"dpo": "sigmoid", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
"""Objectives of the recipe ``dpo``, by ``rl``."""
SETTINGS: Table = {
    "base_model": ("text", "model"),
    "sequence_len": ("integer", "length"),
    "default_system_message": ("text", "system"),
    "lora_r": ("integer", "lora_rank"),
    "lora_alpha": ("integer", "lora_alpha"),
    "lora_dropout": ("number", "lora_dropout"),
    "lora_modules_to_save": ("words", "modules_to_save"),
    "lora_model_dir": ("text", "adapter"),
    "peft_use_dora": ("on", "lora_dora"),
    "peft_use_rslora": ("on", "lora_rslora"),
    "loraplus_lr_ratio": ("positive", "lora_plus_ratio"),
    "embedding_lr": ("positive", "embedding_learning_rate"),
    "sample_packing": ("switch", "packing"),
    "streaming": ("on", "streaming"),
    "noisy_embedding_alpha": ("positive", "neftune_alpha"),
    "dpo_label_smoothing": ("number", "label_smoothing"),
    "rpo_alpha": ("number", "sft_weight"),
    "simpo_gamma": ("number", "gamma"),
    "kto_desirable_weight": ("number", "good_weight"),
    "kto_undesirable_weight": ("number", "bad_weight"),
    "center_rewards_coefficient": ("number", "center"),
}
READ_HERE = (
    "group_by_length",
    *("datasets", "test_datasets", "pretraining_dataset", "val_set_size", "adapter", "rl", "reward_model"),
    *("load_in_4bit", "load_in_8bit", "lora_target_modules", "lora_target_linear", "unfrozen_parameters"),
    *("peft_init_lora_weights", "train_on_inputs", "excess_length_strategy", "chat_template"),
    *("chat_template_jinja", "attn_implementation", "eager_attention", "gradient_checkpointing", "bf16"),
    *("fp16", "bfloat16", "float16", "float32", "tf32", "tokens", "revision_of_model", "rl_beta"),
    *("orpo_alpha", "dpo_beta", "dpo_loss_type", "micro_batch_size", "gradient_accumulation_steps"),
    *("batch_size", "num_epochs", "max_steps", "optimizer", "lr_scheduler", "warmup_ratio", "warmup_steps"),
    *(
        "cosine_min_lr_ratio",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "deepspeed",
        "fsdp",
        "fsdp_config",
    ),
    *("fsdp_version", "dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "saves_per_epoch"),
    *(
        "save_steps",
        "save_strategy",
        "save_total_limit",
        "save_only_model",
        "evals_per_epoch",
        "eval_steps",
    ),
    *("eval_strategy", "evaluation_strategy", "early_stopping_patience", "logging_steps", "use_wandb"),
    *("wandb_project", "wandb_entity", "wandb_name", "wandb_mode", "use_mlflow", "mlflow_tracking_uri"),
    *("mlflow_experiment_name", "mlflow_run_name", "use_trackio", "trackio_project_name", "torch_dtype"),
    *(
        "trackio_run_name",
        "trackio_space_id",
        "torch_compile",
        "torch_compile_mode",
        "torch_compile_backend",
    ),
    *("torch_compile_options", "liger_fused_linear_cross_entropy", "hub_model_id", "process_reward_model"),
)
LOGGERS = {
    "WandB": {
        "wandb_project": "project",
        "wandb_entity": "entity",
        "wandb_name": "name",
        "wandb_mode": "mode",
    },
    "MLflow": {
        "mlflow_experiment_name": "experiment",
        "mlflow_tracking_uri": "tracking_uri",
        "mlflow_run_name": "name",
    },
    "Trackio": {
        "trackio_project_name": "project",
        "trackio_space_id": "space_id",
        "trackio_run_name": "name",
    },
}
"""Arguments of our loggers, by their keys."""
SWITCHES = {"WandB": "use_wandb", "MLflow": "use_mlflow", "Trackio": "use_trackio"}
