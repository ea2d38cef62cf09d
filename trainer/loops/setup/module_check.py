"""What a module lacks, or hides from its Trainer: said before anything is loaded."""

from __future__ import annotations

from typing import Any

from torch.nn.parameter import is_lazy

from ....common.hidden_weights import HIDDEN_CURE, hidden_parameters
from ....errors import PacelineError, listed
from ...module import is_overridden, missing_method

_EXAMPLES = {
    "training_step": "def training_step(self, batch, batch_idx): ... return loss",
    "configure_optimizers": "def configure_optimizers(self): return torch.optim.AdamW(self.parameters())",
}


def check_module(module: Any) -> None:
    """Refuse a module that cannot be trained, before anything is loaded.

    Raises:
        PacelineError: naming what it lacks.
    """
    name = type(module).__name__
    for method, example in _EXAMPLES.items():
        if not is_overridden(module, method):
            raise PacelineError(missing_method(module, method), code="method-missing", fix=example)
    lazy = [n for n, t in (*module.named_parameters(), *module.named_buffers()) if is_lazy(t)]
    if lazy:
        layer = lazy[0].rpartition(".")[0] or "layer"
        raise PacelineError(
            f"a lazy layer of {name} has no size before a first batch, and its optimizer is made before",
            code="lazy-layer",
            got=", ".join(lazy[:6]),
            fix=f"give its size, as nn.Linear does; or at the end of __init__: with torch.no_grad(): "
            f"self.{layer}(torch.zeros(2, ...)), with the shape of its input",
        )
    if not any(p.requires_grad for p in module.parameters()):
        hidden = hidden_parameters(module)
        if hidden:
            raise PacelineError(
                f"{name} has no trainable parameter: its weights are where torch does not find them",
                code="no-trainable-parameters",
                got=listed(hidden),
                fix=f"{HIDDEN_CURE}; a list of layers is nn.ModuleList([...])",
            )
        raise PacelineError(
            f"{name} has no trainable parameter",
            code="no-trainable-parameters",
            fix="assign its layers to self in __init__, or unfreeze some with requires_grad_(True)",
        )
