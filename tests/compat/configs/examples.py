"""Configuration files as ``accelerate config`` writes them and as DeepSpeed's documentation has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

_GPUS = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
_TPU = ("tpu_env", "tpu_use_cluster", "tpu_use_sudo")


def asked(kind: str, processes: int, *without: str, **answers: Any) -> str:
    """What ``accelerate config`` writes after these answers: its keys, in alphabetical order."""
    content = {**_GPUS, "distributed_type": kind, "num_processes": processes, **answers}
    return yaml.safe_dump({key: value for key, value in content.items() if key not in without})


def prefixed(prefix: str, **values: Any) -> dict[str, Any]:
    """A block whose keys all begin with this."""
    return {f"{prefix}_{key}": value for key, value in values.items()}


SINGLE = asked("NO", 1, enable_cpu_affinity=False, gpu_ids="all")
_DYNAMO = {"backend": "INDUCTOR", "mode": "reduce-overhead", "use_dynamic": False, "use_fullgraph": True}
TWO_GPUS = asked(
    "MULTI_GPU",
    2,
    debug=True,
    dynamo_config=prefixed("dynamo", **_DYNAMO),
    gpu_ids="1,3",
    mixed_precision="fp16",
)
CPUS = asked(
    "MULTI_CPU",
    8,
    *_TPU,
    main_process_ip="10.0.0.4",
    main_process_port=29600,
    mixed_precision="no",
    mpirun_config=prefixed("mpirun", ccl="1", hostfile="/home/me/hosts"),
    num_machines=2,
    use_cpu=True,
)
_FSDP = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "cpu_ram_efficient_loading": True}
_FSDP |= {"state_dict_type": "SHARDED_STATE_DICT"}
_FSDP1 = {
    "backward_prefetch_policy": "BACKWARD_PRE",
    "forward_prefetch": False,
    "offload_params": True,
    "sharding_strategy": 2,
    "sync_module_states": True,
    "transformer_layer_cls_to_wrap": "BertLayer",
    "use_orig_params": True,
}
FSDP1 = asked("FSDP", 8, fsdp_config=prefixed("fsdp", **_FSDP, **_FSDP1))
_FSDP2 = {"activation_checkpointing": True, "offload_params": False, "reshard_after_forward": False}
FSDP2 = asked(
    "FSDP",
    4,
    fsdp_config=prefixed("fsdp", **_FSDP, **_FSDP2, version=2),
    parallelism_config=prefixed(
        "parallelism_config", cp_size=1, dp_replicate_size=2, dp_shard_size=2, tp_size=1
    ),
)


def zero(stage: int, device: str, accumulate: int, **more: Any) -> dict[str, Any]:
    """The block of DeepSpeed's plugin."""
    devices = {"offload_optimizer_device": device, "offload_param_device": device}
    steps = {"gradient_accumulation_steps": accumulate}
    return {**steps, **devices, "zero3_init_flag": stage == 3, "zero_stage": stage, **more}


ZERO2 = asked("DEEPSPEED", 2, deepspeed_config=zero(2, "none", 4, gradient_clipping=0.5))
ZERO3 = asked("DEEPSPEED", 8, deepspeed_config=zero(3, "cpu", 1, zero3_save_16bit_model=True))
ZERO3_DISKS = ZERO3.replace(
    "  offload_optimizer_device: cpu\n",
    "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /local_nvme\n",
).replace("offload_param_device: cpu", "offload_param_device: none")
ZERO_FILE = asked(
    "DEEPSPEED",
    2,
    "mixed_precision",
    deepspeed_config={"deepspeed_config_file": "ds.json", "zero3_init_flag": True},
)
TWO_MACHINES = asked(
    "MULTI_GPU",
    16,
    *_TPU[1:],
    enable_cpu_affinity=True,
    gpu_ids="all",
    machine_rank=1,
    main_process_ip="192.168.20.1",
    main_process_port=8080,
    mixed_precision="fp16",
    num_machines=2,
)
TWO_MACHINES_C10D = TWO_MACHINES.replace("static", "c10d").replace(
    "same_network: true", "same_network: false"
)
_MEGATRON = prefixed("megatron_lm", gradient_clipping=1.0, num_micro_batches=2, pp_degree=2, tp_degree=2)
MEGATRON = asked("MEGATRON_LM", 4, "debug", megatron_lm_config=_MEGATRON, mixed_precision="fp16")
TPU = asked("XLA", 8, "debug", "machine_rank", "rdzv_backend", "same_network", mixed_precision="no")
SAGEMAKER = """\
base_job_name: accelerate-sagemaker-1
compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
ec2_instance_type: ml.p3.16xlarge
iam_role_name: accelerate_sagemaker_execution_role
image_uri: null
mixed_precision: fp16
num_machines: 1
profile: default
py_version: py310
pytorch_version: 1.10.2
region: us-east-1
transformers_version: 4.17.0
"""
PLAIN_JSON = """\
{
  "train_micro_batch_size_per_gpu": "auto",
  "train_batch_size": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "reduce_bucket_size": "auto",
    "stage3_param_persistence_threshold": 1e4
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
"""
FULL_JSON = """\
{
\t"train_batch_size": 64,
\t"train_micro_batch_size_per_gpu": 8,
\t"gradient_accumulation_steps": 4,
\t"gradient_clipping": "auto",
\t"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
\t"torch_autocast": {"enabled": true, "dtype": "bfloat16"},
\t"optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "weight_decay": "auto"}},
\t"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 500, "total_num_steps": "auto"}},
\t"zero_optimization": {
\t\t"stage": 2,
\t\t"offload_optimizer": {"device": "cpu", "pin_memory": true},
\t\t"allgather_bucket_size": 2e8
\t},
\t"activation_checkpointing": {"partition_activations": true},
\t"comms_logger": {"enabled": true},
\t"aio": {"block_size": 1048576},
\t"tensorboard": {"enabled": true, "output_path": "tb"},
\t"elasticity": {"enabled": false}
}
"""
_COMPILE = {"mode": "reduce-overhead", "fullgraph": True}
_RESHARD, _AGAIN = {"reshard_after_forward": False}, {"activation_checkpointing": True}
_DISKS = {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}
_BY_FILE = {"class": "DeepSpeed", "config": "ds.json"}
_INLINE = {
    "activation_checkpointing": {"partition_activations": True},
    "comms_logger": {"enabled": True},
    "aio": {"block_size": 1048576},
    "tensorboard": {"enabled": True, "output_path": "tb"},
    "zero_optimization": {
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "allgather_bucket_size": 2e8,
    },
}


class Example(NamedTuple):
    """A file, what it becomes, and the world: ranks on a machine, machines."""

    text: str
    trainer: dict[str, Any]
    world: tuple[int, int]
    json: str = ""


def of(kind: str = "gpu", devices: Any = 1, **trainer: Any) -> dict[str, Any]:
    """Arguments in their usual order."""
    return {"accelerator": kind, "devices": devices, **trainer}


_STAGE_2 = {"class": "DeepSpeed", "stage": 2, "config": _INLINE}
_TWO_MACHINES = of(devices=8, num_nodes=2, precision="fp16", strategy="ddp", numa_affinity=True)
EXAMPLES = {
    "single": Example(SINGLE, {"devices": 1, "precision": "bf16"}, (1, 1)),
    "two GPUs": Example(
        TWO_GPUS,
        of(devices=[1, 3], precision="fp16", strategy="ddp", debug=True, compile=_COMPILE),
        (2, 1),
    ),
    "CPUs": Example(CPUS, of("cpu", 4, num_nodes=2, precision="32", strategy="ddp"), (4, 2)),
    "FSDP 1": Example(
        FSDP1,
        of(devices=8, precision="bf16", strategy={"class": "FSDP", **_RESHARD, "cpu_offload": True}),
        (8, 1),
    ),
    "FSDP 2": Example(
        FSDP2,
        of(devices=4, precision="bf16", strategy={"class": "HSDP", "replicate": 2, **_RESHARD, **_AGAIN}),
        (4, 1),
    ),
    "ZeRO 2": Example(
        ZERO2,
        of(devices=2, strategy="deepspeed_stage_2", accumulate=4, clip_grad_norm=0.5, precision="bf16"),
        (2, 1),
    ),
    "ZeRO 3": Example(ZERO3, of(devices=8, strategy="deepspeed_stage_3_offload", precision="bf16"), (8, 1)),
    "ZeRO 3 on disks": Example(
        ZERO3_DISKS,
        of(devices=8, strategy={"class": "DeepSpeed", "stage": 3, "config": _DISKS}, precision="bf16"),
        (8, 1),
    ),
    "ZeRO 3 by JSON": Example(
        ZERO_FILE,
        of(devices=2, strategy=_BY_FILE, precision="bf16", clip_grad_norm=1.0),
        (2, 1),
        PLAIN_JSON,
    ),
    "ZeRO 2 by JSON": Example(
        ZERO_FILE,
        of(devices=2, strategy=_STAGE_2, precision="bf16", global_batch_size=64),
        (2, 1),
        FULL_JSON,
    ),
    "two machines": Example(TWO_MACHINES, _TWO_MACHINES, (8, 2)),
    "two machines, c10d": Example(TWO_MACHINES_C10D, _TWO_MACHINES, (8, 2)),
}
REFUSED = {"Megatron-LM": MEGATRON, "TPU": TPU, "SageMaker": SAGEMAKER}


def write(folder: Path, example: Example | str) -> Path:
    """The file, with the JSON beside it."""
    text = example if isinstance(example, str) else example.text
    file = folder / "default_config.yaml"
    file.write_text(text)
    if not isinstance(example, str) and example.json:
        (folder / "ds.json").write_text(example.json)
    return file
