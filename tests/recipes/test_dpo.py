"""DPO: its loss against the formula, and its reference."""

from __future__ import annotations

import json
import math

import pytest
import torch

from paceline.recipes.language.data.pairs import collate_pairs, shuffled_pairs
from paceline.recipes.networks.head_loss import IGNORED

# -- with transformers ---------------------------------------------------------------------------


@pytest.fixture
def build(tmp_path):
    """Builds the recipe for 40 of its pairs."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from paceline.recipes import dpo

    (tmp_path / "pairs.json").write_text(
        json.dumps(
            [
                {"chosen": pair.chosen.messages, "rejected": pair.rejected.messages}
                for pair in shuffled_pairs()[1][:40]
            ]
        )
    )

    def made(**settings):
        settings = {"data": tmp_path / "pairs.json", "validation": 0.2} | settings
        trainer = {"max_steps": 4, "limit_val_batches": 1, "accelerator": "cpu", "log_every": 1}
        lora = {"lora_rank": 4} if settings.get("method") == "lora" else {}
        config = dpo.Config(batch_size=4, trainer=trainer, **lora, **settings)
        return dpo.build(config)

    return made


def log_probability(model, row) -> torch.Tensor:
    """Of a row's answer, token by token."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0]
    found = [
        logits[place].log_softmax(0)[token] for place, token in enumerate(row.targets) if token != IGNORED
    ]
    return torch.stack(found).sum()


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("method", ["full", "lora"])
def test_dropout_of_the_model_is_off_for_both(method, build, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    from paceline.recipes.data.tiny_models import tiny_tokenizer

    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
    llama = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    for model in (
        GPT2LMHeadModel(GPT2Config(vocab_size=1024, **small)),
        LlamaForCausalLM(LlamaConfig(vocab_size=1024, attention_dropout=0.5, **llama)),
    ):
        model.save_pretrained(tmp_path / type(model).__name__)
        tiny_tokenizer().save_pretrained(tmp_path / type(model).__name__)
        folder = str(tmp_path / type(model).__name__)
        experiment = build(method=method, model=folder, learning_rate=1e-3)
        module = experiment.module.train()
        batch = collate_pairs([experiment.train.dataset[index] for index in range(3)])
        assert module.training_step(batch)["loss"].item() == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_loss_is_that_of_the_paper(method, build):
    """Equation 7; the reference is the model before it was trained."""
    experiment = build(method=method)
    module, pairs = experiment.module, [experiment.train.dataset[index] for index in range(3)]
    before = [[log_probability(module.model.eval(), row) for row in pair[:2]] for pair in pairs]
    first = module.training_step(collate_pairs(pairs))["loss"]
    assert first.item() == pytest.approx(math.log(2), abs=1e-6)
    experiment.fit()
    after = [[log_probability(module.model.eval(), row) for row in pair[:2]] for pair in pairs]
    margins = [
        0.1 * ((now[0] - then[0]) - (now[1] - then[1])) for now, then in zip(after, before, strict=True)
    ]
    found = module.training_step(collate_pairs(pairs))
    expected = torch.stack([-(1 / (1 + margin.neg().exp())).log() for margin in margins]).mean()
    torch.testing.assert_close(found["loss"], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["margin"], torch.stack(margins).mean(), rtol=1e-3, atol=1e-5)
    assert abs(found["loss"].item() - math.log(2)) > 1e-5


def test_the_model_alone_is_exported(build):
    from transformers import AutoModelForCausalLM

    experiment = build(data=None)
    run = experiment.fit()
    found = AutoModelForCausalLM.from_pretrained(run.folder / "exported").state_dict()
    trained, reference = experiment.module.model.state_dict(), experiment.module.reference.state_dict()
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], trained[name]) for name in found)
    assert not all(torch.equal(found[name], reference[name]) for name in found)
