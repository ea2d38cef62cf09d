"""AutoAugment's policy: what each operation does to an image, and how often."""

import pytest
import torch

from paceline.recipes.data.auto_augment import OPERATIONS, POLICY, auto_augment

IMAGE = torch.randint(256, (3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def picture():
    from PIL import Image

    return Image.fromarray(IMAGE.permute(1, 2, 0).numpy())


def test_the_policy_has_25_pairs_of_known_operations():
    assert len(POLICY) == 25
    for name, probability, strength in (one for pair in POLICY for one in pair):
        assert name in OPERATIONS
        assert 0 <= probability <= 1
        assert 0 <= strength <= 9


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_changes_an_image_and_keeps_its_size(name):
    changed = OPERATIONS[name](picture(), 1.0, 1)
    assert changed.size == (32, 32)
    if name != "auto_contrast":  # noise has all values from 0 to 255
        assert changed.tobytes() != picture().tobytes()


@pytest.mark.parametrize("name", ["shear_x", "translate_y", "rotate", "brightness", "contrast"])
def test_the_direction_counts_and_no_strength_is_no_change(name):
    operation = OPERATIONS[name]
    assert operation(picture(), 0.5, 1).tobytes() != operation(picture(), 0.5, -1).tobytes()
    assert operation(picture(), 0.0, 1).tobytes() == picture().tobytes()


def test_a_translation_is_by_its_part_of_the_size():
    from PIL import Image

    dot = Image.new("RGB", (331, 331))
    dot.putpixel((200, 100), (255, 255, 255))
    moved = OPERATIONS["translate_x"](dot, 1.0, 1)
    assert moved.getpixel((50, 100)) == (255, 255, 255)


def test_solarize_and_posterize_follow_the_strength():
    from PIL import Image

    grey = Image.new("RGB", (1, 1), (200, 100, 3))
    assert OPERATIONS["solarize"](grey, 0.5, 1).getpixel((0, 0)) == (55, 100, 3)
    assert OPERATIONS["posterize"](grey, 1.0, 1).getpixel((0, 0)) == (192, 96, 0)


def test_an_image_depends_on_the_seed_alone_and_stays_as_it_is():
    before = IMAGE.clone()
    found = []
    for seed in (1, 1, 2, 3):
        torch.manual_seed(seed)
        found.append(auto_augment(IMAGE))
    assert torch.equal(found[0], found[1])
    assert not all(torch.equal(found[0], other) for other in found[2:])
    assert all((one.shape, one.dtype) == ((3, 32, 32), torch.uint8) for one in found)
    assert torch.equal(IMAGE, before)


def test_most_images_are_changed():
    torch.manual_seed(0)
    dark = IMAGE // 3 + 40
    unchanged = sum(torch.equal(auto_augment(dark), dark) for _ in range(400))
    # By the policy's probabilities 24 %: the mean over the pairs of (1 - p) (1 - q), and strengths of 0.
    assert 0.17 < unchanged / 400 < 0.31
