"""The keys of LLaMA-Factory's files, and what becomes of those that no setting is made of."""

from __future__ import annotations

from ....other_trainers.fine_tuning import OF_RECIPES
from ..reading import DEFAULT, ELSEWHERE, NONE, READ, REFUSED
from ..section import Known
from .draft import Table

OTHER = "TRL, VERL or OpenRLHF have it"
RECIPES = {"pt": "llm-finetune", "sft": "llm-finetune", "rm": "reward-model", "dpo": "dpo", "kto": "kto"}
"""Ours, by ``stage``."""
PPO = f"there is no reinforcement learning from generated answers here: {OTHER}"
V1 = "it is of LLaMA-Factory's second format (USE_V1=1): write its values into a file of the first one"
MEGATRON_FILE = "Megatron is not supported: strategy: {class: FSDP, tensor: N} splits layers"
CHAT = "the file is for chatting: paceline chat FOLDER, transformers or vLLM read exported of a run"
MERGE = "the file exports a model: exported of a run has it"
NO_RUN = "the file does not train: do_train: true"

SETTINGS: Table = {
    "model_name_or_path": ("text", "model"),
    "cutoff_len": ("integer", "length"),
    "max_samples": ("integer", "max_samples"),
    "default_system": ("text", "system"),
    "streaming": ("on", "streaming"),
    "lora_dropout": ("number", "lora_dropout"),
    "use_rslora": ("on", "lora_rslora"),
    "use_dora": ("on", "lora_dora"),
    "loraplus_lr_ratio": ("positive", "lora_plus_ratio"),
    "kto_chosen_weight": ("number", "good_weight"),
    "kto_rejected_weight": ("number", "bad_weight"),
    "simpo_gamma": ("number", "gamma"),
    "dpo_label_smoothing": ("number", "label_smoothing"),
}

READ_HERE = (
    "group_by_length",
    *("stage", "finetuning_type", "dataset", "eval_dataset", "val_size", "packing", "train_on_prompt"),
    *("mask_history", "lora_rank", "lora_alpha", "lora_target", "additional_target", "pissa_init"),
    *("pissa_iter", "adapter_name_or_path", "freeze_trainable_layers", "freeze_extra_modules"),
    *("quantization_bit", "flash_attn", "enable_liger_kernel", "disable_gradient_checkpointing"),
    *("add_tokens", "add_special_tokens", "model_revision", "pref_beta", "pref_ftx", "pref_loss"),
    *("disable_shuffling", "early_stopping_steps", "report_to", "use_muon", "optim", "adam_beta1"),
    *(
        "adam_beta2",
        "adam_epsilon",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "num_train_epochs",
    ),
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "tf32"),
    *("pure_bf16", "deepspeed", "fsdp", "fsdp_config", "save_strategy", "save_steps", "save_total_limit"),
    *("save_only_model", "eval_strategy", "eval_steps", "logging_steps", "torch_compile", "hub_model_id"),
    *("torch_compile_mode", "torch_compile_backend", "use_liger_kernel"),
)

_PICTURES = "text alone is trained on: stay with LLaMA-Factory for models of pictures, films and sounds"
_PICTURE_SIZE = "text alone is trained on, and such sizes have no use"
_OPTIMIZER = "optimizer: {class: PACKAGE.MODULE:CLASS} takes the optimizer of any package"
_LOSS = "no such loss: the losses are those of llm-finetune, dpo, kto and reward-model"
_CHAT = "of chatting and prediction, which are no part of a run"
_EXPORT = "of exporting, which is no part of a run"
_KT = "no KTransformers: trainer.strategy: deepspeed_stage_3_offload keeps weights in the host's memory"
_KERNELS = "no such kernel: liger, and FlashAttention where a model takes it"
_PROCESSING = "samples are read by one process, and not kept as files"
_RAY = "paceline launch, torchrun, srun or mpirun start ranks; Ray Train's workers join too"
_TRACKER = "no such logger: WandB, MLflow, Trackio and TensorBoard are"
_NOT_REPEATED = "each sample once in an epoch"
_MEMORY = "gradients and activations stay in memory: strategies of trainer.strategy save memory"

KNOWN: Known = {
    **{
        name: (DEFAULT, ours.removeprefix("remove it: "))
        if ours.startswith("remove it: ")
        else (ELSEWHERE, f"add it to what is written: {ours}")
        for name, ours in OF_RECIPES.items()
        if name not in READ_HERE and name not in SETTINGS
    },
    "do_train": (DEFAULT, "paceline fit trains"),
    "do_eval": (DEFAULT, "what validation names is validated"),
    "do_predict": (ELSEWHERE, "paceline predict, or vLLM on exported of the run"),
    "plot_loss": (DEFAULT, "curves.png is always drawn"),
    "overwrite_output_dir": (DEFAULT, "each run has a new folder"),
    "overwrite_cache": (DEFAULT, _PROCESSING),
    "preprocessing_num_workers": (DEFAULT, _PROCESSING),
    "preprocessing_batch_size": (DEFAULT, _PROCESSING),
    "data_shared_file_system": (DEFAULT, _PROCESSING),
    "tokenized_path": (NONE, _PROCESSING),
    "buffer_size": (DEFAULT, "the whole order is drawn, of streams too"),
    "dataset_dir": (READ, "dataset_info.json is read there"),
    "media_dir": (REFUSED, _PICTURES),
    "ddp_timeout": (DEFAULT, "trainer.timeouts has deadlines for every phase"),
    "ddp_find_unused_parameters": (DEFAULT, "parameters without gradients are found by themselves"),
    "per_device_eval_batch_size": (DEFAULT, "batch_size is of validation too"),
    "ignore_pad_token_for_loss": (DEFAULT, "filled up tokens are never learned"),
    "eval_on_each_dataset": (NONE, "one loss over all of validation"),
    "eval_num_beams": (NONE, _CHAT),
    "predict_with_generate": (NONE, "validation gives losses; samples of text are no part of it"),
    "compute_accuracy": (NONE, "of preferences the accuracy is always logged, of answers the loss"),
    "tool_format": (ELSEWHERE, "the chat template of the tokenizer writes tools"),
    "enable_thinking": (ELSEWHERE, "thoughts in reasoning_content of messages go to the chat template"),
    "preserve_thinking": (
        ELSEWHERE,
        "the chat template says which thoughts are kept; each answer is a row",
    ),
    "resume_from_checkpoint": (
        ELSEWHERE,
        "paceline fit FILE --resume auto; their checkpoints are not read",
    ),
    "cache_dir": (ELSEWHERE, "the variable HF_HOME"),
    **dict.fromkeys(("hf_hub_token", "hub_token"), (ELSEWHERE, "hf auth login, or the variable HF_TOKEN")),
    **dict.fromkeys(("ms_hub_token", "om_hub_token"), (NONE, "models are of the Hugging Face hub")),
    "use_fast_tokenizer": (DEFAULT, "tokenizers are always fast ones"),
    "split_special_tokens": (REFUSED, "special tokens in texts stay whole"),
    "low_cpu_mem_usage": (DEFAULT, "weights are loaded without a second copy"),
    "model_max_length": (DEFAULT, "length says it"),
    "template": (
        ELSEWHERE,
        "the tokenizer's own chat template; else chat_template: chatml, or a file of Jinja",
    ),
    "rope_scaling": (
        REFUSED,
        "positions are as the model has them: write rope_scaling into its config.json",
    ),
    "shift_attn": (REFUSED, "no LongLoRA: whole attention, with FlashAttention"),
    "mixture_of_depths": (REFUSED, "models are trained as they are"),
    "use_unsloth": (NONE, _KERNELS),
    "use_unsloth_gc": (NONE, "gradient_checkpointing computes activations again, without moving them"),
    "use_v1_kernels": (NONE, _KERNELS),
    "use_reentrant_gc": (DEFAULT, "gradient_checkpointing is always without re-entrance"),
    "moe_aux_loss_coef": (REFUSED, "no loss of the router beside that of the tokens"),
    "upcast_layernorm": (NONE, "precision says in what norms are computed"),
    "upcast_lmhead_output": (DEFAULT, "the loss is computed in 32 bits"),
    "train_from_scratch": (
        REFUSED,
        "the recipe gpt trains from nothing; a folder with new weights works too",
    ),
    "use_kv_cache": (DEFAULT, "training needs none"),
    "print_param_status": (DEFAULT, "the table at the beginning has the trained parameters"),
    "quantization_method": (READ, "bitsandbytes"),
    "quantization_type": (DEFAULT, "nf4"),
    "double_quantization": (NONE, "the scales themselves are not quantized: 0.4 bits more for each weight"),
    "quantization_device_map": (NONE, "each rank has the model on its device"),
    **dict.fromkeys(
        (
            *("image_max_pixels", "image_min_pixels", "image_do_pan_and_scan", "crop_to_patches"),
            *("video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen", "use_audio_in_video"),
            *("audio_sampling_rate", "freeze_vision_tower", "freeze_multi_modal_projector"),
        ),
        (REFUSED, _PICTURES),
    ),
    "freeze_language_model": (REFUSED, _PICTURE_SIZE),
    **dict.fromkeys(
        (
            *("infer_backend", "offload_folder", "infer_dtype", "vllm_maxlen", "vllm_gpu_util"),
            *("vllm_enforce_eager", "vllm_max_lora_rank", "vllm_config", "sglang_maxlen"),
            *("sglang_mem_fraction", "sglang_tp_size", "sglang_config", "sglang_lora_backend"),
            *("do_sample", "temperature", "top_p", "top_k", "num_beams", "max_length", "max_new_tokens"),
            *("repetition_penalty", "length_penalty", "skip_special_tokens"),
        ),
        (DEFAULT, _CHAT),
    ),
    **dict.fromkeys(
        (
            *("export_dir", "export_size", "export_device", "export_quantization_bit"),
            *("export_quantization_dataset", "export_quantization_nsamples", "export_quantization_maxlen"),
            *("export_legacy_format", "export_hub_model_id"),
        ),
        (DEFAULT, _EXPORT),
    ),
    **dict.fromkeys(
        (
            *("use_kt", "kt_cpu_activation", "kt_weight_path", "kt_non_expert_weight_path", "kt_config"),
            *("kt_expert_checkpoint_path", "kt_use_lora_experts", "kt_lora_expert_num"),
            "kt_lora_expert_intermediate_size",
        ),
        (REFUSED, _KT),
    ),
    "freeze_trainable_modules": (DEFAULT, "all parameters of the layers"),
    "loraplus_lr_embedding": (DEFAULT, "embedding_learning_rate, where embeddings are trained"),
    "pissa_convert": (NONE, "the adapter belongs to the changed base; peft converts it"),
    "create_new_adapter": (REFUSED, "merge the first adapter into the model, and train a new one on that"),
    "use_llama_pro": (REFUSED, "no new blocks: method: freeze with train_layers trains those there are"),
    **dict.fromkeys(
        ("oft_rank", "oft_block_size", "oft_target", "module_dropout"),
        (REFUSED, "no OFT: method: lora"),
    ),
    "adapter_folder": (DEFAULT, "adapter is one folder"),
    "pref_bco_weight": (REFUSED, _LOSS),
    "ld_alpha": (REFUSED, _LOSS),
    "use_dft_loss": (REFUSED, _LOSS),
    "use_asft_loss": (REFUSED, _LOSS),
    "asft_alpha": (REFUSED, _LOSS),
    "use_eaft_loss": (REFUSED, _LOSS),
    "eaft_alpha": (REFUSED, _LOSS),
    **dict.fromkeys(
        ("ppo_buffer_size", "ppo_epochs", "ppo_score_norm", "ppo_target", "ppo_whiten_rewards"),
        (DEFAULT, "stage is no ppo"),
    ),
    **dict.fromkeys(
        (
            *("ref_model", "ref_model_adapters", "ref_model_quantization_bit"),
            *("reward_model", "reward_model_adapters", "reward_model_quantization_bit"),
        ),
        (REFUSED, "the reference is the model as it was before the run"),
    ),
    "reward_model_type": (DEFAULT, "stage is no ppo"),
    **dict.fromkeys(
        (
            *("use_galore", "galore_target", "galore_rank", "galore_update_interval", "galore_scale"),
            *("galore_proj_type", "galore_layerwise", "use_apollo", "apollo_target", "apollo_rank"),
            *("apollo_update_interval", "apollo_scale", "apollo_proj", "apollo_proj_type"),
            *("apollo_scale_type", "apollo_layerwise", "apollo_scale_front", "use_badam", "badam_mode"),
            *("badam_start_block", "badam_switch_mode", "badam_switch_interval", "badam_update_ratio"),
            *("badam_mask_mode", "badam_verbose", "use_adam_mini"),
        ),
        (REFUSED, _OPTIMIZER),
    ),
    **dict.fromkeys(
        (
            *("use_swanlab", "swanlab_project", "swanlab_workspace", "swanlab_run_name", "swanlab_mode"),
            *("swanlab_api_key", "swanlab_logdir", "swanlab_lark_webhook_url", "swanlab_lark_secret"),
        ),
        (NONE, _TRACKER),
    ),
    **dict.fromkeys(
        ("use_mca", "use_megatron_bridge", "use_hyper_parallel", "hyper_parallel_args"),
        (REFUSED, MEGATRON_FILE),
    ),
    "hyper_parallel_cp_size": (REFUSED, "a sequence is on one rank"),
    "include_effective_tokens_per_second": (ELSEWHERE, "trainer.callbacks: [Throughput]"),
    **dict.fromkeys(
        ("ray_num_workers", "ray_init_kwargs", "master_addr", "master_port"), (ELSEWHERE, _RAY)
    ),
    **dict.fromkeys(
        (
            *("enable_torch_profiler", "profiler_output_dir", "profiler_wait_steps"),
            *("profiler_warmup_steps", "profiler_active_steps", "profiler_repeat"),
            *("profiler_record_shapes", "profiler_profile_memory", "profiler_with_stack"),
            "profile_modules",
        ),
        (ELSEWHERE, "trainer.profile: true"),
    ),
    **dict.fromkeys(
        ("fp8", "fp8_backend", "fp8_enable_fsdp_float8_all_gather"),
        (NONE, "trainer.precision: bf16; fp8 is for your tests on your devices: trainer.precision: fp8"),
    ),
    "fsdp_transformer_layer_cls_to_wrap": (
        DEFAULT,
        "the repeated blocks of the model are sharded together",
    ),
    **dict.fromkeys(
        ("gradient_checkpointing", "gradient_checkpointing_kwargs"),
        (DEFAULT, "disable_gradient_checkpointing says it"),
    ),
    "save_safetensors": (DEFAULT, "all weights are safetensors"),
    "load_best_model_at_end": (ELSEWHERE, "best of the run's folder; exported is of the last step"),
    "metric_for_best_model": (DEFAULT, "the best is chosen by the validation of the recipe"),
    "greater_is_better": (DEFAULT, "the validation's value says which way"),
    "remove_unused_columns": (DEFAULT, "columns that are not used are not read"),
    "lr_scheduler_kwargs": (READ, "arguments of scheduler"),
    "optim_args": (REFUSED, "write them into optimizer: {class: ..., NAME: VALUE}"),
    "optim_target_modules": (REFUSED, _OPTIMIZER),
    "dataloader_pin_memory": (DEFAULT, "memory is pinned where there is an accelerator"),
    "dataloader_drop_last": (DEFAULT, "incomplete batches are trained on, weighted by their samples"),
    "logging_first_step": (DEFAULT, "step 1 is logged"),
    "logging_strategy": (DEFAULT, "trainer.log_every says it"),
    "logging_dir": (DEFAULT, "TensorBoard's files are in the run's folder"),
    "include_num_input_tokens_seen": (ELSEWHERE, "trainer.callbacks: [Throughput]"),
    "eval_delay": (NONE, "it is validated from the first time on"),
    "eval_accumulation_steps": (DEFAULT, "losses alone are kept"),
    "torch_empty_cache_steps": (NONE, _MEMORY),
    "data_seed": (DEFAULT, "trainer.seed says the order too"),
    "neat_packing": (DEFAULT, "packed samples never see each other"),
    "interleave_probs": (DEFAULT, "mix_strategy says that each sample is seen once"),
    "mix_strategy": (DEFAULT, _NOT_REPEATED),
    "hub_strategy": (DEFAULT, "the end of a run is pushed"),
    "hub_private_repo": (ELSEWHERE, "settings of the place on the hub"),
    "push_to_hub": (ELSEWHERE, "push the folder exported of the run, with hf upload"),
    "init_special_tokens": (DEFAULT, "new tokens begin with the mean of the others"),
    "new_special_tokens_config": (
        REFUSED,
        "added_tokens is a list; their rows begin with the mean of the others",
    ),
    "resize_vocab": (DEFAULT, "added_tokens resizes the embeddings"),
}
