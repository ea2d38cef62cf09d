"""precision="fp8": the matrix products of large linear layers in float8, through torchao."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...common.argument_checks import COUNT, SWITCH, TEXTS, check_arguments, one_of
from ...errors import PacelineError, listed
from ..tensors.sharding import is_sharded
from .precision import AutocastBF16

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
_MULTIPLE = 16  # what the hardware's products need of both features
_HEADS = ("lm_head", "head", "output", "classifier")


class Float8(AutocastBF16):
    """fp32 parameters, the products of large linear layers in float8 and all others in bfloat16.

    ``nn.Linear`` layers become torchao's ``Float8Linear``, with the same names and parameters, and stay so
    after the run. Output layers, whose rounding shows in the loss, and small ones, where the scaling takes
    longer than the product saves, stay in bfloat16; the first lines of a run name them. It is faster with
    ``compile`` only. (torchao.float8; Micikevicius et al., "FP8 Formats for Deep Learning", 2022.)

    Args:
        recipe: torchao's: ``"tensorwise"`` is the fastest, ``"rowwise"`` more exact,
            ``"rowwise_with_gw_hp"`` keeps the gradients of weights in bfloat16.
        skip: Layers that stay in bfloat16, by the last part of their name.
        min_features: Layers with fewer input or output features stay in bfloat16.
        emulate: Compute in float32 what float8 would give, on any device: to try a model out.

    Attributes:
        converted: The layers in float8.
        left_out: Why each other linear layer is not, by name.

    Raises:
        PacelineError: for arguments that are not right, without torchao, and on a device without float8.

    Example:
        >>> precision = Float8("rowwise", skip=["lm_head", "router"])
        >>> precision.name  # Trainer(precision=precision, compile="blocks")
        'fp8'
    """

    name = "fp8"

    def __init__(
        self,
        recipe: str = "tensorwise",
        *,
        skip: str | Sequence[str] = _HEADS,
        min_features: int = 512,
        emulate: bool = False,
    ) -> None:
        names = [skip] if isinstance(skip, str) else list(skip)
        check_arguments(
            "Float8",
            recipe=(recipe, one_of(*RECIPES)),
            min_features=(min_features, COUNT),
            emulate=(emulate, SWITCH),
            **({"skip": (names, TEXTS)} if names else {}),
        )
        self.recipe, self._skip = recipe, names
        self.min_features, self.emulate = min_features, emulate
        self.converted: set[nn.Module] = set()
        self.left_out: dict[str, str] = {}

    @property
    def description(self) -> str:
        shown = listed([f"{name} ({why})" for name, why in self.left_out.items()], 4)
        counted = f"{self.name}: {len(self.converted)} linear layers in float8"
        return counted + (f", not {shown}" if shown else "")

    def attach(self, device: torch.device) -> None:
        super().attach(device)
        if not self.emulate and not _has_float8(device):
            raise PacelineError(
                "precision 'fp8' needs a device with float8 products",
                code="precision-not-supported",
                got=_named(device),
                allowed="NVIDIA with compute capability 8.9 or more (L4, RTX 40, H100 ...), AMD MI300",
                fix='precision="bf16"; Float8(emulate=True) of paceline.strategies runs anywhere, slowly',
            )
        _import_torchao()
        self.converted, self.left_out = set(), {}

    def convert_module(self, module: nn.Module) -> None:
        float8 = _import_torchao()
        config = float8.Float8LinearConfig.from_recipe_name(self.recipe)
        config = dataclasses.replace(config, emulate=self.emulate)
        float8.convert_to_float8_training(module, module_filter_fn=self._takes, config=config)
        self.converted |= {part for part in module.modules() if _is_float8(part)}

    def _takes(self, layer: nn.Module, name: str) -> bool:
        """Whether a layer is converted; a linear one that is not is noted."""
        if type(layer) is not nn.Linear or is_sharded(layer.weight):  # a part that has been seen before
            return False
        features, why = (layer.in_features, layer.out_features), None
        if name.rpartition(".")[2] in self._skip:
            why = "by its name"
        elif min(features) < self.min_features:
            why = "small"
        elif any(count % _MULTIPLE for count in features):
            why = f"features no multiple of {_MULTIPLE}"
        if why is not None:
            self.left_out[name] = why
        return why is None


def _is_float8(part: nn.Module) -> bool:
    from torchao.float8.float8_linear import Float8Linear

    return isinstance(part, Float8Linear)


def _has_float8(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    if torch.version.hip is not None:
        return "gfx94" in torch.cuda.get_device_properties(device).gcnArchName
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _import_torchao() -> Any:
    try:
        from torchao import float8
    except ModuleNotFoundError as error:
        raise PacelineError(
            "precision 'fp8' needs torchao, which is not installed",
            code="package-missing",
            got=str(error),
            fix="pip install torchao, or precision='bf16'",
        ) from None
    except ImportError as error:
        raise PacelineError(
            f"precision 'fp8' needs a torchao that works with torch {torch.__version__}",
            code="package-missing",
            got=str(error),
            fix="pip install 'torch>=2.10' 'torchao>=0.18', or precision='bf16'",
        ) from None
    return float8
