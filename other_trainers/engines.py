"""What is not done here, and the engines that do it: one sentence for each."""

from __future__ import annotations

_ENGINES = "torchtitan (github.com/pytorch/torchtitan) and NeMo AutoModel have it"

PIPELINE = f"pipeline parallelism is not available: {_ENGINES}"
CONTEXT = f"context parallelism, for attention over parts of one sequence, is not available: {_ENGINES}"
EXPERT = f"expert parallelism is not available: {_ENGINES}"
MEGATRON = (
    "Megatron-LM is another engine, which is not driven from here: train with Megatron Bridge or "
    "NeMo, or write FSDP(tensor=...), which splits layers over ranks"
)
TPU = "TPUs are not supported: torch_xla's own launcher with Accelerate serves them"
TENSOR = "FSDP(tensor=...) of paceline.strategies splits layers, by the module's parallelize(mesh)"

STRATEGIES: dict[str, str] = {
    "tp": TENSOR,
    "tensor": TENSOR,
    "tensor_parallel": TENSOR,
    "model_parallel": TENSOR,
    "2d": TENSOR,
    "cp": CONTEXT,
    "context_parallel": CONTEXT,
    "ring_attention": CONTEXT,
    "ulysses": CONTEXT,
    "pp": PIPELINE,
    "pipeline": PIPELINE,
    "pipeline_parallel": PIPELINE,
    "ep": EXPERT,
    "expert_parallel": EXPERT,
    "megatron": MEGATRON,
    "megatron_lm": MEGATRON,
    "tpu": TPU,
    "xla": TPU,
    "xla_fsdp": TPU,
}
"""Names that are asked for as strategies, in lower case with underscores."""
