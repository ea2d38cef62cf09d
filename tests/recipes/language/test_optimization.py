"""The optimizer of a language model: its arguments, rates by part, weight decay, and the schedule."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline import PacelineError
from paceline.recipes.language.settings import LanguageModelConfig
from paceline.recipes.llm_finetune import Config, FineTune
from paceline.schedules import Cosine, InverseSqrt

LORA = {"method": "lora", "lora_rank": 2}


def configured(**settings):
    """The optimizer and the schedule of the tiny model, and its names by parameter."""
    config = Config(**settings)
    module = FineTune(config.model_arguments(), config.optimization())
    found = module.configure_optimizers()
    names = {parameter: name for name, parameter in module.named_parameters()}
    return found["optimizer"], found["lr_scheduler"], names


def test_by_default_it_is_adamw_as_torch_has_it():
    optimizer, schedule, names = configured()
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.999), 1e-8, 0.0)
    assert len(group["params"]) == len(names)
    assert schedule == Cosine(warmup="3%")


def test_all_arguments_of_optimizer_and_schedule_can_be_given():
    optimizer, schedule, _ = configured(
        optimizer={"class": "AdamW", "betas": [0.9, 0.95], "eps": 1e-6, "amsgrad": True},
        scheduler={"class": "inverse-sqrt", "timescale": 7, "warmup_start": 0},
        warmup=5,
    )
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["amsgrad"]) == ((0.9, 0.95), 1e-6, True)
    assert schedule == InverseSqrt(timescale=7, warmup=5, warmup_start=0)


def test_vectors_have_no_weight_decay():
    optimizer, _, names = configured(weight_decay=0.1)
    for group in optimizer.param_groups:
        assert {parameter.dim() >= 2 for parameter in group["params"]} == {group["weight_decay"] == 0.1}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_embeddings_have_their_own_rate():
    optimizer, _, names = configured(embedding_learning_rate=0.5, learning_rate=0.1)
    rates = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert [name for name, rate in rates.items() if rate == 0.5] == ["model.model.embed_tokens.weight"]
    assert set(rates.values()) == {0.5, 0.1}


def test_a_rate_of_what_is_not_trained_is_an_error():
    with pytest.raises(PacelineError, match="head, which is not trained"):  # tied to the embeddings
        configured(head_learning_rate=0.5)
    with pytest.raises(PacelineError, match="embeddings, which is not trained"):
        configured(**LORA, embedding_learning_rate=0.5)
    with pytest.raises(PacelineError, match="lora_plus_ratio: it is for method=lora"):
        Config(lora_plus_ratio=4.0).check("llm-finetune")


def test_lora_plus_gives_the_rates_of_peft():
    from peft.optimizers import create_loraplus_optimizer

    config = Config(**LORA, lora_plus_ratio=16.0, learning_rate=0.01)
    module = FineTune(config.model_arguments(), config.optimization())
    theirs = create_loraplus_optimizer(module.model, torch.optim.AdamW, lr=0.01, loraplus_lr_ratio=16.0)
    found, expected = (
        {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
        for optimizer in (module.configure_optimizers()["optimizer"], theirs)
    )
    assert found == expected
    assert set(found.values()) == {0.01, 0.16}


def test_muon_gets_the_model():
    optimizer, _, names = configured(optimizer={"class": "MuonWithAdamW", "momentum": 0.9})
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


@pytest.mark.parametrize(("name", "beside"), [("lr", "learning_rate"), ("weight_decay", "weight_decay")])
def test_the_rate_has_one_place(name, beside):
    with pytest.raises(PacelineError, match=f"{name} is a setting beside it(.|\n)*{beside}"):
        LanguageModelConfig(optimizer={"class": "AdamW", name: 0.1}).check("llm-finetune")
