"""What ``Fabric.setup`` returns: the user's module and optimizers, over the strategy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ....errors import PacelineError
from ....strategies import Precision, Strategy
from ....trainer.loops.manual_optimizer import ManualOptimizer
from ....trainer.plain_names import COMPILED
from ....trainer.utils.nested import map_tensors
from ..translation.default_dtype import default_dtype


class FabricModule(nn.Module):
    """A module that computes where the strategy has placed it, under the precision.

    Attributes, names of parameters and state dicts are the user's module's.

    Args:
        module: The user's.
        strategy: Of the run; ``setup`` is called with this object.
        goes_backward: Whether ``Fabric.backward`` runs at the moment.
    """

    automatic_optimization = False
    """The loop calls backward and step itself: strategies do as for manual optimization."""

    def __init__(self, module: nn.Module, strategy: Strategy, goes_backward: Callable[[], bool]) -> None:
        super().__init__()
        self._strategy, self._goes_backward = strategy, goes_backward
        self._methods = {"training_step", "validation_step", "test_step", "predict_step"}
        # A lambda, for what torch.compile returned is no submodule here.
        self._call: Callable[..., Any] = lambda *args, **kwargs: module(*args, **kwargs)
        self._forward_module = getattr(module, COMPILED, module)
        self._step: Callable[..., Any] | None = None

    @property
    def module(self) -> nn.Module:
        """The user's."""
        found: nn.Module = self._modules["_forward_module"]  # type: ignore[assignment]
        return found

    def _begin(self) -> None:
        """The strategy has set this object up."""
        self._step = self._strategy.step_function(self, "_run")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The user's forward: inputs and outputs have the dtypes that Lightning gives them."""
        return self._called("forward", args, kwargs)

    def mark_forward_method(self, method: MethodType | str) -> None:
        """Let another method of the module compute as ``forward`` does.

        Args:
            method: It, or its name.

        Raises:
            PacelineError: for what is no other method of the module.
        """
        name = str(getattr(method, "__name__", method))
        if name == "forward" or not isinstance(getattr(self.module, name, None), MethodType):
            raise PacelineError(
                f"mark_forward_method takes a method of {type(self.module).__name__} beside forward",
                code="fabric-usage",
                got=repr(name),
            )
        self._methods.add(name)

    def _called(self, name: str, args: Any, kwargs: Any) -> Any:
        precision: Precision = self._strategy.precision
        converts = precision.compute_dtype != torch.float32
        if converts:
            args, kwargs = cast_floats((args, kwargs), precision.input_dtype or torch.get_default_dtype())
        assert self._step is not None
        output = self._step(name, args, kwargs)
        if converts:
            output = cast_floats(output, torch.get_default_dtype())
        if precision.scales and torch.is_grad_enabled():
            map_tensors(output, self._watched)
        return output

    def _watched(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(self._check_backward)
        return value

    def _check_backward(self, gradient: Tensor) -> None:
        if not self._goes_backward():
            raise PacelineError(
                "gradients of this precision are scaled, which loss.backward() does not know",
                code="backward-bypassed",
                got=f"precision={self._strategy.precision.name!r}",
                fix="fabric.backward(loss)",
            )

    def _run(self, name: str, args: Any, kwargs: Any) -> Any:
        """A method of the user's, through the module's ``__call__``: shards are gathered there."""
        module, method = self.module, getattr(self.module, name)
        forward = module.forward

        def once(*args: Any, **kwargs: Any) -> Any:
            vars(module)["forward"] = forward  # the method may call it
            return method(*args, **kwargs)

        with default_dtype(self._strategy.precision.input_dtype):
            if name == "forward":
                return self._call(*args, **kwargs)
            kept = {key: value for key, value in vars(module).items() if key == "forward"}
            vars(module)["forward"] = once
            try:
                return module(*args, **kwargs)
            finally:
                del vars(module)["forward"]
                vars(module).update(kept)

    # -- the user's module, as if nothing was around it ------------------------------------------

    def __getattr__(self, name: str) -> Any:
        module = self._modules["_forward_module"]
        if name in vars(self).get("_methods", ()) and hasattr(module, name):
            return lambda *args, **kwargs: self._called(name, args, kwargs)
        return module if name in ("_forward_module", "_original_module") else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_step" not in vars(self) or name in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> FabricModule:
        """Another one around a copy of the user's module, for averages of weights."""
        if self._strategy.skips_by_itself:
            raise PacelineError(
                f"strategy {self._strategy.name!r} computes with the one module of its engine",
                code="fabric-usage",
                fix="copy the module before fabric.setup",
            )
        copied = FabricModule(copy.deepcopy(self.module, memo), self._strategy, self._goes_backward)
        copied._methods |= self._methods
        copied._begin()
        return copied

    def train(self, mode: bool = True) -> FabricModule:
        """As ``nn.Module.train``; between training and evaluation ranks get rank 0's buffers.

        To be called on all ranks.
        """
        if self._step is not None and mode != self.training:
            with self._strategy.evaluation(self):
                pass
        super().train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)


class FabricOptimizer(ManualOptimizer):
    """An optimizer whose ``step`` goes through the strategy; all else is the optimizer's own.

    Args:
        optimizer: The user's.
        strategy: Of the run.
        callbacks: Their ``on_after_optimizer_step(strategy, optimizer)`` is called.
        module: What was set up with it, or has its parameters; None where nothing has.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        strategy: Strategy,
        callbacks: list[Any],
        module: FabricModule | None,
    ) -> None:
        super().__init__(optimizer, strategy)
        self._callbacks, self._is_unscaled = callbacks, False
        self.module: Any = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For ``isinstance(optimizer, torch.optim.Optimizer)``, which schedulers ask."""
        return type(self.optimizer)

    def note_backward(self) -> None:
        """Gradients have come."""
        self.has_new_gradients, self._is_unscaled = True, False

    def unscale(self) -> None:
        """Leave the reduced, true gradients in ``.grad``; once until others come. On all ranks."""
        if not self._is_unscaled:
            self._strategy.unscale(self.optimizer)
        self._is_unscaled = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Gradients stay until ``zero_grad``.

        Args:
            closure: For optimizers that evaluate the loss themselves.

        Returns:
            What the closure returned; None without one.
        """
        output = None
        if closure is not None:
            self._refuse_closure()
            output = self.optimizer.step(closure)
        else:
            self.unscale()
            self._strategy.update(self.optimizer)
            self._strategy.precision.update()
        self.has_stepped, self.has_new_gradients, self._is_unscaled = True, False, False
        for callback in self._callbacks:
            hook = getattr(callback, "on_after_optimizer_step", None)
            if callable(hook):
                hook(strategy=self._strategy, optimizer=self.optimizer)
        return output

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self._is_unscaled = False
        super().zero_grad(set_to_none)


def is_wrapped(obj: object) -> bool:
    """Whether ``Fabric`` has set an object up.

    Args:
        obj: A module, an optimizer or a loader.
    """
    from .data import FabricDataLoader

    return issubclass(type(obj), (FabricModule, FabricOptimizer, FabricDataLoader))


def unwrapped(obj: Any) -> Any:
    """The user's module or optimizer for what ``Fabric.setup`` returned; another object as it is."""
    if issubclass(type(obj), FabricModule):
        return obj.module
    return obj.optimizer if issubclass(type(obj), FabricOptimizer) else obj


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """A nested structure whose tensors of floats have this dtype.

    Args:
        values: Any structure; what is no tensor of floats stays.
        dtype: Of floats.
    """

    def cast(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if floats else value

    return map_tensors(values, cast)


_FabricModule, _FabricOptimizer = FabricModule, FabricOptimizer  # Lightning's names
