"""Columns in a page: short, and within their rounding."""

import numpy as np
import pytest

from paceline.tools.report.series import (
    EXACT,
    decode,
    encode_position,
    encode_values,
    reduced,
    reduced_position,
)

RANDOM = np.random.default_rng(0)
NOISY = 2.5 * np.exp(-np.arange(5000) / 900) + 0.3 + RANDOM.normal(0, 0.08, 5000)


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_codes_are_within_half_a_step_of_the_range(bits):
    step = (NOISY.max() - NOISY.min()) / (2**bits - 2)
    assert np.abs(decode(encode_values(NOISY, bits)) - NOISY).max() <= step / 2 * 1.001


def test_values_that_fit_are_32_bit_floats():
    assert np.array_equal(decode(encode_values(NOISY, EXACT)), NOISY.astype(np.float32))


def test_a_wide_range_is_rounded_relative_to_each_value():
    falling = np.exp(-np.arange(5000) / 400)  # from 1 to 4e-6
    found = encode_values(falling, 12)
    assert found["scale"] == "log"
    assert np.abs(decode(found) / falling - 1).max() < 0.002


def test_a_spike_costs_the_other_values_no_precision():
    values = np.append(NOISY - 1, 1e6)  # some are below 0, where there is no logarithm
    found = encode_values(values, 12)
    assert found["scale"] == "asinh"
    assert np.abs(decode(found)[:-1] - values[:-1]).max() < 0.03
    assert decode(found)[-1] == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize("bits", [12, EXACT])
def test_what_is_not_finite_is_nan(bits):
    values = np.array([1.0, np.nan, 2.0, np.inf, -np.inf, 3.0])
    assert decode(encode_values(values, bits)).tolist() == pytest.approx(
        [1, np.nan, 2, np.nan, np.nan, 3], nan_ok=True
    )
    assert np.isnan(decode(encode_values(np.full(3, np.nan), bits))).all()


def test_a_constant_is_itself():
    assert decode(encode_values(np.full(7, 0.03), 12)).tolist() == [0.03] * 7


def test_whole_positions_are_exact_and_a_constant_stride_costs_nothing():
    steps = np.arange(100_000) * 50.0 + 3e9
    found = encode_position(steps, 10)
    assert np.array_equal(decode(found), steps)
    assert len(found["data"]) < 1000


@pytest.mark.parametrize("bits", [10, EXACT])
def test_neighbours_stay_apart_on_an_axis_of_time(bits):
    seconds = np.cumsum(RANDOM.uniform(0.1, 0.2, 100_000))
    found = decode(encode_position(seconds, bits))
    assert np.abs(found - seconds).max() < 0.05
    assert (np.diff(found) > 0).all()


def test_positions_that_are_not_known_are_nan():
    found = decode(encode_position(np.array([1.0, np.nan, 3.5]), 16))
    assert found.tolist() == pytest.approx([1, np.nan, 3.5], nan_ok=True)


def test_a_series_is_reduced_to_the_extremes_of_its_parts():
    values = np.array([1.0, 5.0, 2.0, 0.0, 3.0, 3.5, np.nan, np.nan, np.nan])
    assert reduced(values, 3).tolist() == pytest.approx([1, 5, 0, 3.5, np.nan, np.nan], nan_ok=True)
    assert reduced(np.arange(1.0, 12), 3).tolist() == [1, 3, 4, 7, 8, 11]  # parts of 3, 4 and 4
    assert reduced(NOISY, 50).min() == NOISY.min()
    assert reduced(NOISY, 50).max() == NOISY.max()
    assert reduced_position(np.arange(9.0), 3).tolist() == [0, 1, 3, 4, 6, 7]
