"""``Fabric`` with Lightning's arguments and methods, for loops that users write; our strategies compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ....errors import PacelineError
from ....strategies import StrategySettings, find_environment, make_precision, make_strategy, start_ranks
from ....strategies.base import parameters_of
from ..pytorch.accelerators import Accelerator, name_of
from ..pytorch.plugins.plugin import arguments_of
from ..pytorch.trainer import seed_everything
from ..pytorch.trainer.given import as_list
from ..pytorch.utilities import move_data_to_device
from ..translation.arguments import computation
from ..translation.default_dtype import default_dtype
from .checkpoint import Checkpoints
from .data import FabricDataLoader
from .wrappers import FabricModule, FabricOptimizer, is_wrapped, unwrapped


class Fabric(Checkpoints):
    """What a loop needs to run on other devices, on several, and in other precisions.

    docs/migration/from-lightning.md says what the loop itself has to see to.

    Args:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"``, ``"mps"``, or an object of ``accelerators``.
        strategy: ``"auto"``, a name, or an object of ``strategies``.
        devices: How many, which, or ``"auto"``.
        num_nodes: Machines.
        precision: ``"32-true"`` unless given.
        plugins: Objects of ``plugins``.
        callbacks: One or several objects, whose methods ``call`` calls.
        loggers: One or several, for ``log``.

    Raises:
        PacelineError: for arguments that have no counterpart.

    Example:
        >>> from paceline.compat.lightning import Fabric
        >>> fabric = Fabric(accelerator="cpu", devices=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> fabric.backward(model(torch.ones(4, 2)).mean())
        >>> optimizer.step()
    """

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: Any = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        plugins: Any = None,
        callbacks: Any = None,
        loggers: Any = None,
    ) -> None:
        given = {"accelerator": name_of(accelerator), "strategy": strategy, "devices": devices}
        given |= {"num_nodes": num_nodes, "precision": precision} | arguments_of(plugins)
        ours = computation(given)
        environment = find_environment(ours["accelerator"], ours["devices"], num_nodes)
        found, precise = (
            make_strategy(ours["strategy"], environment.world_size),
            make_precision(ours["precision"]),
        )
        found.settings = StrategySettings(skip_nonfinite=False)
        found.attach(environment, precise)
        if not environment.starts:
            precise.attach(environment.device)
        super().__init__(found, as_list(callbacks), as_list(loggers))
        self._num_nodes = num_nodes
        self._models: list[FabricModule] = []
        self._trained: list[Optimizer] = []  # those that the strategy averages gradients of
        self._optimizers: list[FabricOptimizer] = []
        self._goes_backward = False
        vars(self)["run"] = partial(self._start, self.run)

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Start the ranks, if there are several: they run the script from its top, this process ends here.

        Args:
            function: Called on each rank with this object and the arguments.
            *args: For it.
            **kwargs: For it.

        Returns:
            What the function returned; None without one.

        Raises:
            PacelineError: for a function without parameters, and in a notebook for several ranks.
        """
        if function is None:
            return self._start(lambda: None)
        if not callable(function) or not inspect.signature(function).parameters:
            raise PacelineError(
                "launch takes a function whose first argument is the Fabric",
                code="fabric-usage",
                fix="fabric.launch(main)",
            )
        return self._start(function, self, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Override it: called, it starts the ranks first, as ``launch`` does."""

    def _start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        environment = self._strategy.environment
        if environment.forks:
            raise PacelineError(
                "Fabric starts its ranks from a script, and this is a notebook",
                code="notebook-ranks",
                got=f"{environment.world_size} ranks",
                fix="devices=1, or the loop in a script",
            )
        if environment.starts:
            start_ranks(environment.starts, self._num_nodes)
        return function(*args, **kwargs)

    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer,
        scheduler: Any = None,
        move_to_device: bool = True,
        _reapply_compile: bool = True,
    ) -> Any:
        """Place a module and its optimizers as the strategy needs it.

        Args:
            module: Changed in place.
            *optimizers: Over its parameters.
            scheduler: Returned as it is, last.
            move_to_device: False is possible on a CPU alone: strategies place modules.
            _reapply_compile: Accepted.

        Returns:
            The wrapped module; where others were given, a tuple of it, the optimizers and the scheduler.

        Raises:
            PacelineError: for what was set up before, and before ``launch``.
        """
        self._check_launched()
        self._check_once(module, *optimizers)
        if not move_to_device and self.device.type != "cpu":
            raise PacelineError(
                "the strategy places the module itself",
                code="fabric-usage",
                got="move_to_device=False",
                fix="leave it out",
            )
        wrapped = FabricModule(module, self._strategy, lambda: self._goes_backward)
        before = {id(p): name for name, p in wrapped.named_parameters()}

        def build() -> Any:
            for optimizer in optimizers:
                _follow(optimizer, before, dict(wrapped.named_parameters()))
            self._trained.extend(optimizers)
            return SimpleNamespace(optimizers=self._trained)

        self._strategy.setup(wrapped, build)
        wrapped._begin()
        self._models.append(wrapped)
        wrapped_ones = [self._wrapped(one, wrapped) for one in optimizers]
        self.call("on_after_setup", fabric=self, module=wrapped)
        if not optimizers:
            return wrapped
        return (wrapped, *wrapped_ones) if scheduler is None else (wrapped, *wrapped_ones, scheduler)

    def setup_module(
        self, module: nn.Module, move_to_device: bool = True, _reapply_compile: bool = True
    ) -> Any:
        """``setup`` without optimizers."""
        return self.setup(module, move_to_device=move_to_device)

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Optimizers over parameters of modules that were set up; one, or a tuple of several.

        Raises:
            PacelineError: for none, for what was set up before, and where an engine takes both at once.
        """
        self._check_launched()
        self._check_once(*optimizers)
        if not optimizers:
            raise PacelineError("setup_optimizers takes one optimizer or more", code="fabric-usage")
        if self._strategy.skips_by_itself:  # its engine is built over the optimizer
            raise PacelineError(
                f"strategy {self._strategy.name!r} sets a module and its optimizer up together",
                code="fabric-usage",
                fix="model, optimizer = fabric.setup(model, optimizer)",
            )
        self._trained.extend(optimizers)
        wrapped = tuple(self._wrapped(one, self._module_of(one)) for one in optimizers)
        return wrapped if len(wrapped) > 1 else wrapped[0]

    def _wrapped(self, optimizer: Optimizer, module: FabricModule | None) -> FabricOptimizer:
        self._optimizers.append(FabricOptimizer(optimizer, self._strategy, self._callbacks, module))
        return self._optimizers[-1]

    def _module_of(self, optimizer: Optimizer) -> FabricModule | None:
        held = {id(p) for p in parameters_of(optimizer)}
        return next((m for m in self._models if any(id(p) in held for p in m.parameters())), None)

    def setup_dataloaders(
        self,
        *dataloaders: DataLoader[Any],
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
    ) -> Any:
        """Loaders in exact order, each rank with its part; one, or a list of several.

        Args:
            *dataloaders: Those over a stream are read as they are, on every rank.
            use_distributed_sampler: False: every rank reads all that a loader gives.
            move_to_device: False leaves batches where they are.

        Raises:
            PacelineError: for what is no DataLoader, and for what was set up before.
        """
        self._check_launched()
        self._check_once(*dataloaders)
        if not dataloaders or not all(isinstance(one, DataLoader) for one in dataloaders):
            raise PacelineError("setup_dataloaders takes one torch DataLoader or more", code="fabric-usage")
        ranks = self._strategy.collectives if use_distributed_sampler else None
        device = self.device if move_to_device else None
        found = [FabricDataLoader(one, ranks, device) for one in dataloaders]
        return found if len(found) > 1 else found[0]

    def _check_launched(self) -> None:
        if self._strategy.environment.starts:
            raise PacelineError(
                "the ranks have not been started",
                code="fabric-usage",
                got=f"{self.world_size} ranks",
                fix="fabric.launch(), before this line",
            )

    def _check_once(self, *given: Any) -> None:
        for one in given:
            if is_wrapped(one):
                raise PacelineError(
                    "it was set up before",
                    code="fabric-usage",
                    got=type(unwrapped(one)).__name__,
                    fix="pass each object once",
                )

    def backward(self, tensor: Tensor, *args: Any, model: Any = None, **kwargs: Any) -> None:
        """``loss.backward()`` under the precision; gradients are averaged over ranks.

        Args:
            tensor: The loss, one element.
            *args: None is possible.
            model: Accepted: a backward goes through all modules that the loss is computed by.
            **kwargs: ``retain_graph``.

        Raises:
            PacelineError: for other arguments of torch's.
        """
        unknown = [repr(one) for one in args] + [one for one in kwargs if one != "retain_graph"]
        if unknown:
            raise PacelineError(
                "fabric.backward takes a loss, and retain_graph",
                code="fabric-usage",
                got=", ".join(unknown),
                fix="torch.autograd.grad(loss, inputs, create_graph=True) for gradients of gradients",
            )
        for optimizer in self._optimizers:
            optimizer.note_backward()
        self._goes_backward = True
        try:
            self._strategy.backward(tensor, bool(kwargs.get("retain_graph")))
        finally:
            self._goes_backward = False

    def clip_gradients(
        self,
        module: Any,
        optimizer: Any,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip the gradients of an optimizer by value, or by their total norm.

        Args:
            module: Accepted.
            optimizer: As ``setup`` returned it.
            clip_val: The largest absolute value.
            max_norm: The largest total norm.
            norm_type: 2.
            error_if_nonfinite: Raise where the norm is not finite.

        Returns:
            The total norm before, a scalar; None for values, and where an engine clips in its update.

        Raises:
            PacelineError: for both or neither, for another norm, and for a norm that is not finite.
        """
        if (clip_val is None) == (max_norm is None) or float(norm_type) != 2.0:
            raise PacelineError(
                "clip_gradients takes one of clip_val and max_norm, which is a 2-norm",
                code="fabric-usage",
                got=f"clip_val={clip_val}, max_norm={max_norm}, norm_type={norm_type}",
            )
        if issubclass(type(optimizer), FabricOptimizer):
            optimizer.unscale()
        total = self._strategy.clip(unwrapped(optimizer), max_norm, clip_val)
        if error_if_nonfinite and total is not None and not total.isfinite():
            raise PacelineError(
                "the total norm of the gradients is not finite",
                code="not-finite",
                got=str(total.item()),
                fix="error_if_nonfinite=False clips all the same",
            )
        return total

    @contextmanager
    def no_backward_sync(self, module: Any, enabled: bool = True) -> Iterator[None]:
        """Inside, gradients stay this rank's own; the first backward after averages their sum.

        Args:
            module: As ``setup`` returned it.
            enabled: False changes nothing.

        Raises:
            PacelineError: for a module that was not set up.
        """
        if not is_wrapped(module):
            raise PacelineError(
                "no_backward_sync takes a module that was set up",
                code="fabric-usage",
                fix="model = fabric.setup(model)",
            )
        if enabled:
            self._strategy.synchronise_gradients(False)
        try:
            yield
        finally:
            if enabled:
                self._strategy.synchronise_gradients(True)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """What forwards compute in, for what is outside of them."""
        precision = self._strategy.precision
        with (precision.context(self.device) or nullcontext)(), default_dtype(precision.input_dtype):
            yield

    def init_tensor(self) -> AbstractContextManager[Any]:
        """New tensors inside are on the device, in the precision's dtype."""
        return self.init_module()

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """A module built inside is on the device, in the precision's dtype.

        Args:
            empty_init: True: where ranks hold parts of a module it has no memory before ``setup``.
        """
        self._check_launched()
        late = bool(empty_init) and self._strategy.around_hooks is not None
        with ExitStack() as stack:
            stack.enter_context(torch.device("meta") if late else self.device)
            stack.enter_context(default_dtype(self._strategy.precision.input_dtype))
            yield

    def sharded_model(self) -> AbstractContextManager[Any]:
        """Accepted: ``init_module`` stands in its place."""
        self._check_launched()
        return nullcontext()

    def to_device(self, obj: Any) -> Any:
        """A module or a nested structure of tensors on the device."""
        return obj.to(self.device) if isinstance(obj, nn.Module) else move_data_to_device(obj, self.device)

    @staticmethod
    def seed_everything(seed: int | None = None, workers: bool | None = None, verbose: bool = True) -> int:
        """As ``seed_everything`` of this package."""
        return seed_everything(seed, workers=True, verbose=verbose)


def _follow(optimizer: Optimizer, before: dict[int, str], now: dict[str, nn.Parameter]) -> None:
    """Let an optimizer hold the parameters that a strategy has put in the place of others."""
    for group in optimizer.param_groups:
        group["params"] = [now[before[id(p)]] if id(p) in before else p for p in group["params"]]
