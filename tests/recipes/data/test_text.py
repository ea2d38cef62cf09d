"""Rows of packed documents: from arrays, from files, and from the text that Python carries."""

import json
import pickle
import re

import numpy as np
import pytest
import torch

from paceline import PacelineError
from paceline.recipes.data.text import GPT2, IGNORED, PackedText, english, read_tokens, write_tokens

TEXT = np.array([0, 7, 8, 9, 0, 5, 0, 6, 4, 3, 0], np.uint8)


def test_rows_follow_each_other_and_the_last_is_filled_up():
    rows = PackedText(TEXT, 4, end=0)
    assert len(rows) == 3
    tokens, targets, documents = zip(*(rows[index] for index in range(3)), strict=True)
    assert [row.tolist() for row in tokens] == [[0, 7, 8, 9], [0, 5, 0, 6], [4, 3, 0, 0]]
    assert [row.tolist() for row in targets] == [[7, 8, 9, 0], [5, 0, 6, 4], [3, 0, IGNORED, IGNORED]]
    assert [row.tolist() for row in documents] == [[1, 1, 1, 1], [1, 1, 2, 2], [0, 0, 3, 3]]


def test_every_token_but_the_first_is_a_target_once():
    rows = PackedText(TEXT, 4, end=0)
    targets = torch.cat([rows[i][1] for i in range(len(rows))])
    assert targets[targets != IGNORED].tolist() == TEXT[1:].tolist()


def test_shifted_rows_lie_within_the_text_and_reach_its_end():
    rows = PackedText(TEXT, 4, end=0, shift=True)
    assert len(rows) == 2
    torch.manual_seed(0)
    found = {tuple(rows[index][1].tolist()) for index in range(2) for _ in range(60)}
    possible = [tuple(TEXT[begin + 1 : begin + 5].tolist()) for begin in range(7)]
    assert found == set(possible)


def test_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(PacelineError, match="shorter than one row"):
        PackedText(TEXT, 11, end=0)
    assert len(PackedText(TEXT, 10, end=0)) == 1


def test_a_file_gives_the_rows_of_the_array_and_is_not_copied_to_workers(tmp_path):
    tokens = np.random.default_rng(0).integers(1, 50000, 100_000)
    file = tmp_path / "train.bin"
    assert write_tokens(file, [tokens[:70_000], tokens[70_000:]], end=0) == 100_003
    whole = np.concatenate([[0], tokens[:70_000], [0], tokens[70_000:], [0]])
    from_file, from_array = PackedText(file, 64, end=0), PackedText(whole.astype(np.uint16), 64, end=0)
    assert len(from_file) == len(from_array) == 1563
    for index in (0, 1093, 1562):
        for one, other in zip(from_file[index], from_array[index], strict=True):
            assert torch.equal(one, other)
    assert len(pickle.dumps(from_file)) < 1000


def test_tokens_that_do_not_fit_are_refused(tmp_path):
    for wrong in (70_000, -1):
        with pytest.raises(PacelineError, match="does not fit into uint16"):
            write_tokens(tmp_path / "train.bin", [np.array([wrong, 5])], end=0)


def test_a_folder_of_tokens_says_what_it_holds(tmp_path):
    for name in ("train", "val"):
        write_tokens(tmp_path / f"{name}.bin", [[5, 6, 7]], end=3)
    nameless = read_tokens(tmp_path)
    assert (nameless.vocabulary, nameless.end) == (GPT2["vocabulary"], GPT2["end"])
    assert nameless.bytes_per_token is None
    about = {"vocabulary": 8, "end": 3, "val_bytes": 20}
    (tmp_path / "tokens.json").write_text(json.dumps(about))
    found = read_tokens(tmp_path)
    assert (found.vocabulary, found.end, found.bytes_per_token) == (8, 3, 4.0)
    (tmp_path / "val.bin").unlink()
    with pytest.raises(PacelineError, match=r"val\.bin does not exist"):
        read_tokens(tmp_path)


def test_the_english_is_split_at_a_document_and_nothing_is_lost():
    from pydoc_data.topics import topics

    corpus = english()
    parts = [bytes(part).strip(b"\0").split(b"\0") for part in (corpus.train, corpus.val)]
    assert [text.encode() for text in topics.values()] == parts[0] + parts[1]
    tenth = (len(corpus.train) + len(corpus.val)) / 10
    assert len(corpus.val) - len(parts[1][0]) < 1.01 * tenth < 1.3 * len(corpus.val)
    assert re.search(r"gzip -9 needs [12]\.\d{3} bits", corpus.about)
