"""How a language model is loaded for training: attention, dropout, noise on embeddings, checkpointing."""

import math

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.recipes.language.models import add_noise, load_causal_model

TOKENS = torch.arange(24).reshape(2, 12)


def test_noise_on_embeddings_is_that_of_transformers():
    from transformers.integrations.neftune import neftune_post_forward_hook

    ours, theirs = (torch.nn.Embedding(30, 8) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    add_noise(ours, 5.0)
    theirs.neftune_noise_alpha = 5.0
    theirs.register_forward_hook(neftune_post_forward_hook)
    found = []
    for one in (ours, theirs):
        torch.manual_seed(0)
        found.append(one(TOKENS))
    assert torch.equal(*found)
    noise = (found[0] - ours.eval()(TOKENS)).abs().max().item()
    assert 0.9 < noise / (5.0 / math.sqrt(12 * 8)) <= 1.001


def test_noise_is_for_training_alone():
    torch.manual_seed(0)
    model = load_causal_model("tiny", neftune_alpha=5.0)
    first, second = model(TOKENS).logits, model(TOKENS).logits
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_activations_are_computed_again_with_the_same_gradients():
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = load_causal_model("tiny", gradient_checkpointing=again)
        assert model.is_gradient_checkpointing is again
        model(TOKENS, labels=TOKENS).loss.backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_attention_and_dropout_are_chosen():
    model = load_causal_model("tiny", attn_implementation="eager", dropout=0.25)
    assert model.config._attn_implementation == "eager"
    assert {layer.self_attn.attention_dropout for layer in model.model.layers} == {0.25}
