"""Confusion matrices and pictures of samples against counts made one by one, on any strategy."""

import json
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_strategies
from matplotlib.image import imread
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer
from paceline.callbacks import ConfusionMatrix
from paceline.callbacks.loggers.media import to_image
from paceline.callbacks.pictures.confusion_matrix import draw

JOB = Path(__file__).with_name("classification_job.py")
STRATEGIES = ("ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3")
USUAL = ("ddp", "fsdp")
job = load_job(JOB)


def counted():
    matrix = [[0] * 3 for _ in range(3)]
    for target, predicted in zip(job.TARGETS.tolist(), job.PREDICTED.tolist(), strict=True):
        if target >= 0:
            matrix[target][predicted] += 1
    return matrix


def first_samples(count=6):
    return [[n, 4 * n, int(job.TARGETS[n]), int(job.PREDICTED[n])] for n in range(count)]


def test_each_sample_counts_once_and_ignored_ones_do_not(tmp_path):
    run, confusion, shown = job.train(tmp_path)
    assert confusion.matrix.tolist() == counted()
    assert int(confusion.matrix.sum()) == job.COUNT - 1
    assert shown.drawn == [first_samples()] * 2
    for name in ("confusion_matrix", "samples"):
        files = sorted((run.folder / "media" / "val" / name).iterdir())
        assert [file.name for file in files] == ["step-00000005.png", "step-00000010.png"]
        assert imread(files[0]).std() > 0.05


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_targets_of_small_integers_are_counted_like_others(dtype):
    confusion = ConfusionMatrix(100, "head")
    confusion.start()
    confusion.take(None, None, torch.tensor([3, 99]), torch.tensor([98, 7], dtype=dtype))
    assert confusion._counts.nonzero().flatten().tolist() == [7 * 100 + 99, 98 * 100 + 3]


def test_names_with_a_dollar_are_no_formulas():
    names = ["$5_$", "^$", "$\\x$"]
    to_image(draw(torch.ones(3, 3, dtype=torch.int64), names))
    shown = job.Shown(count=1)
    shown.names = names
    to_image(super(job.Shown, shown)._drawn([(0, torch.rand(1, 4, 4), 0, 1)]))


def test_a_wrong_sample_is_red_and_a_right_one_black(tmp_path):
    _, _, shown = job.train(tmp_path)
    image = torch.rand(1, 4, 4)
    figure = shown._drawn([(0, image, 1, 1), (1, image, 1, 2), (2, image, -100, 0)])
    titles = [(axes.get_title(), axes.title.get_color()) for axes in figure.axes if axes.get_title()]
    assert titles == [("b", "black"), ("b → c", "tab:red"), ("-100 → a", "tab:red")]


@pytest.fixture(scope="module")
def folder(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_two_ranks_find_the_same(folder, strategy):
    found = [json.loads((folder / f"{strategy}-{rank}.json").read_text()) for rank in (0, 1)]
    assert [one["matrix"] for one in found] == [counted()] * 2
    assert found[0]["drawn"] == [first_samples()] * 2
    assert found[1]["drawn"] == []


def validate(confusion, target=job.TARGETS):
    data = DataLoader(TensorDataset(job.IMAGES, job.PREDICTED, target), 4)
    Trainer(callbacks=confusion, accelerator="cpu", progress=False, run_dir=None).validate(job.Net(), data)
    return confusion


def test_validate_alone_counts_too_and_leaves_no_hook():
    confusion = ConfusionMatrix(3, "head", target=lambda batch: batch[2])
    assert validate(confusion).matrix.tolist() == counted()
    assert validate(confusion).matrix.tolist() == counted()


def test_pixels_of_segmentation_count_each():
    confusion = ConfusionMatrix(2, "head")
    confusion.start()
    logits = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 2.0, 0.0]]])
    confusion._logits = logits
    confusion.on_validation_step_end(None, None, (None, torch.tensor([[0, 1, 1]])), 0)
    assert confusion._counts.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 3, "output": "hat"}, "has no submodule 'hat'\n  allowed: head"),
        ({"classes": 4, "output": "head"}, r"do not fit\n  got: logits \(4, 3\), target \(4,\)"),
        ({"classes": 3, "output": "head", "target": 0}, r"target \(4, 1, 2, 2\) of torch.float32"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(PacelineError, match=message):
        validate(ConfusionMatrix(**{"target": 2} | arguments))
