"""Fine-tuning a vision model: images of folders, what is trained, and an export that transformers loads."""

import numpy as np
import pytest
import torch
from PIL import Image

from paceline import PacelineError
from paceline.recipes.finetune_vision import Config, ImageFolder, build, middle, random_part

TRAINER = {"max_steps": 3, "accelerator": "cpu", "checkpoint": False}


@pytest.fixture
def folder(tmp_path):
    """Eight images of two colours, some wider than high."""
    for split in ("train", "val"):
        for label, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(4):
                size = (40 + 8 * number, 48)
                Image.new("RGB", size, colour).save(tmp_path / split / label / f"{number}.png")
    (tmp_path / "train" / "red" / "notes.txt").write_text("no image")
    return tmp_path


def test_images_of_folders_are_normalised_and_have_the_folders_as_classes(folder):
    images = ImageFolder(folder / "train", 32, [0.5, 0.4, 0.25], [0.5, 0.2, 0.25], augment=True)
    assert images.labels == ["blue", "red"]
    assert [images[index][1] for index in range(8)] == [0] * 4 + [1] * 4
    pixels, _ = images[6]
    assert pixels.shape == (3, 32, 32)
    torch.testing.assert_close(pixels[:, 3, 5], torch.tensor([1.0, -2.0, -1.0]))


def test_the_middle_is_a_square_and_keeps_what_is_there(tmp_path):
    assert middle(40, 20) == (10, 0, 30, 20)
    (tmp_path / "a").mkdir()
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, 16:48] = np.arange(32)[None, :, None] * 8
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    found, _ = ImageFolder(tmp_path, 32, [0.0] * 3, [1.0] * 3, augment=False)[0]
    torch.testing.assert_close(found[0, 7] * 255, torch.arange(32.0) * 8)


def test_random_parts_lie_within_the_image():
    torch.manual_seed(0)
    boxes = torch.tensor([random_part(80, 60) for _ in range(500)])
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 80
    assert boxes[:, 3].max() <= 60
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 4800
    assert 0.3 < areas.min() < 0.4
    assert areas.max() > 0.9


def test_a_folder_without_images_is_reported(tmp_path):
    with pytest.raises(PacelineError, match=r"no images in .*nothing(.|\n)*CLASS/IMAGE"):
        ImageFolder(tmp_path / "nothing", 32, [0.0] * 3, [1.0] * 3, augment=False)


# -- with transformers ---------------------------------------------------------------------------


@pytest.fixture
def base(folder):
    """A model and its processor, as from_pretrained takes them."""
    transformers = pytest.importorskip("transformers")
    from paceline.recipes.data.tiny_models import tiny_vit

    torch.manual_seed(0)
    tiny_vit(["a", "b", "c"]).save_pretrained(folder / "base")
    size = {"height": 32, "width": 32}
    processor = transformers.ViTImageProcessor(size=size, image_mean=[0.4] * 3, image_std=[0.3] * 3)
    processor.save_pretrained(folder / "base")
    return folder / "base"


def test_transformers_loads_what_is_exported(folder, base):
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    experiment = build(Config(model=str(base), data=folder, trainer=TRAINER))
    run = experiment.fit()
    loaded = AutoModelForImageClassification.from_pretrained(run.folder / "exported").eval()
    assert loaded.config.id2label == {0: "blue", 1: "red"}
    images = torch.stack([experiment.val.dataset[index][0] for index in range(8)])
    with torch.no_grad():
        assert torch.equal(
            loaded(pixel_values=images).logits, experiment.module.model.eval()(pixel_values=images).logits
        )
    processor = AutoImageProcessor.from_pretrained(run.folder / "exported")
    assert list(processor.image_mean) == [0.4] * 3
    torch.testing.assert_close(images[7][:, 0, 0], torch.tensor([0.6, -0.4, -0.4]) / 0.3)


def test_the_head_alone_is_trained(folder, base):
    experiment = build(Config(model=str(base), data=folder, trained="head", trainer=TRAINER))
    before = {name: value.clone() for name, value in experiment.module.state_dict().items()}
    experiment.fit()
    changed = [
        n for n, value in experiment.module.state_dict().items() if not torch.equal(value, before[n])
    ]
    assert changed == ["model.classifier.weight", "model.classifier.bias"]


def test_digits_are_enlarged_for_a_larger_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    transformers.ViTImageProcessor().save_pretrained(tmp_path)
    experiment = build(Config(model=str(tmp_path), trainer=TRAINER))
    experiment.fit()
    assert experiment.trainer.global_step == 3


def test_other_classes_to_validate_on_are_refused(folder):
    pytest.importorskip("transformers")
    (folder / "val" / "red").rename(folder / "val" / "green")
    with pytest.raises(PacelineError, match="other classes"):
        build(Config(data=folder))
