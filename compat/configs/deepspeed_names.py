"""The keys of a DeepSpeed configuration, and what becomes of those that no argument is made of."""

from __future__ import annotations

from .reading import DEFAULT, ELSEWHERE, NONE, READ
from .section import Known

PASSED = "passed to DeepSpeed as it is"
_LOGGERS = f"{PASSED}; the Trainer's own loggers are under loggers"
_CURRICULUM = "the data are your loader's; DeepSpeed's data pipeline is not used"
_MODEL = "the model is your module, as it is"

KEPT: Known = {
    **dict.fromkeys(
        (
            *("communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients"),
            *("gradient_predivide_factor", "gradient_allreduce_op", "sparse_gradients", "steps_per_print"),
            *(
                "wall_clock_breakdown",
                "memory_breakdown",
                "dump_state",
                "comms_logger",
                "flops_profiler",
                "aio",
            ),
            *(
                "disable_allgather",
                "disable_python_gc",
                "data_types",
                "log_level",
                "vocabulary_size",
                "compile",
            ),
            *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "fp32_allreduce", "timers"),
            *("graph_harvesting", "torch_profiler", "checkpoint_engine", "data_parallel_size"),
        ),
        (READ, PASSED),
    ),
    **dict.fromkeys(("tensorboard", "wandb", "csv_monitor", "comet", "monitor_config"), (READ, _LOGGERS)),
    "activation_checkpointing": (
        READ,
        f"{PASSED}, for modules that call deepspeed.checkpointing; activation_checkpointing: true of the "
        "strategy computes the repeated blocks again",
    ),
}
"""What our strategy takes."""

DROPPED: Known = {
    "comms_config": (NONE, "DeepSpeed has comms_logger, and no such key"),
    "dataloader_drop_last": (ELSEWHERE, "drop_last of your DataLoader"),
    "managed_gradient_accumulation": (DEFAULT, "the Trainer accumulates"),
    **dict.fromkeys(
        ("checkpoint", "nebula", "load_universal_checkpoint", "use_node_local_storage"),
        (DEFAULT, "checkpoints are the Trainer's: fit(resume=...), callbacks=[Checkpoint(...)]"),
    ),
    "elasticity": (
        NONE,
        "global_batch_size is the same on any number of ranks, and max_restarts starts them again",
    ),
    "autotuning": (
        ELSEWHERE,
        "paceline.tools.find_batch_size finds the largest batch",
    ),
    **dict.fromkeys(
        ("curriculum_learning", "data_efficiency", "data_pipeline"),
        (NONE, _CURRICULUM),
    ),
    **dict.fromkeys(
        ("pipeline", "pipeline_parallel", "expert_parallel", "sequence_parallel_size"),
        (NONE, "only the ZeRO stages are available, which are data parallel"),
    ),
    "tensor_parallel": (NONE, "strategy FSDP(tensor=...) splits layers; the ZeRO stages do not"),
    "use_data_before_expert_parallelism": (
        NONE,
        "only the ZeRO stages are available, which are data parallel",
    ),
    **dict.fromkeys(
        ("compression_training", "quantize_training", "weight_quantization", "sparse_attention"),
        (NONE, _MODEL),
    ),
    **dict.fromkeys(("progressive_layer_drop", "eigenvalue", "hybrid_engine"), (NONE, _MODEL)),
}
"""What our strategy is not to be given."""

RUN = (
    *(
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ),
    *("optimizer", "scheduler", "fp16", "bf16", "bfloat16", "amp", "torch_autocast"),
)
"""What the Trainer decides."""
TYPICAL = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
"""Keys by which such a file is recognised."""

_STAGE3 = (
    *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold"),
    *("max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save"),
    *("module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential"),
)
ZERO: Known = dict.fromkeys(
    (
        *(
            "contiguous_gradients",
            "reduce_scatter",
            "reduce_bucket_size",
            "use_multi_rank_bucket_allreduce",
        ),
        *("allgather_partitions", "allgather_bucket_size", "overlap_comm", "compute_grad_norm"),
        *("load_from_fp32_weights", "elastic_checkpoint", "offload_param", "offload_optimizer", "zenflow"),
        *("sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload"),
        *_STAGE3,
        *(f"stage3_{name}" for name in _STAGE3),
        *("stage3_gather_fp16_weights_on_model_save", "ignore_unused_parameters", "legacy_stage1"),
        *(
            "round_robin_gradients",
            "parameter_alignment",
            "zero_hpz_partition_size",
            "zero_quantized_weights",
        ),
        *("zero_quantized_nontrainable_weights", "zero_quantized_gradients", "memory_efficient_linear"),
        *("pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings"),
        *("enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "leaf_module"),
        *("mics_shard_size", "mics_hierarchical_params_gather", "sub_group_prefetch", "enable_zeropp"),
    ),
    (READ, PASSED),
)
"""``zero_optimization``'s keys but its stage."""

OPTIMIZERS = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "muon": "Muon"}
"""DeepSpeed's optimizers with torch's: its Adam decays weights as AdamW does."""
OPTIMIZER_ARGUMENTS = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "amsgrad")
SCHEDULES = {
    "warmuplr": "Constant",
    "warmupdecaylr": "Linear",
    "warmupcosinelr": "Cosine",
}
OTHER_SCHEDULES = {
    "onecycle": "torch.optim.lr_scheduler.OneCycleLR",
    "lrrangetest": "paceline.tools.find_learning_rate(trainer, module, loader)",
}
