"""Plain data comes back from JSON as it was."""

import json
import math
from argparse import Namespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline import PacelineError
from paceline.trainer.checkpoint.files.json_codec import decode, encode, is_plain

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
nested = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(nested)
def test_round_trip(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert repr(back) == repr(value)  # types too: 1 is not True, a tuple is not a list


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors(dtype, shape):
    value = torch.randint(2, shape).to(dtype)
    back = decode(json.loads(json.dumps(encode(value))))
    assert back.dtype == dtype
    assert torch.equal(back, value)


def test_a_namespace_of_a_parser():
    value = Namespace(lr=0.1, layers=(1, 2), inner=Namespace(name="x"))
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert isinstance(back.inner, Namespace)


def test_arrays_and_special_floats():
    array = np.arange(6, dtype=np.uint32).reshape(2, 3)
    assert np.array_equal(decode(json.loads(json.dumps(encode(array)))), array)
    assert decode(json.loads(json.dumps(encode(-math.inf)))) == -math.inf
    assert math.isnan(decode(json.loads(json.dumps(encode(math.nan)))))


def test_what_is_no_plain_data_is_refused_with_its_place():
    with pytest.raises(PacelineError, match=r"state\.callbacks\[1\]\.fn(.|\n)*function"):
        encode({"callbacks": [1, {"fn": test_round_trip}]})
    assert not is_plain(object())
