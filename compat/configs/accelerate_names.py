"""The keys of Accelerate's configuration file that no argument is made of, and why."""

from __future__ import annotations

from ...other_trainers.engines import MEGATRON, TENSOR, TPU
from .reading import DEFAULT, ELSEWHERE, NONE
from .section import Known

_RANKS = "ranks are started by the script itself, or by paceline launch, torchrun, srun or mpirun"
_TPU = "it is for TPUs, and the file is for other devices"
_FP8 = "fp8 is not available"
_MODEL = "configure_model(self) of the module builds a large model in shards"

TOP: Known = {
    "compute_environment": (DEFAULT, "any machine"),
    "main_training_function": (DEFAULT, "every rank runs the whole script"),
    "same_network": (DEFAULT, "the rendezvous is the same on any network"),
    "machine_rank": (ELSEWHERE, "--node-rank of the launch command, on each machine its own"),
    "main_process_ip": (DEFAULT, "one machine needs no address"),
    "main_process_port": (DEFAULT, "a free port is taken on one machine"),
    "rdzv_backend": (DEFAULT, "one machine needs no rendezvous"),
    "downcast_bf16": (DEFAULT, _TPU),
    **dict.fromkeys(
        ("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env"), (DEFAULT, _TPU)
    ),
    **dict.fromkeys(("command_file", "commands"), (DEFAULT, _TPU)),
    "use_mps_device": (DEFAULT, "the accelerator is found by itself"),
    "ipex_config": (NONE, "extensions of torch are used where your code imports them"),
    "tp_config": (NONE, "distributed_type is another one; strategy FSDP(tensor=...) splits layers"),
    "megatron_lm_config": (DEFAULT, "distributed_type is another one"),
    "fsdp_config": (DEFAULT, "distributed_type is another one"),
    "deepspeed_config": (DEFAULT, "distributed_type is another one"),
}
READ_TOP = (
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "num_machines",
    "gpu_ids",
    "enable_cpu_affinity",
    "fp8_config",
    "parallelism_config",
    "mpirun_config",
    "dynamo_config",
    "dynamo_backend",
    "fp16",
)
SAGEMAKER = (
    "ec2_instance_type",
    "iam_role_name",
    "image_uri",
    "profile",
    "region",
    "base_job_name",
    "pytorch_version",
    "transformers_version",
    "py_version",
    "sagemaker_inputs_file",
    "sagemaker_metrics_file",
    "additional_args",
)

KINDS = {
    "NO": None,
    "MULTI_CPU": "cpu",
    "MULTI_GPU": "gpu",
    **{f"MULTI_{kind.upper()}": kind for kind in ("xpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron")},
    "FSDP": "gpu",
    "DEEPSPEED": "gpu",
}
"""``distributed_type``, and the accelerator it asks for."""

_TORCH_XLA = f"{TPU}; on GPUs write distributed_type: MULTI_GPU"
REFUSED_KINDS = {
    "MEGATRON_LM": MEGATRON,
    "XLA": _TORCH_XLA,
    "TPU": _TORCH_XLA,
    "TP": f"write distributed_type: FSDP with parallelism_config_tp_size: {TENSOR}",
}
SAGEMAKER_SENTENCE = (
    "jobs are not submitted to SageMaker: give its PyTorch estimator your script and "
    'distribution={"torch_distributed": {"enabled": True}}, whose ranks the Trainer joins'
)

_SHARDS = "the repeated blocks of the model are sharded together"
_FSDP2 = "fully_shard, which is used for both versions, needs no such setting"
FSDP: Known = {
    "fsdp_auto_wrap_policy": (DEFAULT, _SHARDS),
    "fsdp_transformer_layer_cls_to_wrap": (
        ELSEWHERE,
        f"{_SHARDS}; where those are other ones, shard_units(self) of the module returns them",
    ),
    "fsdp_min_num_params": (NONE, f"{_SHARDS}, whatever their size; shard_units(self) returns others"),
    "fsdp_backward_prefetch": (DEFAULT, _FSDP2),
    "fsdp_backward_prefetch_policy": (DEFAULT, _FSDP2),
    "fsdp_forward_prefetch": (DEFAULT, _FSDP2),
    "fsdp_use_orig_params": (DEFAULT, _FSDP2),
    "fsdp_limit_all_gathers": (DEFAULT, _FSDP2),
    "fsdp_sync_module_states": (DEFAULT, "all ranks get the values of rank 0"),
    "fsdp_cpu_ram_efficient_loading": (ELSEWHERE, _MODEL),
    "fsdp_state_dict_type": (
        DEFAULT,
        "a checkpoint can be read on any number of ranks, under every strategy",
    ),
    "fsdp_ignored_modules": (NONE, "all modules are sharded; leave one out of the module itself"),
}
READ_FSDP = (
    "fsdp_version",
    "fsdp_sharding_strategy",
    "fsdp_reshard_after_forward",
    "fsdp_offload_params",
    "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload",
)
SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""In the order of their numbers, from 1."""

DEEPSPEED: Known = {
    "zero3_init_flag": (ELSEWHERE, _MODEL),
    "zero3_save_16bit_model": (ELSEWHERE, "trainer.export(folder) writes the whole model"),
    "deepspeed_moe_layer_cls_names": (NONE, "layers of experts are partitioned like all others"),
    "deepspeed_multinode_launcher": (ELSEWHERE, _RANKS),
    "deepspeed_hostfile": (ELSEWHERE, f"{_RANKS}, on each machine"),
    "deepspeed_exclusion_filter": (ELSEWHERE, "machines are those on which the launch command runs"),
    "deepspeed_inclusion_filter": (ELSEWHERE, "machines are those on which the launch command runs"),
}
READ_DEEPSPEED = (
    "zero_stage",
    "deepspeed_config_file",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
)

PARALLEL = (
    *(
        "dp_replicate_size",
        "dp_shard_size",
        "tp_size",
        "cp_size",
        "cp_backend",
        "cp_comm_strategy",
        "sp_size",
    ),
    *("sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
)
FP8: Known = {
    f"fp8_{name}": (NONE, _FP8)
    for name in (
        *("backend", "use_autocast_during_eval", "margin", "interval", "format", "fp8_format", "opt_level"),
        *("amax_history_len", "amax_history_length", "amax_compute_algo", "amax_compute_algorithm"),
        *("override_linear_precision", "optimization_level", "enable_fsdp_float8_all_gather"),
        *("pad_inner_dim",),
    )
}
DYNAMO = ("dynamo_backend", "dynamo_mode", "dynamo_use_fullgraph", "dynamo_use_dynamic")
DYNAMO_BLOCKS = "dynamo_use_regional_compilation"
BACKENDS = (
    *("NO", "INDUCTOR", "EAGER", "AOT_EAGER", "CUDAGRAPHS", "ONNXRT", "TENSORRT", "TVM", "HPU_BACKEND"),
    *("NEURON", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "OFI", "FX2TRT", "IPEX", "AOT_TORCHXLA_TRACE_ONCE"),
    "TORCHXLA_TRACE_ONCE",
)
NO_TRAINING = BACKENDS[BACKENDS.index("AOT_TS_NVFUSER") :]
"""Backends that torch no longer has, that infer alone, or that are for TPUs."""
MPIRUN: Known = {
    "mpirun_ccl": (ELSEWHERE, "oneCCL's variables, such as CCL_WORKER_COUNT, are your environment's")
}
