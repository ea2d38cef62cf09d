"""What the strategy uses of DeepSpeed's engine without a public name, each with its reason.

``zero_state.py`` has what reading and writing the state needs. ``constraints.txt`` pins DeepSpeed, and
``tests/strategies/test_deepspeed_internals.py`` fails by name where a DeepSpeed lacks one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor


def needs_no_compiler(deepspeed: Any) -> None:
    """Its shared-memory reduction is built by a compiler at first use; gloo needs none."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def allow_backward(engine: Any) -> None:
    """Stages 1 to 3 take a second backward within one forward for the first one again."""
    engine.optimizer.clear_backward_seen_flag()


def clip_reduced_with(engine: Any, clip: Callable[[], None]) -> None:
    """At stage 0 ``clip`` stands where the engine clips: only there gradients are reduced."""
    engine.clip_fp32_gradients = clip


def unscale_with(
    engine: Any, wrap: Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]
) -> None:
    """At stages 1 to 3 ``wrap`` gets the function that unscales and clips, and gives what is called."""
    engine.optimizer.unscale_and_clip_grads = wrap(engine.optimizer.unscale_and_clip_grads)


def clip_norm_of_next_step(engine: Any, stage: int, norm: float | None) -> None:
    """The engine reads the norm it clips to at each step, and has no setter that all stages read."""
    engine._config.gradient_clipping = norm or float("inf")  # stage 0
    if stage:
        engine.optimizer.clip_grad = norm or 0.0


def forget_gradients(engine: Any) -> None:
    """Clear what stage 3 has summed, after an update.

    It would add to it where the first backward of the next step does not reach a parameter, and update with
    it where none does.
    """
    engine.optimizer.grad_partitions_flat_buffer.zero_()


def parts_and_masters(engine: Any) -> list[tuple[Tensor, Tensor]]:
    """For each flat group of stages 1 and 2 this rank's part as forward reads it, and its master."""
    inner = engine.optimizer
    ranks = [dist.get_rank(group) for group in inner.real_dp_process_group]
    parts = [
        group[rank] for group, rank in zip(inner.parallel_partitioned_bit16_groups, ranks, strict=True)
    ]
    return list(zip(parts, inner.single_partition_of_fp32_groups, strict=True))


def part_and_master(engine: Any, index: int) -> tuple[Tensor, Tensor]:
    """The same for one group of stage 3, which ``unscale_and_clip_grads`` was called with."""
    inner = engine.optimizer
    return inner.fp16_partitioned_groups_flat[index], inner.fp32_partitioned_groups_flat[index]


def persistent_parameters(engine: Any) -> set[Any]:
    """The small parameters that stage 3 keeps whole between two steps."""
    return set(engine.optimizer.persistent_parameters)


@contextmanager
def overflow_found(engine: Any, stage: int) -> Iterator[None]:
    """Inside, the step of stages 1 to 3 finds an overflow and clears: no public method skips one."""
    inner = engine.optimizer

    def find(*args: Any, **options: Any) -> None:
        inner.overflow = True

    replaced: dict[str, Any] = {}
    if stage == 3:
        replaced = {"_overflow_check_and_loss_scale_update": find}
    elif stage:
        replaced = {"check_overflow": find, "check_grad_overflow": True}
    before = {name: vars(inner)[name] for name in replaced if name in vars(inner)}
    vars(inner).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(inner)[name]
        vars(inner).update(before)


def flat_gradients(engine: Any, stage: int, which: Any) -> list[Tensor]:
    """The flat gradients that ``unscale_and_clip_grads`` was called with; stage 3 gives an index."""
    if stage < 3:
        return list(which)
    gradient: Tensor = engine.optimizer.fp32_partitioned_groups_flat[which].grad
    return [gradient]


def finalised_gradients(engine: Any, stage: int, read: Callable[[], Any]) -> Any:
    """What ``read`` returns at a moment when ``safe_get_full_grad`` sees the whole step's gradients.

    Stage 2 finalises them in the engine's step only, which does it again: what is accumulated is put back.
    """
    inner = engine.optimizer
    accumulated = dict(getattr(inner, "all_grad_tensors", {}))
    if stage == 2:
        inner.finalize_gradient_accumulation_boundary()
    found = read()
    if stage == 2:
        inner.all_grad_tensors.update(accumulated)
    return found


@contextmanager
def swapped_in(engine: Any, index: int) -> Iterator[None]:
    """Inside, a flat group of stage 3 that is offloaded to NVMe has memory, which is written back after."""
    zero = engine.optimizer
    swaps = engine.zero_optimization_stage() == 3 and zero._swappable_optimizer_subgroup(index)
    if swaps:
        zero._optimizer_states_and_gradient_swap_in(index)
    yield
    if swaps:
        zero._optimizer_states_and_gradient_swap_out(index)
