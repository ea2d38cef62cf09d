"""Configuration files as ``accelerate config`` writes them and as DeepSpeed's documentation has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

_TAIL = """\
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
SINGLE = f"""\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: 'NO'
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 1
{_TAIL}"""
TWO_GPUS = f"""\
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: reduce-overhead
  dynamo_use_dynamic: false
  dynamo_use_fullgraph: true
gpu_ids: 1,3
machine_rank: 0
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
{_TAIL}"""
CPUS = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: 10.0.0.4
main_process_port: 29600
main_training_function: main
mixed_precision: 'no'
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: /home/me/hosts
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: true
"""
FSDP1 = f"""\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: true
  fsdp_sharding_strategy: 2
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
{_TAIL}"""
FSDP2 = f"""\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
parallelism_config:
  parallelism_config_cp_size: 1
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 1
{_TAIL}"""
ZERO2 = f"""\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 0.5
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
{_TAIL}"""
ZERO3 = f"""\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 1
  offload_optimizer_device: cpu
  offload_param_device: cpu
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
{_TAIL}"""
ZERO3_DISKS = ZERO3.replace(
    "  offload_optimizer_device: cpu\n",
    "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /local_nvme\n",
).replace("offload_param_device: cpu", "offload_param_device: none")
ZERO_FILE = f"""\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: true
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
num_machines: 1
num_processes: 2
{_TAIL}"""
TWO_MACHINES = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: true
gpu_ids: all
machine_rank: 1
main_process_ip: 192.168.20.1
main_process_port: 8080
main_training_function: main
mixed_precision: fp16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""
TWO_MACHINES_C10D = TWO_MACHINES.replace("static", "c10d").replace(
    "same_network: true", "same_network: false"
)
MEGATRON = f"""\
compute_environment: LOCAL_MACHINE
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_tp_degree: 2
mixed_precision: fp16
num_machines: 1
num_processes: 4
{_TAIL}"""
TPU = """\
compute_environment: LOCAL_MACHINE
distributed_type: XLA
downcast_bf16: 'no'
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 8
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
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


EXAMPLES = {
    "single": Example(SINGLE, {"devices": 1, "precision": "bf16"}, (1, 1)),
    "two GPUs": Example(
        TWO_GPUS,
        of(
            devices=[1, 3],
            precision="fp16",
            strategy="ddp",
            debug=True,
            compile={"mode": "reduce-overhead", "fullgraph": True},
        ),
        (2, 1),
    ),
    "CPUs": Example(CPUS, of("cpu", 4, num_nodes=2, precision="32", strategy="ddp"), (4, 2)),
    "FSDP 1": Example(
        FSDP1,
        of(
            devices=8,
            precision="bf16",
            strategy={"class": "FSDP", "reshard_after_forward": False, "cpu_offload": True},
        ),
        (8, 1),
    ),
    "FSDP 2": Example(
        FSDP2,
        of(
            devices=4,
            precision="bf16",
            strategy={
                "class": "HSDP",
                "replicate": 2,
                "reshard_after_forward": False,
                "activation_checkpointing": True,
            },
        ),
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
        of(
            devices=8,
            strategy={
                "class": "DeepSpeed",
                "stage": 3,
                "config": {
                    "zero_optimization": {
                        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}
                    }
                },
            },
            precision="bf16",
        ),
        (8, 1),
    ),
    "ZeRO 3 by JSON": Example(
        ZERO_FILE,
        of(
            devices=2,
            strategy={"class": "DeepSpeed", "config": "ds.json"},
            precision="bf16",
            clip_grad_norm=1.0,
        ),
        (2, 1),
        PLAIN_JSON,
    ),
    "ZeRO 2 by JSON": Example(
        ZERO_FILE,
        of(
            devices=2,
            strategy={"class": "DeepSpeed", "stage": 2, "config": _INLINE},
            precision="bf16",
            global_batch_size=64,
        ),
        (2, 1),
        FULL_JSON,
    ),
    "two machines": Example(
        TWO_MACHINES,
        of(devices=8, num_nodes=2, precision="fp16", strategy="ddp", numa_affinity=True),
        (8, 2),
    ),
    "two machines, c10d": Example(
        TWO_MACHINES_C10D,
        of(devices=8, num_nodes=2, precision="fp16", strategy="ddp", numa_affinity=True),
        (8, 2),
    ),
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
