"""What an image, a histogram and a table are made of, and what is refused."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image as pillow

from paceline import PacelineError
from paceline.callbacks.loggers.media import to_histogram, to_image, to_table


def test_channels_come_first_in_tensors_and_last_in_arrays():
    tensor = torch.zeros(3, 2, 5)
    tensor[0], tensor[2, 1, 4] = 1.0, 0.5
    expected = np.zeros((2, 5, 3), np.uint8)
    expected[:, :, 0], expected[1, 4, 2] = 255, 128
    assert np.array_equal(to_image(tensor).pixels, expected)
    assert np.array_equal(to_image(expected).pixels, expected)
    assert np.array_equal(to_image(torch.from_numpy(expected).permute(2, 0, 1)).pixels, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_grey_is_three_equal_channels_and_values_are_clipped(dtype):
    found = to_image(torch.tensor([[-1.0, 0.0, 0.2, 1.0, 9.0, math.nan]], dtype=dtype)).pixels
    assert found.shape == (1, 6, 3)
    assert found[0, :, 0].tolist() == found[0, :, 2].tolist() == [0, 0, 51, 255, 255, 0]


def test_a_grid_has_each_image_in_its_place():
    images = torch.stack([torch.full((1, 2, 3), value) for value in (0.0, 0.2, 0.4)])
    found = to_image(images).pixels
    assert found.shape == (2 + 2 + 2, 3 + 2 + 3, 3)
    assert (found[:2, :3] == 0).all()
    assert (found[:2, 5:] == 51).all()
    assert (found[4:, :3] == 102).all()
    assert (found[2:4] == 255).all()
    assert (found[4:, 5:] == 255).all()


def test_the_png_has_the_same_pixels():
    image = to_image(torch.rand(4, 7, 5))
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(image.png()))), image.pixels)


def test_figures_and_pil_images():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    figure.patch.set_facecolor((1, 0, 0))
    found = to_image(figure, "a figure")
    assert found.pixels.shape == (50, 100, 3)
    assert found.pixels[0, 0].tolist() == [255, 0, 0]
    assert found.caption == "a figure"
    assert to_image(pillow.new("L", (4, 2), 7)).pixels.tolist() == [[[7, 7, 7]] * 4] * 2


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.zeros(2, 5, 5), r"Tensor of shape \(2, 5, 5\)"),
        (torch.zeros(5), r"shape \(5,\)"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), "values of int64"),
        (torch.zeros(0, 3, 2, 2), r"shape \(0, 3, 2, 2\)"),
        ("picture.png", "a str"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_image_is_refused(value, got):
    with pytest.raises(PacelineError, match=rf"this is no image(.|\n)*got: .*{got}(.|\n)*allowed"):
        to_image(value)


def test_a_histogram_counts_like_numpy_and_leaves_out_what_is_not_finite():
    values = torch.randn(4, 250, generator=torch.Generator().manual_seed(0))
    values[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    finite = values.flatten()[3:].double().numpy()
    counts, edges = np.histogram(finite, 10)
    found = to_histogram(values, bins=10)
    assert found.counts == tuple(counts)
    assert found.edges == tuple(edges)
    assert (found.total, found.sum_of_squares) == (finite.sum(), finite @ finite)
    assert found.not_finite == 3


def test_a_histogram_of_nothing_or_of_one_value():
    assert sum(to_histogram([], bins=3).counts) == 0
    assert sum(to_histogram(torch.ones(5, dtype=torch.bfloat16), bins=3).counts) == 5


@pytest.mark.parametrize(("values", "bins"), [("text", 4), ([object()], 4), ([1.0], 0), ([1.0], 1.5)])
def test_what_is_no_histogram_is_refused(values, bins):
    with pytest.raises(PacelineError, match="log_histogram"):
        to_histogram(values, bins)


def test_cells_are_plain_data():
    table = to_table(["a", "b"], [(np.float32(0.5), torch.tensor(3)), {"b": [1], "a": None}])
    assert table.rows == ((0.5, 3), (None, "[1]"))
    assert [type(cell) for cell in table.rows[0]] == [float, int]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(PacelineError, match=r"row 1(.|\n)*got: 1 cells(.|\n)*allowed: 2: a, b"):
        to_table(["a", "b"], [(1, 2), (3,)])


@pytest.mark.parametrize("values", [[1e17] * 3, [1e16, 1e16 + 2], [2.0**60] * 4, [-1e308, 1e308]])
def test_a_histogram_of_values_that_no_bins_can_part(values):
    found = to_histogram(values)
    assert sum(found.counts) == len(values)
    assert all(math.isfinite(edge) for edge in found.edges)
    assert list(found.edges) == sorted(set(found.edges))


def test_complex_values_have_no_histogram():
    for values in (torch.ones(3, dtype=torch.complex64), np.ones(3, complex), [1j]):
        with pytest.raises(PacelineError, match="log_histogram takes numbers"):
            to_histogram(values)


@pytest.mark.parametrize("mode", ["P", "L", "LA", "RGB", "RGBA", "CMYK", "1"])
def test_pil_images_of_any_mode_are_shown_as_they_look(mode):
    red = pillow.new("RGB", (2, 1), (255, 0, 0))
    found = to_image(red.convert(mode)).pixels[0, 0, :3].tolist()
    assert tuple(found) == red.convert(mode).convert("RGB").getpixel((0, 0))
