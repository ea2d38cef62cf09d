"""Nested batches: counted, moved and described whatever they are made of."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from paceline.trainer.data.device_transfer import make_transfer
from paceline.trainer.utils.nested import (
    checksum,
    count_samples,
    describe,
    first_tensor,
    map_tensors,
)

META = torch.device("meta")  # a device every machine has
CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["left", "right"])


class Typed(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


@dataclass
class Sample:
    name: str
    image: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    doubled: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", self.image * 2)


@dataclass
class Scaled:
    """Changes itself when it is built: building it a second time would change the numbers."""

    image: torch.Tensor
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = self.image / 255
        self.steps.append("scaled")


class Graph:
    """Not a container we know, but it can move itself, as PyG's and DGL's graphs can."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graph:
        return Graph(self.nodes.to(device))


class Encoding(UserDict):
    """A mapping that has ``.to`` as well, as tokenizers give."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({k: v.to(device) for k, v in self.data.items()})


def floats(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def all_tensors(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, note)
    return found


NESTED = {
    "tensor": floats(3, 2),
    "tuple": (floats(3, 2), torch.zeros(3, dtype=torch.int64)),
    "list": [floats(3), [floats(3, 1), floats(3)]],
    "dict": {"x": floats(3, 4), "y": {"z": floats(3)}},
    "ordered": OrderedDict(b=floats(3), a=floats(3)),
    "defaultdict": defaultdict(list, x=floats(3), y=[floats(3)]),
    "namedtuple": Pair(floats(3), {"deep": floats(3)}),
    "typed": Typed(floats(3, 5), floats(3)),
    "dataclass": Sample("a", floats(3, 2), {"mask": floats(3)}),
    "frozen": Frozen(floats(3)),
    "mapping_with_to": Encoding(ids=floats(3), mask=floats(3)),
    "strings_first": ("name", None, 7, floats(3, 2)),
}


@pytest.mark.parametrize("kind", NESTED)
def test_samples_are_counted_by_the_first_tensor(kind):
    assert count_samples(NESTED[kind]) == 3


@pytest.mark.parametrize("kind", NESTED)
def test_every_tensor_is_moved_and_the_structure_stays(kind):
    batch = NESTED[kind]
    moved = make_transfer(META, None)(batch)
    assert [t.device.type for t in all_tensors(moved)] == ["meta"] * len(all_tensors(batch))
    assert [t.shape for t in all_tensors(moved)] == [t.shape for t in all_tensors(batch)]
    assert isinstance(moved, dict if kind == "defaultdict" else type(batch))
    assert all(t.device.type == "cpu" for t in all_tensors(batch))  # the user's batch is left alone


def test_the_first_tensor_is_the_first_one_written():
    first, second = floats(5), floats(2)
    assert first_tensor({"note": "no tensor", "b": first, "a": second}) is first
    assert first_tensor([[], {}, (None, second), first]) is second
    assert first_tensor(Sample("a", first, {"x": second})) is first
    assert first_tensor("none") is None


def test_without_a_first_dimension_a_batch_is_one_sample():
    assert count_samples("text") == 1
    assert count_samples([]) == 1
    assert count_samples(torch.tensor(4.0)) == 1
    assert count_samples((torch.tensor(4.0), floats(3))) == 1


def test_an_empty_batch_counts_nothing():
    assert count_samples((floats(0, 4), floats(0))) == 0


def test_what_is_no_tensor_passes_unchanged():
    marker = object()
    batch = {"name": "a", "none": None, "number": 3, "object": marker, "kind": int, "x": floats(2)}
    moved = make_transfer(META, None)(batch)
    assert {k: v for k, v in moved.items() if k != "x"} == {k: v for k, v in batch.items() if k != "x"}
    assert moved["object"] is marker
    assert list(moved) == list(batch)


def test_an_object_with_to_moves_itself():
    moved = make_transfer(META, None)((Graph(floats(4, 2)), floats(3)))
    assert type(moved[0]) is Graph
    assert moved[0].nodes.device.type == "meta"
    assert moved[1].device.type == "meta"


def test_fields_of_namedtuples_and_dataclasses_stay_where_they_were():
    left, right = floats(2), floats(3)
    pair = map_tensors(Pair(left, right), lambda t: t + 1)
    assert pair._fields == ("left", "right")
    assert torch.equal(pair.left, left + 1)
    assert torch.equal(pair.right, right + 1)
    sample = map_tensors(Sample("name", left, {"m": right}), lambda t: t + 1)
    assert sample.name == "name"
    assert torch.equal(sample.image, left + 1)
    assert torch.equal(sample.extra["m"], right + 1)
    frozen = map_tensors(Frozen(left), lambda t: t.double())
    assert frozen.image.dtype == frozen.doubled.dtype == torch.float64
    assert torch.equal(frozen.doubled, frozen.image * 2)


def test_moving_a_dataclass_does_not_build_it_again():
    scaled = Scaled(floats(2) * 255)
    moved = map_tensors(scaled, lambda t: t.clone())
    assert torch.equal(moved.image, scaled.image)
    assert moved.steps == ["scaled"]
    assert make_transfer(META, None)(scaled).image.device.type == "meta"


def test_a_type_of_input_changes_floats_and_nothing_else():
    labels, mask = torch.arange(3), torch.tensor([True, False, True])
    batch = {"x": floats(3), "y": labels, "m": mask, "d": floats(2).double()}
    moved = make_transfer(CPU, torch.bfloat16)(batch)
    assert {k: v.dtype for k, v in moved.items()} == {
        "x": torch.bfloat16,
        "y": torch.int64,
        "m": torch.bool,
        "d": torch.bfloat16,
    }
    assert torch.equal(moved["y"], labels)


def test_on_the_cpu_in_float32_there_is_nothing_to_do():
    assert make_transfer(CPU, None) is None


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ((torch.zeros(8, 3, 2, 2, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)),
         "(uint8 [8, 3, 2, 2], int64 [8])"),
        (torch.tensor(1.0), "float32 []"),
        ([floats(2), "a", 3], "[float32 [2], str, int]"),
        ({"x": floats(2, 1), "y": (floats(2),)}, "{'x': float32 [2, 1], 'y': (float32 [2])}"),
        (Pair(floats(1), None), "(float32 [1], NoneType)"),
        (Graph(floats(2)), "Graph"),
    ],
)  # fmt: skip
def test_a_batch_is_described_in_one_line(batch, text):
    assert describe(batch) == text


def test_a_big_or_deep_batch_is_described_in_short():
    assert describe(list(range(100))) == "[int, int, int, int, int, int, ...]"
    assert describe({i: i for i in range(7)}).endswith(", ...}")
    deep: Any = floats(2)
    for _ in range(50):
        deep = [deep]
    assert len(describe(deep)) < 20


class Own:
    """An object of the user's own."""

    def __init__(self, nodes):
        self.nodes, self.name = nodes, "graph"


@pytest.mark.parametrize(
    "make",
    [
        torch.tensor,
        np.array,
        lambda n: {"a": [np.array(n, dtype=np.int8)], "b": "same"},
        lambda n: Own(torch.tensor(n)),
        lambda n: Own([Own(np.array(n))]),
        lambda n: np.array([str(n), None], dtype=object),
        lambda n: torch.diag(torch.tensor(n) * 1.0).to_sparse(),
        lambda n: torch.tensor(n) * 1j,
        str,
        tuple,
    ],
)
def test_a_checksum_tells_batches_apart_and_nothing_else(make):
    assert checksum(make([1, 2])) == checksum(make([1, 2]))
    assert checksum(make([1, 2])) != checksum(make([1, 3]))


def test_a_checksum_knows_shapes_and_kinds():
    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), np.zeros((4, 1)), None]
    assert len({checksum(z) for z in zeros}) == len(zeros)
