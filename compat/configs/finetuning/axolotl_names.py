"""The keys of Axolotl's files, and what becomes of those that no setting is made of."""

from __future__ import annotations

from ....other_trainers.engines import CONTEXT, EXPERT
from ..reading import DEFAULT, ELSEWHERE, NONE, READ, REFUSED
from ..section import Known
from .llama_factory_names import KNOWN as OF_TRANSFORMERS
from .llama_factory_names import PPO

NO_RL = f"rl: dpo, ipo, kto, orpo or simpo; {PPO}"
PROCESS = "no rewards of single steps: reward_model: true judges whole answers"

_KERNEL = "no such kernel: liger, and FlashAttention where a model takes it"
_ATTENTION = "the fastest attention that keeps packed samples apart is found by itself"
_LOSS = "no such loss: the losses are those of llm-finetune, dpo, kto and reward-model"
_MODEL = "models are trained as transformers has them"
_PICTURES = "text alone is trained on: stay with Axolotl for models of pictures, films and sounds"
_OPTIMIZER = "optimizer: {class: PACKAGE.MODULE:CLASS, NAME: VALUE} takes the optimizer of any package"
_SCHEDULE = "scheduler: {class: PACKAGE.MODULE:CLASS} takes the schedule of any package"
_PACKING = "rows are packed by length, in an order that is drawn"
_PROCESSING = "samples are read by one process, and not kept as files"
_TRACKER = "no such logger: WandB, MLflow, Trackio and TensorBoard are"
_QUANTIZED = "a model is kept whole, in 8 bits or in 4: load_in_4bit"
_QAT = "no quantization in training: torchao quantizes exported of the run"
_LORA = "adapters of the same rank at all chosen layers: lora_rank, lora_targets"
_GENERATED = "validation gives losses; samples of text are no part of it"
_CLOUD = "where it runs is your cloud's: paceline launch, torchrun, srun or mpirun start ranks"
_NOT_READ = "Axolotl has no such key in its configuration"
_MEMORY = "strategies of trainer.strategy save memory: FSDP and DeepSpeed, with offloading"
_KD = "the recipe llm-distill computes the teacher's distributions: teacher: FOLDER"
_EXPERTS = "all experts are trained as transformers computes them"

KNOWN: Known = {
    **{
        key: OF_TRANSFORMERS[key]
        for key in (
            *("resume_from_checkpoint", "remove_unused_columns", "ddp_timeout", "save_safetensors"),
            *("ddp_find_unused_parameters", "metric_for_best_model", "greater_is_better", "optim_args"),
            *("load_best_model_at_end", "dataloader_pin_memory", "dataloader_drop_last", "rope_scaling"),
            *("optim_target_modules", "torch_empty_cache_steps", "lr_scheduler_kwargs", "hub_strategy"),
            *("low_cpu_mem_usage", "fp8", "fp8_enable_fsdp_float8_all_gather", "ray_num_workers"),
        )
    },
    "strict": (DEFAULT, "an unknown key is always an error"),
    "base_model_config": (DEFAULT, "the model's own"),
    "base_model_ignore_patterns": (DEFAULT, "safetensors alone are loaded"),
    **dict.fromkeys(
        ("tokenizer_config", "cls_model_config"), (NONE, "the tokenizer of the model's folder")
    ),
    **dict.fromkeys(
        ("model_type", "type_of_model"), (DEFAULT, "the class is the one of the model's config")
    ),
    "tokenizer_type": (DEFAULT, "the class is the one of the tokenizer's config"),
    **dict.fromkeys(
        ("tokenizer_use_fast", "tokenizer_legacy"), (DEFAULT, "tokenizers are always fast ones")
    ),
    "tokenizer_use_mistral_common": (NONE, "the tokenizer of transformers, with its chat template"),
    "tokenizer_save_jinja_files": (DEFAULT, "exported has the tokenizer with its chat template"),
    **dict.fromkeys(
        ("processor_type", "processor_kwargs", "image_size", "image_resize_algorithm", "role_boundaries"),
        (REFUSED, _PICTURES),
    ),
    "freeze_mm_modules": (REFUSED, _PICTURES),
    "experimental_skip_move_to_device": (DEFAULT, "weights go to the device of their rank"),
    **dict.fromkeys(
        ("model_quantization_config", "model_quantization_config_kwargs", "use_onebitllms"),
        (REFUSED, _QUANTIZED),
    ),
    **dict.fromkeys(
        ("gptq", "gptq_groupsize", "gptq_model_v1", "gptq_disable_exllama", "bnb_config_kwargs"),
        (NONE, _QUANTIZED),
    ),
    "qat": (REFUSED, _QAT),
    "quantization": (REFUSED, _QAT),
    "llmcompressor": (REFUSED, "no sparse models: weights are trained as they are"),
    "model_config": (REFUSED, "write these values into the config.json of the model's folder"),
    **dict.fromkeys(
        ("overrides_of_model_config", "overrides_of_model_kwargs"),
        (REFUSED, "write these values into the config.json of the model's folder"),
    ),
    "num_labels": (DEFAULT, "a reward is one number"),
    "trainer_cls": (REFUSED, "subclass the module of a recipe: docs/recipes/README.md"),
    "plugins": (NONE, "kernels, tools and losses of Axolotl; liger: true has the loss of liger-kernel"),
    "device": (DEFAULT, "trainer.accelerator says it"),
    **dict.fromkeys(("device_map", "max_memory", "gpu_memory_limit"), (NONE, "each rank has its device")),
    **dict.fromkeys(("local_rank", "world_size", "ddp"), (DEFAULT, "ranks are found by themselves")),
    **dict.fromkeys(
        ("ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
        (ELSEWHERE, "arguments of DDP: trainer.strategy: {class: DDP}"),
    ),
    "accelerator_config": (NONE, "gradients of micro-batches are summed by their tokens"),
    "dataset_prepared_path": (DEFAULT, _PROCESSING),
    **dict.fromkeys(
        (
            *("dataset_processes", "dataset_num_proc", "dataset_keep_in_memory", "skip_prepare_dataset"),
            *("num_dataset_shards_to_save", "is_preprocess", "preprocess_iterable"),
            "sample_packing_mp_start_method",
        ),
        (DEFAULT, _PROCESSING),
    ),
    **dict.fromkeys(
        ("dataset_shard_num", "dataset_shard_idx"), (REFUSED, "samples: N of a source takes the first ones")
    ),
    "dataset_exact_deduplication": (
        REFUSED,
        "samples are as they are: remove those that repeat from the file",
    ),
    **dict.fromkeys(
        ("shuffle_merged_datasets", "shuffle_before_merging_datasets"),
        (DEFAULT, "the order of all samples is drawn in each epoch"),
    ),
    "curriculum_sampling": (READ, "shuffle: false"),
    "push_dataset_to_hub": (NONE, "data are not pushed"),
    "hf_use_auth_token": (ELSEWHERE, "hf auth login, or the variable HF_TOKEN"),
    "dataloader_prefetch_factor": (DEFAULT, "two batches of each worker"),
    "min_sample_len": (
        REFUSED,
        "samples are trained on down to one token: remove short ones from the file",
    ),
    "max_prompt_len": (DEFAULT, "length is of prompt and answer"),
    "eval_sequence_len": (DEFAULT, "length is of validation too"),
    "eval_batch_size": (DEFAULT, "batch_size is of validation too"),
    "eval_sample_packing": (DEFAULT, "packing is of validation too; losses are means over tokens"),
    **dict.fromkeys(
        (
            *("sample_packing_group_size", "sample_packing_bin_size", "sample_packing_sequentially"),
            *("sample_packing_eff_est", "sample_packing_seq_len_multiplier", "multipack_real_batches"),
            *("total_num_tokens", "total_supervised_tokens", "pretrain_multipack_buffer_size"),
            *("pretrain_multipack_attn", "pretraining_sample_concatenation", "batch_flattening"),
            *("streaming_multipack_buffer_size", "max_packed_sequence_len"),
        ),
        (DEFAULT, _PACKING),
    ),
    **dict.fromkeys(("pad_to_sequence_len", "pad_to_multiple_of"), (DEFAULT, "packed rows have length")),
    **dict.fromkeys(
        ("use_pose", "pose_split_on_token_ids", "pose_max_context_len", "pose_num_chunks"), (REFUSED, _LOSS)
    ),
    **dict.fromkeys(
        (
            *("xformers_attention", "sdp_attention", "flex_attention", "flash_attention", "sage_attention"),
            *("flex_attn_compile_kwargs", "s2_attention", "large_head_attention", "flash_attn_d512"),
            *("sdpa_varlen", "gemma4_hybrid_attn_impl", "flash_optimum"),
        ),
        (DEFAULT, _ATTENTION),
    ),
    **dict.fromkeys(
        ("scaling_softmax", "scaling_softmax_factor", "scaling_softmax_bias"), (REFUSED, _MODEL)
    ),
    **dict.fromkeys(
        (
            *(
                "flash_attn_cross_entropy",
                "flash_attn_fuse_mlp",
                "flash_attn_rms_norm",
                "fused_attn_kernel",
            ),
            *(
                "lora_mlp_kernel",
                "lora_qkv_kernel",
                "lora_o_kernel",
                "lora_embedding_kernel",
                "use_kernels",
            ),
            *("liger_rope", "liger_rms_norm", "liger_rms_norm_gated", "liger_layer_norm", "liger_swiglu"),
            *("liger_glu_activation", "liger_cross_entropy", "tiled_mlp", "tiled_mlp_num_shards"),
            "tiled_mlp_use_original_mlp",
        ),
        (NONE, _KERNEL),
    ),
    **dict.fromkeys(
        (
            *("chunked_cross_entropy", "chunked_cross_entropy_num_chunks", "cut_cross_entropy"),
            "dpo_use_logits_to_keep",
        ),
        (DEFAULT, "the loss is computed in parts, without the logits of all tokens"),
    ),
    **dict.fromkeys(
        (
            *("experts_implementation", "expert_backend", "nonexpert_quantization", "moe_grouped_backend"),
            *(
                "moe_dequant_chunk_size",
                "moe_bnb_fast",
                "use_scattermoe",
                "use_sonicmoe",
                "use_dsv4_kernels",
            ),
            *("use_glm_dsa_kernels", "dsv4_fp8_nonexpert_mode", "dsv4_fp8_lora_kernel", "dsv4_bf16_all"),
            *("dsv4_shared_mlp_lora_kernel", "dsv4_fp4_grouped_mode", "gemma4_fp8_nonexpert"),
            *("gemma4_nf4_nonexpert", "nvfp4_merge_aware", "nvfp4_merge_aware_start_step"),
            *("llama4_linearized_experts", "quantize_moe_experts", "dense_mixer"),
        ),
        (NONE, _EXPERTS),
    ),
    "liger_use_token_scaling": (REFUSED, _LOSS),
    **dict.fromkeys(("use_eaft", "eaft_alpha", "eaft_k"), (REFUSED, _LOSS)),
    "deepcompile": (NONE, "trainer.compile compiles the model"),
    "fsdp_final_state_dict_type": (DEFAULT, "a checkpoint can be read under every strategy"),
    **dict.fromkeys(
        ("fp32_norms", "fp32_norm_classes"), (NONE, "precision says in what norms are computed")
    ),
    **dict.fromkeys(
        ("sequence_parallel_degree", "context_parallel_size", "heads_k_stride", "ring_attn_func"),
        (REFUSED, CONTEXT),
    ),
    **dict.fromkeys(
        (
            *("expert_parallel_size", "expert_parallel_backend", "expert_parallel_num_nvl_bytes"),
            *("expert_parallel_num_rdma_bytes", "expert_parallel_token_capacity"),
            "expert_parallel_fallback_on_unsupported",
        ),
        (REFUSED, EXPERT),
    ),
    "special_tokens": (
        ELSEWHERE,
        "the tokens of the model's folder: pads are never learned, and the chat template ends answers",
    ),
    "added_tokens_overrides": (REFUSED, "write them into the tokenizer.json of the model's folder"),
    "eot_tokens": (DEFAULT, "what the chat template ends an answer with is learned"),
    "fix_untrained_tokens": (NONE, "rows of tokens that were never trained stay as they are"),
    **dict.fromkeys(
        ("resize_token_embeddings_to_32x", "shrink_embeddings", "mean_resizing_embeddings"),
        (DEFAULT, "embeddings are as large as the model has them, and grow with added_tokens"),
    ),
    "embeddings_skip_upcast": (DEFAULT, "embeddings have the dtype of the model"),
    "reinit_weights": (REFUSED, "the recipe gpt trains from nothing; a folder with new weights works too"),
    "chat_template_kwargs": (NONE, "the chat template has its own defaults"),
    "save_first_step": (NONE, "paceline fit with trainer.fast_dev_run=true writes and reads a checkpoint"),
    "dynamic_checkpoint": (DEFAULT, "a signal (SIGTERM, SIGUSR1) saves a checkpoint"),
    "auto_resume_from_checkpoints": (ELSEWHERE, "paceline fit FILE --resume auto"),
    **dict.fromkeys(("profiler_steps", "profiler_steps_start"), (ELSEWHERE, "trainer.profile: true")),
    **dict.fromkeys(
        ("include_tokens_per_second", "include_tkps"), (ELSEWHERE, "trainer.callbacks: [Throughput]")
    ),
    **dict.fromkeys(
        ("loss_watchdog_threshold", "loss_watchdog_patience"),
        (NONE, "trainer.nonfinite stops at NaN, and LossSpikes of trainer.callbacks names spikes"),
    ),
    **dict.fromkeys(("gc_steps", "gc_collect_steps"), (DEFAULT, "memory is not emptied in between")),
    **dict.fromkeys(
        (
            *("do_causal_lm_eval", "eval_causal_lm_metrics", "do_bench_eval", "bench_dataset"),
            *("bench_split", "eval_table_size", "eval_max_new_tokens", "generate_samples"),
            *("num_generation_samples", "generation_max_new_tokens", "generation_temperature"),
            *("generation_top_p", "generation_top_k", "generation_prompt_ratio", "generation_do_sample"),
            *("lm_eval_tasks", "lm_eval_batch_size", "lm_eval_post_train", "lm_eval_model"),
            "dpo_generate_during_eval",
        ),
        (NONE, _GENERATED),
    ),
    "auto_find_batch_size": (ELSEWHERE, "trainer.batch_size: auto, with trainer.global_batch_size"),
    "gradient_checkpointing_kwargs": (DEFAULT, "without re-entrance"),
    "selective_checkpointing": (
        ELSEWHERE,
        "trainer.strategy: {class: FSDP, activation_checkpointing: true}",
    ),
    **dict.fromkeys(("activation_offloading", "layer_offloading"), (NONE, _MEMORY)),
    **dict.fromkeys(
        ("torchdistx_path", "cosine_constant_lr_ratio", "lr_div_factor", "lr_quadratic_warmup"),
        (REFUSED, _SCHEDULE),
    ),
    **dict.fromkeys(
        ("embedding_lr_scale", "lr_groups"),
        (REFUSED, "embedding_learning_rate and head_learning_rate are rates of their own"),
    ),
    **dict.fromkeys(
        (
            *("adam_epsilon2", "adam_beta3", "dion_lr", "dion_momentum", "dion_rank_fraction"),
            *("dion_rank_multiple_of", "qgalore_rank", "qgalore_update_proj_gap", "qgalore_scale"),
            *("qgalore_proj_type", "qgalore_proj_quant", "qgalore_proj_bits", "qgalore_proj_group_size"),
            *("qgalore_cos_threshold", "qgalore_gamma_proj", "qgalore_queue_size", "grokfast_alpha"),
            "grokfast_lamb",
        ),
        (REFUSED, _OPTIMIZER),
    ),
    **dict.fromkeys(
        (
            *(
                "jagged_restart_steps",
                "jagged_restart_warmup_steps",
                "jagged_restart_anneal_steps",
                "relora",
            ),
            *("relora_prune_ratio", "relora_prune_method", "relora_cpu_offload"),
        ),
        (REFUSED, "no ReLoRA: one adapter for a run, with adapter: FOLDER to train it further"),
    ),
    **dict.fromkeys(
        ("lisa_n_layers", "lisa_step_interval", "lisa_layers_attribute", "spectrum_top_fraction"),
        (REFUSED, "method: freeze with train_layers and train_modules trains chosen layers"),
    ),
    "spectrum_model_name": (DEFAULT, "spectrum_top_fraction says it"),
    **dict.fromkeys(
        ("lora_target_parameters", "lora_rank_pattern", "lora_alpha_pattern", "peft_layers_pattern"),
        (REFUSED, _LORA),
    ),
    **dict.fromkeys(
        ("peft_layers_to_transform", "peft_layer_replication", "peft_trainable_token_indices", "mora"),
        (REFUSED, _LORA),
    ),
    "peft": (REFUSED, "lora_init: pissa begins near the base's own directions; there is no LoftQ"),
    "loraplus_lr_embedding": (DEFAULT, "embedding_learning_rate, where embeddings are trained"),
    "lora_fan_in_fan_out": (DEFAULT, "peft finds it by the layer"),
    **dict.fromkeys(
        ("peft_autocast_adapter_dtype", "peft_ensure_weight_tying", "lora_on_cpu"),
        (DEFAULT, "adapters are kept in 32 bits"),
    ),
    "qlora_sharded_model_loading": (DEFAULT, "each rank loads the model once"),
    **dict.fromkeys(("merge_lora", "merge_method"), (ELSEWHERE, "exported of the run has the adapter")),
    **dict.fromkeys(("dpo_use_weighting", "dpo_loss_weights", "dpo_norm_loss"), (REFUSED, _LOSS)),
    "cpo_alpha": (READ, "sft_weight"),
    "dpo_use_liger_kernel": (NONE, _KERNEL),
    "dpo_padding_free": (DEFAULT, "rows of pairs are filled up"),
    "precompute_ref_log_probs": (NONE, "the reference is computed in each step"),
    **dict.fromkeys(("trl", "vllm", "ebft", "nemo_gym", "hatchery"), (REFUSED, NO_RL)),
    "diffusion": (REFUSED, "language models predict the next token"),
    **dict.fromkeys(
        (
            *("kd_trainer", "kd_ce_alpha", "kd_alpha", "kd_temperature", "kd_beta", "kd_normalize_topk"),
            *("kd_online_server_base_url", "kd_online_topk", "kd_online_server", "kd_online_timeout"),
            "kd_temperature_min",
        ),
        (REFUSED, _KD),
    ),
    **dict.fromkeys(
        (
            *(
                "use_comet",
                "comet_api_key",
                "comet_workspace",
                "comet_project_name",
                "comet_experiment_key",
            ),
            *("comet_mode", "comet_online", "comet_experiment_config", "use_otel_metrics"),
            *("otel_metrics_host", "otel_metrics_port", "use_swanlab", "swanlab_project"),
            *("swanlab_experiment_name", "swanlab_description", "swanlab_mode", "swanlab_workspace"),
            *("swanlab_api_key", "swanlab_log_model", "swanlab_web_host", "swanlab_api_host"),
            *("swanlab_lark_webhook_url", "swanlab_lark_secret", "swanlab_log_completions"),
            *("swanlab_completion_log_interval", "swanlab_completion_max_buffer"),
        ),
        (NONE, _TRACKER),
    ),
    **dict.fromkeys(
        ("wandb_run_id", "wandb_watch", "wandb_log_model"), (NONE, "the logger continues its own run")
    ),
    "use_tensorboard": (DEFAULT, "TensorBoard's files are written anyway"),
    "hf_mlflow_log_artifacts": (NONE, "files stay in the run's folder"),
    **dict.fromkeys(
        (
            *("gradio_title", "gradio_share", "gradio_server_name", "gradio_server_port"),
            *("gradio_max_new_tokens", "gradio_temperature"),
        ),
        (DEFAULT, "of chatting, which is no part of a run"),
    ),
    **dict.fromkeys(("use_ray", "ray_run_name", "resources_per_worker"), (ELSEWHERE, _CLOUD)),
    "hub_revision": (ELSEWHERE, "a branch of the place on the hub"),
    "axolotl_config_path": (DEFAULT, "it names the file itself"),
    **dict.fromkeys(
        (
            *("is_falcon_derived_model", "is_llama_derived_model", "is_mistral_derived_model"),
            "is_qwen_derived_model",
        ),
        (DEFAULT, "the class is the one of the model's config"),
    ),
    "debug": (DEFAULT, "preview: N prints samples"),
    **dict.fromkeys(
        (
            *("provider", "project_name", "secrets", "gpu", "gpu_count", "node_count", "volumes", "branch"),
            *("dockerfile_commands", "memory", "timeout", "memory_preprocess", "timeout_preprocess"),
        ),
        (ELSEWHERE, _CLOUD),
    ),
    **dict.fromkeys(
        ("full_finetune", "adam_eps", "eta_min", "test_value", "lisa", "total_steps"), (NONE, _NOT_READ)
    ),
}
