"""How samples share rows, and in which order these are read."""

from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from paceline import PacelineError
from paceline.recipes.language.data.labelled import (
    InSteps,
    LabelledRows,
    WithOthers,
    collate_labelled,
)
from paceline.recipes.language.data.pairs import EncodedPair, PairRows, collate_pairs
from paceline.recipes.language.data.rows import GroupedByLength, Rows, Streamed, collate, pack
from paceline.recipes.language.data.samples import Conversation
from paceline.recipes.language.data.templates import Encoded, Encoding
from paceline.recipes.networks.head_loss import IGNORED


def encoded(tokens, targets, weight=1.0):
    return Encoded(array("i", tokens), array("i", targets), weight)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_every_sample_is_in_one_row_that_has_room(sizes):
    rows = pack(sizes, 20)
    assert sorted(item for row in rows for item in row) == list(range(len(sizes)))
    filled = [sum(sizes[item] for item in row) for row in rows]
    assert max(filled) <= 20
    assert len([row for row in filled if row <= 10]) <= 1  # two that are half empty would be one


LONG, SHORT = encoded([5, 6, 7], [6, 7, IGNORED]), encoded([8, 9], [9, IGNORED])


def test_rows_are_filled_up_apart_from_what_they_hold():
    rows = Rows([LONG, SHORT], 6)
    assert (len(rows), rows.sizes) == (1, [5])
    batch = collate([rows[0]], 6)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0]]
    assert batch["targets"].tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    assert "weights" not in batch
    alone = Rows([LONG, SHORT])
    assert collate([alone[0], alone[1]])["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    with pytest.raises(PacelineError, match="no sample has anything to learn"):
        Rows([])


def test_each_token_has_the_weight_of_its_sample():
    batch = collate([[encoded([5, 6], [6, IGNORED], 0.5), SHORT]])
    assert batch["weights"].tolist() == [[0.5, 0.5, 1.0, 1.0]]


def test_streamed_rows_are_those_that_were_kept():
    records = [[LONG], [], [SHORT, LONG]]
    asked = []

    def encode(place):
        asked.append(place)
        return records[place]

    streamed = Streamed(encode)
    for place, rows in enumerate(records):
        streamed.take(place, rows)
    kept = [one for rows in records for one in rows]
    assert [streamed[k] for k in range(len(streamed))] == kept
    assert asked == [0, 2]
    assert Rows(streamed, 6).rows == Rows(kept, 6).rows


def test_neighbours_have_about_the_same_length_in_another_order_each_time():
    sizes = torch.arange(1000).tolist()
    torch.manual_seed(0)
    first, second = ([*GroupedByLength(sizes, 4)] for _ in range(2))
    assert sorted(first) == sizes != first
    assert first != second
    spread = [max(first[n : n + 4]) - min(first[n : n + 4]) for n in range(0, 1000, 4)]
    assert sum(spread) / len(spread) < 40  # of batches that are drawn it would be 600
    assert 999 in first[:4]


def test_pairs_are_filled_up_to_the_same_length():
    other = encoded([5, 8], [8, IGNORED])
    rows = PairRows([EncodedPair(other, LONG), EncodedPair(LONG, other, 2.0)])
    batch = collate_pairs([rows[0], rows[1]])
    assert batch["chosen"]["input_ids"].tolist() == [[5, 8, 0], [5, 6, 7]]
    assert batch["rejected"]["input_ids"].tolist() == [[5, 6, 7], [5, 8, 0]]
    assert batch["margins"].tolist() == [0.0, 2.0]
    assert "margins" not in collate_pairs([rows[0]])
    with pytest.raises(PacelineError, match="no pair"):
        PairRows([])


def test_each_prompt_has_another_answer_too():
    last = encoded([2, 1], [1, IGNORED], 0.5)
    rows = WithOthers(LabelledRows([(LONG, True), (encoded([3, 4], [4, IGNORED]), False), (last, True)]))
    batch = collate_labelled([*rows], 3)
    assert batch["others"]["input_ids"].tolist() == [[5, 1, 0], [3, 6, 7], [2, 4, 0]]
    assert batch["is_good"].tolist() == [True, False, True]
    assert batch["others"]["weights"][:, 0].tolist() == [1, 1, 0.5]
    assert rows[0, 1] == (LONG, True, rows[1][0])


@pytest.mark.parametrize("step", [2, 3, 4, 8])
def test_an_answer_is_compared_within_its_step(step):
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [*InSteps(order, step)]
    assert [one for one, _ in pairs] == order
    assert all(one != other for one, other in pairs)
    whole = [pairs[n : n + step] for n in range(0, 9 // step * step, step)]
    assert all({one for one, _ in part} == {other for _, other in part} for part in whole)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_samples_do_not_see_each_other(attention):
    pytest.importorskip("transformers")
    from paceline.recipes.data.tiny_models import tiny_conversations, tiny_llama, tiny_tokenizer

    torch.manual_seed(0)
    model = tiny_llama().double().eval()
    model.set_attn_implementation(attention)
    encoding = Encoding(tiny_tokenizer(), 150)
    samples = [row for one in tiny_conversations()[0][:7] for row in encoding.rows(Conversation(one))]
    packed = Rows(samples, 400)
    assert len(packed) < 4

    def total(rows, length=0):
        batch = collate(rows, length)
        targets = batch.pop("targets")
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits
        return F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    alone = sum(total([[one]]) for one in samples)
    torch.testing.assert_close(total(list(packed), 400), alone, rtol=1e-9, atol=0)
    torch.testing.assert_close(total([[one] for one in samples]), alone, rtol=1e-9, atol=0)
