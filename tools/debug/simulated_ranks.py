"""One device that computes what several ranks did, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...strategies import Collectives, Environment, Precision, Single
from ...trainer.checkpoint.files.reading import read_manifest, read_state
from ...trainer.rng import derive, full_state, seed_generators, set_full_state, untouched
from ...trainer.utils.tensor_checksum import sample_of_weights

T = TypeVar("T")


class _Simulated(Collectives):
    def __init__(self, environment: Environment, simulated_ranks: int) -> None:
        super().__init__(environment)
        self.simulated_ranks = simulated_ranks

    def rank_of(self, micro_batch: int) -> int:
        return micro_batch % self.simulated_ranks


class SimulatedRanks(Single):
    """One device that stands for several: each micro-batch draws from its own rank's generators."""

    repeats_steps = False  # the ranks' generators are beyond a step that failed

    def __init__(self, world_size: int, debug: bool) -> None:
        super().__init__()
        self.world_size, self._debug = world_size, debug
        self.at_step = False
        self.first_weights = 0
        self.losses: list[float] = []
        self._before: dict[int, Any] = {}
        self._generators: list[Any] = [None] * world_size
        self._calls, self._first_index = 0, 0

    def attach(self, environment: Environment, precision: Precision) -> None:
        super().attach(environment, precision)
        self.collectives = _Simulated(environment, self.world_size)

    def load(self, source: Path | None, seed: int) -> None:
        """The generators of all ranks but the first, which are the process' own."""
        if source is not None:
            state = read_state(source, read_manifest(source))
            self._generators = [one["rng"] for one in state["ranks"]]
            self._first_index = state["counters"]["batch_idx"]
            return
        for rank in range(1, self.world_size):
            with untouched(self.device):
                seed_generators(derive(seed, rank))
                self._generators[rank] = full_state(self.device)

    def step_function(self, module: torch.nn.Module, name: str) -> Callable[..., Any]:
        step = super().step_function(module, name)
        if name != "training_step":
            return step

        def as_rank(batch: Any, *index: int) -> Any:
            rank, round_ = self._calls % self.world_size, self._calls // self.world_size
            self._calls += 1
            if index and index[0] == 0:
                self._first_index = 0
            arguments = (batch, *(self._first_index + round_ for _ in index))
            if rank == 0:
                return self._take(step, arguments)
            own = full_state(self.device)
            set_full_state(self._generators[rank], self.device)
            try:
                return self._take(step, arguments)
            finally:
                self._generators[rank] = full_state(self.device)
                set_full_state(own, self.device)

        return as_rank

    def _take(self, step: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self.at_step:
            return step(*arguments)
        batch = id(arguments[0])
        if batch in self._before:  # once more, to see where it fails: with the same draws
            set_full_state(self._before[batch], self.device)
        else:
            self._before[batch] = full_state(self.device)
        if self._debug:
            import pdb

            output = pdb.Pdb().runcall(step, *arguments)
        else:
            output = step(*arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if self._automatic and isinstance(loss, torch.Tensor):
            self.losses.append(loss.detach().item())
        return output

    def setup(self, module: torch.nn.Module, build_optimizers: Callable[[], T]) -> T:
        self._automatic = bool(getattr(module, "automatic_optimization", True))
        self.first_weights = sample_of_weights(module)
        return super().setup(module, build_optimizers)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        if self.at_step and not self._automatic:
            self.losses.append(loss.item())
        super().backward(loss, retain_graph)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        self._first_index += self._calls // self.world_size
        self._calls = 0
        return super().step(optimizer)
