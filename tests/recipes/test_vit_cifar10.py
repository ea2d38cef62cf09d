"""The recipe: the seed script's model exactly, and what it trains on."""

import pytest
import torch

from paceline import PacelineError, Run
from paceline.recipes.data import cifar10, images
from paceline.recipes.networks.vit import DropPath, VisionTransformer
from paceline.recipes.vit_cifar10 import PRESETS, Config, ViTClassifier, build


def test_default_model_is_the_seed_scripts():
    config = Config()
    with torch.device("meta"):
        model = VisionTransformer(**config.model.model_dump())
    assert sum(p.numel() for p in model.parameters()) == 85_806_346
    expected = {"image": 224, "patch": 16, "width": 768, "depth": 12, "heads": 12}
    expected |= {"mlp_ratio": 4.0, "dropout": 0.1, "drop_path": 0.1}
    assert config.model.model_dump() == expected
    assert (config.epochs, config.batch_size, config.workers) == (20, 128, 8)
    assert (config.learning_rate, config.weight_decay, config.dpi) == (1e-4, 0.01, 300)
    assert all(block.attention.qkv.bias is not None for block in model.blocks)
    assert model.blocks[-1].drop_path.rate == pytest.approx(0.1)
    assert model.blocks[0].drop_path.rate == 0


def test_small_images_are_scaled_to_the_models_size():
    module = ViTClassifier({"image": 16, "patch": 8, "width": 12, "depth": 1, "heads": 2})
    assert module(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_drop_path_keeps_the_mean():
    torch.manual_seed(0)
    drop = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    y = drop(x)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert all(len(sample.unique()) == 1 for sample in y)  # whole samples are dropped
    assert y.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(drop.eval()(x), x)


def test_crop_and_flip_move_pixels_and_invent_none():
    rows = torch.arange(32, dtype=torch.uint8).view(1, 1, 32, 1).expand(1, 3, 32, 32).numpy()
    labels = torch.zeros(1, dtype=torch.int64).numpy()
    plain = images.Images(rows, labels, [0, 0, 0], [1, 1, 1])[0][0]
    moved = images.Images(rows, labels, [0, 0, 0], [1, 1, 1], crop=4, flip=True)
    seen = {tuple(moved[0][0][0, :, 16].tolist()) for _ in range(200)}
    assert len(seen) == 9  # one for each vertical shift
    assert all(set(column) <= set(plain.flatten().tolist()) for column in seen)


def tiny(folder, **more):
    trainer = {"run_dir": str(folder), "progress": False} | more.pop("trainer", {})
    return Config(
        **(PRESETS["tiny"] | {"data": "digits", "data_dir": folder / "data", "trainer": trainer} | more)
    )


def test_auto_without_cifar10_says_that_it_takes_digits(tmp_path, monkeypatch, capsys):
    def unreachable(folder):
        raise PacelineError("CIFAR-10 is not there and could not be downloaded")

    monkeypatch.setattr(cifar10, "download", unreachable)
    run = build(tiny(tmp_path, data="auto", epochs=1, trainer={"limit_train_batches": 2})).fit()
    assert "DIGITS INSTEAD" in capsys.readouterr().out
    assert run.config["module"]["hparams"]["dataset"] == "digits"
    with pytest.raises(PacelineError, match="could not be downloaded"):
        build(tiny(tmp_path, data="cifar10", epochs=1))


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(  # .ci/run trains the whole 40 epochs, which reach 0.98
    ("epochs", "learned"),
    [
        pytest.param(5, 0.3, marks=[pytest.mark.launch, pytest.mark.soak]),  # CI runs the recipe itself
        pytest.param(18, 0.9, marks=[pytest.mark.launch, pytest.mark.soak]),
    ],
)
def test_digits_are_learned_and_the_run_folder_is_complete(epochs, learned, tmp_path):
    run = build(tiny(tmp_path, epochs=epochs, dpi=300)).fit()
    assert isinstance(run, Run)
    accuracy = run.metrics["val/accuracy"].values
    assert max(accuracy) > learned  # 0.1 is what guessing gets
    names = {p.name for p in run.folder.iterdir()}
    assert names >= {
        "config.yaml",
        "env.json",
        "log.txt",
        "metrics.jsonl",
        "tb",
        "curves.png",
        "checkpoints",
    }
    best = run.load()
    assert isinstance(best, ViTClassifier)
    (_, _), (pixels, labels) = images.digits()
    mean, std = images.channel_statistics(images.digits()[0][0])
    held_out = images.Images(pixels, labels, mean, std)
    with torch.no_grad():
        right = best.eval()(held_out.images).argmax(1) == held_out.labels
    assert right.float().mean().item() == pytest.approx(max(accuracy))
    from PIL import Image

    assert Image.open(run.folder / "curves.png").info["dpi"] == pytest.approx((300, 300), abs=1)
