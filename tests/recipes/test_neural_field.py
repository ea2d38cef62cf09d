"""The neural field: which pixels it learns from, its figure, and pictures of one's own."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from paceline import PacelineError, Run
from paceline.recipes.neural_field import Config, build, datasets, pixels_of, places_of


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(9, 13, 3), dtype=np.uint8)
    path = tmp_path / "my.png"
    Image.fromarray(pixels).save(path)
    return path, pixels


def test_a_quarter_of_the_pixels_is_trained_on(photo):
    path, pixels = photo
    found = pixels_of(str(path))
    assert np.array_equal(found, pixels[:8, :12])
    train, val = datasets(found)
    assert (len(train), len(val)) == (24, 72)
    colours = torch.from_numpy(found).float() / 255
    assert torch.equal(train.tensors[1].view(4, 6, 3), colours[::2, ::2])
    assert len(torch.cat([train.tensors[0], val.tensors[0]]).unique(dim=0)) == 96


def test_pixels_are_squares_and_the_longer_side_has_length_two():
    places = places_of(4, 10)
    assert places.shape == (4, 10, 2)
    torch.testing.assert_close(places[0, 0], torch.tensor([-0.9, -0.3]))
    torch.testing.assert_close(places[3, 9], torch.tensor([0.9, 0.3]))


def test_the_figure_is_over_all_pixels_and_the_picture_is_logged(photo, tmp_path):
    trainer = {"run_dir": str(tmp_path / "runs"), "progress": False, "max_steps": 2, "validate_every": 2}
    experiment = build(Config(photo=str(photo[0]), batch_size=8, width=8, waves=4, trainer=trainer))
    run = experiment.fit()
    assert isinstance(run, Run)
    places, colours = experiment.val.dataset.tensors
    with torch.no_grad():
        error = (experiment.module(places) - colours).square().mean().item()
    assert run.metrics["val/psnr"].values[-1] == pytest.approx(-10 * math.log10(error), rel=1e-5)
    with Image.open(run.folder / "media/val/picture/step-00000002.png") as picture:
        assert picture.size == (12, 8)


def test_a_photograph_lies_as_its_camera_was_held(tmp_path):
    image = Image.new("RGB", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert pixels_of(str(tmp_path / "turned.jpg")).shape == (8, 4, 3)
    Image.new("RGB", (8, 1)).save(tmp_path / "thin.png")
    with pytest.raises(PacelineError, match="too small"):
        pixels_of(str(tmp_path / "thin.png"))


@pytest.mark.parametrize("name", ["flower.jpg", "china.jpg"])
def test_the_photographs_of_scikit_learn(name):
    assert pixels_of(name).shape == (426, 640, 3)


def test_what_is_no_picture_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("no picture")
    for photo in ("text.png", "missing.png"):
        with pytest.raises(PacelineError, match=f"photo={photo} cannot be read") as raised:
            pixels_of(photo)
        assert "flower.jpg" in str(raised.value)
