"""Random augmentation: whether it draws again for each sample and epoch."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.of_data.code_facts import fixed_draws
from ...callbacks.checks.tensor_facts import tensors_in
from ...trainer.rng import cpu_state, seeded
from .probe import probe
from .subject import Subject, parts_of

_CPU = torch.device("cpu")
_CURE = "draw from torch's generator, which the Trainer seeds for each sample and epoch"


def _states() -> tuple[Any, Any, Any]:
    torch_state, python, numpy = cpu_state()
    return torch_state.sum().item(), hash(python), hash(np.asarray(numpy[1]).tobytes())


def _after(
    dataset: Any, index: int, seed: int
) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Tensor]]:
    with seeded(seed, _CPU):
        before = _states()
        sample = parts_of(dataset[index])
        return before, _states(), sample


@probe("repeated-augmentation")
def draws_of_a_constructor(subject: Subject) -> Iterator[Evidence]:
    """What a dataset transforms samples with draws when it is made, and not when it is called."""
    dataset: Any = subject.dataset("train")
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    for name in fixed_draws(dataset):
        yield Evidence(
            f"{name} draws once, when it is made, and is the same for each sample", "draw in its call"
        )


@probe("repeated-augmentation")
def seeds_in_getitem(subject: Subject) -> Iterator[Evidence]:
    """Reading a sample leaves a generator in one state, whatever it was before."""
    dataset: Any = subject.dataset("train")
    if dataset is None or len(dataset) < 2:
        return
    reads = [_after(dataset, index, seed) for index, seed in ((0, 21), (0, 22), (1, 23))]
    for number, name in enumerate(("torch", "random", "numpy")):
        before = {one[0][number] for one in reads}
        after = {one[1][number] for one in reads}
        if len(before) == 3 and len(after) == 1:
            yield Evidence(f"reading any sample sets the generator of {name} to one state", _CURE)
            return
        same = reads[0][1][number] == reads[1][1][number] and len(before) == 3
        if same and _is_stored(dataset) and not hasattr(dataset, "set_epoch"):
            yield Evidence(
                f"reading a sample seeds the generator of {name}, by its index: augmentation is equal "
                "in each epoch",
                _CURE,
            )
            return


@contextmanager
def _noting_seeds(made: list[str]) -> Iterator[None]:
    """Note generators that are made with a seed."""

    def wrapped(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                made.append(name)
            return real(*args, **kwargs)

        return call

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") == "manual_seed":
            made.append("torch.Generator.manual_seed")

    before = sys.getprofile()
    with (
        mock.patch.object(
            np.random, "default_rng", wrapped("numpy.random.default_rng", np.random.default_rng)
        ),
        mock.patch.object(
            np.random, "RandomState", wrapped("numpy.random.RandomState", np.random.RandomState)
        ),
        mock.patch.object(random, "Random", wrapped("random.Random", random.Random)),
    ):
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before)


def _is_stored(dataset: Any, depth: int = 0) -> bool:
    """Whether a data set holds its samples, and does not draw them."""
    held = list(vars(dataset).values()) if hasattr(dataset, "__dict__") else []
    size = len(dataset)
    for one in held:
        if hasattr(one, "__getitem__") and hasattr(one, "__len__") and not isinstance(one, str):
            try:
                if len(one) >= size or (
                    depth < 3 and hasattr(one, "__dict__") and _is_stored(one, depth + 1)
                ):
                    return True
            except TypeError:
                continue
    code = getattr(type(dataset).__getitem__, "__closure__", None) or ()
    for cell in code:
        content = cell.cell_contents
        if hasattr(content, "__len__") and hasattr(content, "__getitem__") and not isinstance(content, str):
            try:
                if len(content) >= size:
                    return True
            except TypeError:
                continue
    return False


@probe("repeated-augmentation")
def generators_of_one_seed(subject: Subject) -> Iterator[Evidence]:
    """A stored sample is changed with a generator that begins with the same seed in each epoch."""
    dataset: Any = subject.dataset("train")
    if dataset is None or not len(dataset) or not _is_stored(dataset):
        return
    made: list[str] = []
    with seeded(31, _CPU), _noting_seeds(made):
        first = parts_of(dataset[0])
    if not made:
        return
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(7)
    with seeded(32, _CPU):
        second = parts_of(dataset[0])
    same = [torch.equal(a, b) for a, b in zip(first.values(), second.values(), strict=False)]
    if all(same):
        yield Evidence(f"reading a sample calls {made[0]}: its augmentation is equal in each epoch", _CURE)


@probe("repeated-augmentation")
def views_that_are_equal(subject: Subject) -> Iterator[Evidence]:
    """Two tensors of a batch that are drawn of one thing are equal."""
    for batch in subject.train_batches[:2]:
        known = subject.target_places
        floats = [(p, t) for p, t in tensors_in(batch) if t.dtype.is_floating_point and t.dim() > 1]
        for number, (place, one) in enumerate(floats):
            for other_place, other in floats[:number]:
                equal = one.shape == other.shape and one[0].numel() >= 3 and torch.equal(one, other)
                if equal and not {place, other_place} & known and float(one.std()) > 0:
                    yield Evidence(
                        f"the tensors {other_place!r} and {place!r} of a batch are equal: one view twice",
                        "draw each view by itself",
                    )
                    return


@probe("repeated-augmentation")
def workers_that_draw_alike(subject: Subject) -> Iterator[Evidence]:
    """``worker_init_fn`` leaves generators in one state, whatever the worker and the epoch."""
    loader: Any = subject.loaders.get("train")
    function = getattr(loader, "worker_init_fn", None)
    if function is None or not getattr(loader, "num_workers", 0):
        return
    names = getattr(function, "__globals__", {})
    imported = "get_worker_info" in names
    states = []
    dataset = copy.deepcopy(loader.dataset)
    for number in (0, 1):
        info = mock.Mock(id=number, num_workers=2, seed=100 + number, dataset=dataset)
        with (
            seeded(100 + number, _CPU),
            mock.patch.object(torch.utils.data, "get_worker_info", lambda info=info: info),
            mock.patch.dict(names, {"get_worker_info": lambda info=info: info} if imported else {}),
        ):
            before = _states()
            function(number)
            held = [
                (n, g.bit_generator.state["state"]["state"] if isinstance(g, np.random.Generator) else None)
                for n, g in vars(dataset).items()
                if isinstance(g, np.random.Generator)
            ]
            held += [
                (n, g.initial_seed()) for n, g in vars(dataset).items() if isinstance(g, torch.Generator)
            ]
            held += [
                (n, hash(g.getstate())) for n, g in vars(dataset).items() if isinstance(g, random.Random)
            ]
            states.append((before, _states(), held))
    (before, one, mine), (other_before, other, others) = states
    fixed = [n for n in range(3) if one[n] == other[n] and before[n] != other_before[n]]
    if fixed or (mine and mine == others):
        yield Evidence("worker_init_fn gives each worker and epoch the same seed", _CURE)
