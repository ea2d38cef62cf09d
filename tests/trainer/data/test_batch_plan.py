"""The arithmetic of the data order: every sample once, evenly, from any position, for any layout."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.trainer.data.batch_plan import Layout, Piece, split

quick = settings(max_examples=150, deadline=None, database=None)
sample_counts = st.integers(0, 130)


@st.composite
def layouts(draw: st.DrawFn, drop_last: bool | None = None) -> dict:
    """Everything of a layout but the rank."""
    return {
        "micro_batch": draw(st.integers(1, 9)),
        "accumulate": draw(st.integers(1, 4)),
        "global_batch": draw(st.none() | st.integers(1, 50)),
        "world_size": draw(st.integers(1, 5)),
        "drop_last": draw(st.booleans()) if drop_last is None else drop_last,
    }


def over_ranks(layout: dict, samples: int, position: int = 0) -> list[tuple[int, list[list[Piece]]]]:
    """Step by step: its samples, and each rank's pieces."""
    ranks = [list(Layout(**layout, rank=r).epoch(samples, position)) for r in range(layout["world_size"])]
    assert len({tuple(size for size, _ in steps) for steps in ranks}) == 1
    return [(steps[0][0], [pieces for _, pieces in steps]) for steps in zip(*ranks, strict=True)]


def simulated_ranks(pieces: list[list[Piece]]) -> list[Piece]:
    """A step's pieces as the epoch's order has them: micro-batch by micro-batch, rank by rank."""
    return [piece for group in zip(*pieces, strict=True) for piece in group]


def taken(steps: list[tuple[int, list[list[Piece]]]]) -> list[int]:
    return [
        i for _, ranks in steps for p in simulated_ranks(ranks) for i in range(p.start, p.start + p.size)
    ]


@quick
@given(st.integers(0, 1000), st.integers(1, 40))
def test_split_is_even_and_complete(count, pieces):
    sizes = split(count, pieces)
    assert len(sizes) == pieces
    assert sum(sizes) == count
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@quick
@given(layouts(drop_last=False), sample_counts)
def test_each_sample_once_and_in_order(layout, samples):
    assert taken(over_ranks(layout, samples)) == list(range(samples))


@quick
@given(layouts(drop_last=True), sample_counts)
def test_drop_last_drops_the_incomplete_step_and_nothing_else(layout, samples):
    size = Layout(**layout).step_size
    steps = over_ranks(layout, samples)
    assert all(advance == size for advance, _ in steps)
    assert taken(steps) == list(range(samples - samples % size))


@quick
@given(layouts(), sample_counts)
def test_pieces_are_even_within_the_micro_batch_and_as_many_on_every_rank(layout, samples):
    for size, ranks in over_ranks(layout, samples):
        sizes = [piece.size for piece in simulated_ranks(ranks)]  # strict zip: as many on every rank
        assert sum(sizes) == size
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= layout["micro_batch"]
        # No more micro-batches than needed: more would only cost time.
        assert len(ranks[0]) == -(-size // (layout["micro_batch"] * layout["world_size"]))


@quick
@given(layouts(), sample_counts)
def test_every_step_but_the_last_is_full(layout, samples):
    one = Layout(**layout)
    sizes = [size for size, _ in over_ranks(layout, samples)]
    assert len(sizes) == one.steps(samples)
    assert all(size == one.step_size for size in sizes[:-1])
    assert all(0 < size <= one.step_size for size in sizes[-1:])


@quick
@given(layouts(), sample_counts)
def test_without_a_global_batch_full_steps_are_the_product(layout, samples):
    layout["global_batch"] = None
    one = Layout(**layout)
    assert one.step_size == layout["micro_batch"] * layout["accumulate"] * layout["world_size"]
    for size, ranks in over_ranks(layout, samples):
        if size == one.step_size:
            assert [p.size for p in ranks[0]] == [layout["micro_batch"]] * layout["accumulate"]


@quick
@given(layouts(), sample_counts, st.data())
def test_from_a_step_boundary_the_rest_is_the_same(layout, samples, data):
    whole = over_ranks(layout, samples)
    done = data.draw(st.integers(0, len(whole)))
    position = sum(size for size, _ in whole[:done])
    assert over_ranks(layout, samples, position) == whole[done:]


@quick
@given(layouts(drop_last=False), layouts(drop_last=False), sample_counts, st.data())
def test_a_position_holds_in_any_other_layout(first, second, samples, data):
    whole = over_ranks(first, samples)
    before = whole[: data.draw(st.integers(0, len(whole)))]
    position = sum(size for size, _ in before)
    assert taken(before) + taken(over_ranks(second, samples, position)) == list(range(samples))


@quick
@given(layouts(), layouts(), st.integers(1, 50), sample_counts)
def test_a_step_takes_the_same_samples_however_it_is_spread(first, second, global_batch, samples):
    for layout in (first, second):
        layout.update(global_batch=global_batch, drop_last=first["drop_last"])
    steps = [[taken([step]) for step in over_ranks(layout, samples)] for layout in (first, second)]
    assert steps[0] == steps[1]


def test_an_example_on_paper():
    # 11 samples, global batch 8 = micro-batch 2 x accumulate 2 x 2 ranks; the tail of 3 is 2 + 1.
    steps = over_ranks({"micro_batch": 2, "accumulate": 2, "world_size": 2}, 11)
    assert steps == [
        (8, [[Piece(0, 2), Piece(4, 2)], [Piece(2, 2), Piece(6, 2)]]),
        (3, [[Piece(8, 2)], [Piece(10, 1)]]),
    ]


def test_a_global_batch_that_does_not_divide_is_spread_evenly():
    (size, ranks), *_ = over_ranks({"micro_batch": 4, "global_batch": 10, "world_size": 2}, 10)
    assert size == 10
    assert [[p.size for p in pieces] for pieces in ranks] == [[3, 2], [3, 2]]


def test_nothing_is_left_at_the_end_or_after_it():
    assert list(Layout(4).epoch(10, 10)) == []
    assert list(Layout(4).epoch(0)) == []
    assert list(Layout(4, drop_last=True).epoch(10, 8)) == []


@quick
@given(layouts(), sample_counts, st.integers(0, 140))
def test_micro_batches_are_counted_without_going_through_them(layout, samples, position):
    for rank in range(layout["world_size"]):
        one = Layout(**layout, rank=rank)
        position = min(position, samples) // one.step_size * one.step_size
        counted = sum(len(pieces) for _, pieces in one.epoch(samples, position))
        assert one.micro_batches(samples, position) == counted
