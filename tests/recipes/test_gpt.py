"""The decoder keeps documents apart; the recipe reports bits per byte and continues texts."""

import math
import sys

import pytest
import torch

from paceline import PacelineError
from paceline.recipes.data.text import write_tokens
from paceline.recipes.gpt import GPT, Config, build
from paceline.recipes.networks.decoder import Decoder
from paceline.recipes.networks.document_attention import starts_of

SMALL = {"vocabulary": 32, "width": 32, "depth": 2, "heads": 2}


@pytest.fixture
def decoder():
    """Of random weights: a new one predicts the same for each token."""
    torch.manual_seed(0)
    model = Decoder(**SMALL).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7 + [2] * 4])


def test_what_shares_a_row_does_not_change_a_document(decoder):
    tokens = torch.randint(32, (1, 16))
    packed = decoder(tokens, starts_of(DOCUMENTS))
    for number in range(3):
        its = DOCUMENTS[0] == number
        torch.testing.assert_close(packed[:, its], decoder(tokens[:, its]), rtol=0, atol=1e-12)
    assert (packed - decoder(tokens)).abs()[:, 5:].max() > 0.01


def test_one_document_needs_no_mask(decoder):
    tokens = torch.randint(32, (2, 16))
    masked = decoder(tokens, starts_of(torch.zeros_like(tokens)))
    torch.testing.assert_close(decoder(tokens), masked, rtol=0, atol=1e-12)


def test_no_token_sees_a_later_one(decoder):
    tokens = torch.randint(1, 32, (1, 16))
    changed = tokens.clone()
    changed[0, 9] = 0
    same = torch.isclose(decoder(tokens), decoder(changed), rtol=0, atol=1e-12).all(-1)[0]
    assert same.tolist() == [True] * 9 + [False] * 7


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(PacelineError, match="width is no multiple"):
        Decoder(32, width=100, depth=1, heads=3)


def test_before_training_each_byte_needs_eight_bits():
    module = GPT(SMALL | {"vocabulary": 256}, bytes_per_token=1.0)
    targets = torch.tensor([[7, 8, -100], [9, -100, -100]])
    found = module.validation_step((targets.clamp(0), targets, starts_of(torch.zeros_like(targets))))
    assert found["bits_per_byte"].item() == pytest.approx(8)
    assert found["weight"] == 3
    longer = GPT(SMALL | {"vocabulary": 256}, bytes_per_token=4.0)
    found = longer.validation_step((targets.clamp(0), targets, starts_of(torch.zeros_like(targets))))
    assert found["bits_per_byte"].item() == pytest.approx(2)


def test_a_text_is_continued_until_its_end():
    module = GPT(SMALL, end=0)
    with torch.no_grad():
        module.model.head.weight.normal_()
        module.model.norm.weight.fill_(100.0)  # one token for sure
    found = module.generate([4, 5], 6)
    assert found[:2] == [4, 5]
    row, expected = [0, 4, 5], []
    while len(expected) < 6 and (token := int(module(torch.tensor([row]))[0, -1].argmax())):
        row.append(token)
        expected.append(token)
    assert found[2:] == expected


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_it_trains_with_each_optimizer_and_schedule(optimizer, schedule):
    model = {"width": 32, "depth": 1}
    trainer = {"log_every": 1, "limit_val_batches": 2}
    config = Config(steps=8, length=32, batch_size=4, model=model, trainer=trainer)
    run = build(config.model_copy(update={"optimizer": optimizer, "schedule": schedule})).fit()
    losses = run.metrics["train/loss"].values
    assert losses[0] == pytest.approx(math.log(256))
    assert losses[-1] < losses[0] - 0.2
    assert run.metrics["val/bits_per_byte"].values[-1] < 8


def test_a_folder_of_tokens_is_trained_on(tmp_path):
    draw = torch.Generator().manual_seed(0)
    for name in ("train", "val"):
        documents = [torch.randint(1, 500, (50,), generator=draw).tolist() for _ in range(20)]
        write_tokens(tmp_path / f"{name}.bin", documents, end=50256)
    model = {"width": 32, "depth": 1}
    config = Config(data=tmp_path, length=32, batch_size=4, steps=2, shift=False, model=model)
    experiment = build(config)
    run = experiment.fit()
    assert experiment.module.model.embedding.num_embeddings == 50304
    assert "val/loss" in run.metrics
    assert "val/bits_per_byte" not in run.metrics


def test_the_kernel_of_liger_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(
        PacelineError, match=r"gpt liger=true needs liger_kernel(.|\n)*pip install liger-kernel"
    ):
        build(Config(liger=True))
