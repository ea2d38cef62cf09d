"""What models of transformers can do, and that what they cannot is done another way."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from paceline.recipes.networks.causal_lm import Abilities, abilities_of, hidden_and_head
from paceline.recipes.networks.document_attention import starts_of
from paceline.recipes.networks.head_loss import mean_loss

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.fit  # for its length
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
HALF = {"num_key_value_heads": 2, "intermediate_size": 48}  # as many heads of keys as of queries, halved
MODELS = {
    "Llama": (HALF, Abilities(split=True, documents=math.inf)),
    "Qwen3": (HALF | {"head_dim": 8}, Abilities(split=True, documents=math.inf)),
    "Mistral": (HALF | {"sliding_window": 512}, Abilities(split=True, documents=512)),
    "GPTNeoX": ({"intermediate_size": 48}, Abilities(split=True, documents=math.inf)),
    "Granite": (HALF | {"logits_scaling": 8.0}, Abilities(documents=math.inf)),  # logits over 8
    "Gemma2": (HALF | {"head_dim": 8}, Abilities()),  # caps both
    "OPT": ({"ffn_dim": 64, "word_embed_proj_dim": 32}, Abilities(split=True)),
    "Bloom": ({}, Abilities(split=True)),
}
PLACES = torch.tensor([[*range(5), *range(8), *range(3)], [*range(16)]])
STARTS = starts_of((PLACES == 0).cumsum(1))


def made(kind, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL | MODELS[kind][0] | more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # else all tokens attend alike
    return model


def trained(model, able, starts=STARTS):
    """The loss and the gradients."""
    torch.manual_seed(0)  # OPT has dropout
    tokens = torch.arange(32).view(2, 16)
    model.zero_grad()
    hidden, head = hidden_and_head(model, able, tokens, PLACES, starts)
    loss, _ = mean_loss(hidden, head, tokens.roll(-1, 1), most=4 * 64 * 5)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def loss_of(model, able):
    tokens = torch.arange(32).view(2, 16)
    with torch.no_grad():
        return mean_loss(*hidden_and_head(model, able, tokens, PLACES, STARTS), tokens.roll(-1, 1))[0]


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_model_can_do_is_found_out(kind):
    model = made(kind)
    state = torch.get_rng_state()
    assert abilities_of(model) == MODELS[kind][1]
    assert model.training
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("kind", MODELS)
def test_documents_and_hidden_states_change_no_number(kind):
    model = made(kind)
    expected = trained(model, Abilities())  # transformers' own mask of the positions, and logits
    able = abilities_of(model)
    for found, other in zip(trained(model, able), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    if not able.documents:
        return
    apart, by_positions = trained(model, able)[0], trained(model, able, None)[0]
    torch.testing.assert_close(by_positions, apart, rtol=1e-4, atol=1e-5)
    one_document = trained(model, able, starts_of(torch.zeros_like(PLACES)))[0]
    assert (one_document - apart).abs() > 1e-4  # they do not see each other


def test_rows_longer_than_a_window_have_the_mask_of_transformers():
    model = made("Mistral", sliding_window=14)
    expected = trained(model, Abilities())
    able = abilities_of(model)
    assert able == Abilities(split=True, documents=14)
    for found, other in zip(trained(model, able), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


def test_a_base_model_that_gives_no_hidden_states_is_not_split(monkeypatch):
    model = made("Llama")
    monkeypatch.setattr(type(model), "base_model", property(lambda model: model))
    assert abilities_of(model) == Abilities(documents=math.inf)
    monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
    assert abilities_of(model) == Abilities(documents=math.inf)


def test_heads_that_flash_attention_does_not_take_keep_their_mask():
    assert abilities_of(made("Llama", hidden_size=48, head_dim=12)) == Abilities(split=True)


def test_dropout_of_attention_is_not_passed_over():
    model = made("Llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert abilities_of(model) == Abilities(split=True)


def test_the_model_stays_what_others_know(tmp_path):
    model = made("Llama").eval()
    before = copy.deepcopy(model)
    abilities_of(model)
    tokens, mask = torch.arange(1, 13).view(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with torch.no_grad():
        found, expected = (one(input_ids=tokens, attention_mask=mask).logits for one in (model, before))
        texts = [
            one.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
            for one in (model, before)
        ]
    assert found.equal(expected)
    assert texts[0].equal(texts[1])
    model.save_pretrained(tmp_path)
    assert "paceline" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


def test_adapters_are_in_the_hidden_states():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(made("Llama"), peft.LoraConfig(task_type="CAUSAL_LM", r=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    able = abilities_of(model)
    assert able == Abilities(split=True, documents=math.inf)
    for found, expected in zip(trained(model, able), trained(model, Abilities()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with model.disable_adapter():
        without = loss_of(model, able)
    assert (without - loss_of(model, able)).abs() > 1e-3
