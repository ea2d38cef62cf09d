"""The tensor parallel plan that a Hugging Face model brings, ``tp_plan``, in torch's own styles.

https://huggingface.co/docs/transformers/perf_infer_gpu_multi describes the plans; the models are found by
what they have: transformers is not imported.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from ...errors import PacelineError

_WITHOUT = "FSDP without tensor=, where layers are adapters of peft or quantised"
_HEADS = ("num_attention_heads", "num_key_value_heads")


def parallelize_models(module: nn.Module, mesh: Any) -> None:
    """Split the layers of the Hugging Face models in a module, each by its own ``tp_plan``.

    Args:
        module: The models are it, or submodules of it at any depth. Changed in place.
        mesh: The 1-D ``DeviceMesh`` of the ranks that split each layer.

    Raises:
        PacelineError: where there is none with a plan, for styles of the plan that torch has not (those of
            mixtures of experts), and for attention heads that the ranks cannot share out evenly.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    models: list[tuple[str, nn.Module]] = []
    for name, part in module.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer, _ in models)
        if not inside and getattr(part, "tp_plan", None):
            models.append((name, part))
    if not models:
        raise PacelineError(
            f"{type(module).__name__} does not say how its layers are split over ranks",
            code="tensor-parallel-plan",
            got="no parallelize(self, mesh), and no Hugging Face model with a tp_plan",
            fix="write parallelize(self, mesh), which calls torch's parallelize_module(self.model, mesh, "
            "plan); or FSDP without tensor=, which shards every layer by itself",
        )
    for name, model in models:
        parallelize_module(model, mesh, _torch_plan(name or type(model).__name__, model, mesh.size()))


def _torch_plan(name: str, model: Any, ranks: int) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    styles = {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "colwise_rep": ColwiseParallel(output_layouts=Replicate()),  # the name before transformers 5
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
        "rowwise_rep": RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
        # A norm over each of the split heads: (batch, token, head, number).
        "replicated_with_grad_allreduce": SequenceParallel(sequence_dim=2, use_local_output=True),
    }
    wildcards = {re.sub(r"\d+", "*", part) for part, _ in model.named_modules()}
    plan = {key: style for key, style in model.tp_plan.items() if key in wildcards}
    if not plan:
        raise PacelineError(
            f"no layer of {name}, a {type(model).__name__}, has a name that its tp_plan splits",
            code="tensor-parallel-plan",
            got=", ".join(list(model.tp_plan)[:3]),
            fix=f"{_WITHOUT}; or write parallelize(self, mesh)",
        )
    for pattern, style in plan.items():
        if "wise" in style:
            _check_layers(name, model, pattern)
    unknown = sorted({style for style in plan.values() if style not in styles})
    if unknown:
        raise PacelineError(
            f"the tp_plan of {name} has styles that are not torch's",
            code="tensor-parallel-plan",
            got=", ".join(unknown),
            allowed=", ".join(styles),
            fix="write parallelize(self, mesh) with a plan of torch's styles; mixtures of experts are for "
            "torchtitan or NeMo AutoModel",
        )
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    uneven = [f"{key}={n}" for key in _HEADS if (n := getattr(config, key, None)) and n % ranks]
    if uneven:
        raise PacelineError(
            f"the attention heads of {name} cannot be shared out over {ranks} ranks",
            code="number-of-ranks",
            got=", ".join(uneven),
            fix="a tensor=... that divides them",
        )
    return {key: styles[style] for key, style in plan.items()}


def _check_layers(name: str, model: nn.Module, pattern: str) -> None:
    """Torch splits ``nn.Linear`` and ``nn.Embedding``, and no layers around one."""
    for path, part in model.named_modules():
        if re.sub(r"\d+", "*", path) == pattern and not isinstance(part, (nn.Linear, nn.Embedding)):
            raise PacelineError(
                f"the layers of {name} cannot be split as they are",
                code="tensor-parallel-plan",
                got=f"{path} is a {type(part).__module__}.{type(part).__qualname__}",
                allowed="nn.Linear and nn.Embedding",
                fix=_WITHOUT,
            )
