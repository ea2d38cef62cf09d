"""Checks of a strategy: from what its ranks found, and what one device found, to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from .finding import FAILED, OK, Finding

BOUND = 1e-5
"""How far weights in single precision may be from those of one device."""
_OWN = "for a strategy of your own: paceline.testing.check_strategy"
CURES = {
    "start": "see the end of the rank's output below; `paceline env` shows versions and devices",
    "world": "let one launcher start all ranks; unset RANK, WORLD_SIZE and MASTER_ADDR of another job; "
    "where a firewall or a wrong network interface keeps ranks apart, GLOO_SOCKET_IFNAME and "
    "NCCL_SOCKET_IFNAME name the right one",
    "collectives": "NCCL_DEBUG=INFO shows the transport, NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 switch "
    f"one off; compare the versions of the machines (`paceline env`); {_OWN}",
    "data order": "the same data and the same software on all machines; a sampler that draws its own "
    "random numbers seeds them by the epoch",
    "training step": "compare the versions of the machines (`paceline env`); Trainer(deterministic=True); "
    f"torch.set_float32_matmul_precision('highest') where it was lowered; {_OWN}",
    "checkpoint": "one file system that all ranks see; see the end of the rank's output below; " + _OWN,
}


def judge_world(asked: int, ranks: Sequence[Mapping[str, Any]], strategy: str = "") -> Finding:
    """Whether the ranks that met are those that were asked for.

    Args:
        asked: How many.
        ranks: What each rank said: its ``rank``, ``world_size`` and ``members``, ``device`` and ``host``.
        strategy: As in ``Finding``.
    """
    wrong = []
    if len(ranks) != asked:
        wrong.append(f"{len(ranks)} of {asked} ranks joined")
    for one in ranks:
        if one["world_size"] != asked:
            wrong.append(
                f"rank {one['rank']} is in a world of {one['world_size']}, and {asked} are asked for"
            )
        elif sorted(one["members"]) != list(range(asked)):
            wrong.append(f"rank {one['rank']} met ranks {one['members']}")
    places = [(one["host"], one["device"]) for one in ranks]
    if any(device != "cpu" for _, device in places) and len(set(places)) < len(places):
        wrong.append(f"several ranks use one device: {', '.join(device for _, device in places)}")
    if wrong:
        return Finding("world", FAILED, wrong[0], CURES["world"], strategy)
    return Finding("world", OK, f"{asked} rank{'s' * (asked > 1)} on {places[0][1]}", strategy=strategy)


def judge_collectives(wrong: Sequence[Sequence[str]], strategy: str = "") -> Finding:
    """Whether each rank got the right values.

    Args:
        wrong: What was wrong, by rank.
        strategy: As in ``Finding``.
    """
    found = [text for of_rank in wrong for text in of_rank]
    if found:
        return Finding("collectives", FAILED, found[0], CURES["collectives"], strategy)
    text = "all-reduce, all-gather and a broadcast from each rank"
    return Finding("collectives", OK, text, strategy=strategy)


def judge_order(
    taken: Sequence[Sequence[Sequence[int]]], right: Sequence[Sequence[int]], strategy: str = ""
) -> Finding:
    """Whether the ranks together took each sample of an epoch once, in the steps of one device.

    Args:
        taken: By rank and step, the samples.
        right: By step, those of one device.
        strategy: As in ``Finding``.
    """
    name, cure = "data order", CURES["data order"]
    if len({len(steps) for steps in taken}) > 1:
        text = ", ".join(f"rank {rank} took {len(steps)}" for rank, steps in enumerate(taken))
        return Finding(name, FAILED, f"the ranks took different numbers of steps: {text}", cure, strategy)
    every = sorted(sample for steps in taken for step in steps for sample in step)
    twice = sorted({a for a, b in pairwise(every) if a == b})
    missing = sorted({sample for step in right for sample in step} - set(every))
    if twice or missing:
        parts = [f"{len(twice)} samples were taken twice (first {twice[0]})"] if twice else []
        parts += [f"{len(missing)} were not taken (first {missing[0]})"] if missing else []
        return Finding(name, FAILED, " and ".join(parts), cure, strategy)
    for step, samples in enumerate(right):
        if sorted(sample for steps in taken for sample in steps[step]) != sorted(samples):
            text = f"step {step + 1} has other samples than on one device"
            return Finding(name, FAILED, text, cure, strategy)
    return Finding(name, OK, f"{len(every)} samples, each once", strategy=strategy)


def judge_weights(
    check: str, found: Mapping[str, Tensor], right: Mapping[str, Tensor], strategy: str = "", who: str = ""
) -> Finding:
    """Whether weights are those of one device.

    Args:
        check: The name of the check.
        found: The weights, by name.
        right: Those of one device.
        strategy: As in ``Finding``.
        who: Which weights, in words, before "differ".
    """
    cure, who = CURES[check], f"{who} " if who else ""
    if found.keys() != right.keys():
        lost, more = sorted(right.keys() - found.keys()), sorted(found.keys() - right.keys())
        text = f"{', '.join(lost)} missing" if lost else f"{', '.join(more)} too much"
        return Finding(check, FAILED, f"{who}weights: {text}", cure, strategy)
    furthest = 0.0
    for name, value in right.items():
        if found[name].shape != value.shape:
            text = f"{who}{name} has shape {list(found[name].shape)}, and {list(value.shape)} on one device"
            return Finding(check, FAILED, text, cure, strategy)
        apart = (found[name].double() - value.double()).abs().max().item()
        if not apart <= BOUND:  # NaN too
            text = f"{who}{name} differs by {apart:.2g} from one device, and {BOUND:g} is the bound"
            return Finding(check, FAILED, text, cure, strategy)
        furthest = max(furthest, apart)
    text = f"{who}weights within {furthest:.1e} of one device (bound {BOUND:g})"
    return Finding(check, OK, text, strategy=strategy)
