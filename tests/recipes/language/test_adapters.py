"""Which weights are trained: adapters of every kind, some layers, and what is named."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline import PacelineError
from paceline.recipes.data.tiny_models import tiny_llama, tiny_tokenizer
from paceline.recipes.language.adapters import freeze
from paceline.recipes.language.models import load_causal_model, load_tokenizer
from paceline.recipes.llm_finetune import Config

LORA = {"method": "lora", "lora_rank": 4}
TOKENS = torch.arange(24).reshape(2, 12)


def model(**settings):
    torch.manual_seed(0)
    return load_causal_model(**Config(**settings).model_arguments())


def trained(module):
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def test_some_layers_and_what_is_named_are_trained():
    found = model(method="freeze", train_layers=1, train_modules=["*.input_layernorm.weight", "norm"])
    assert all(".layers.3." in name or "norm" in name for name in trained(found))
    assert len(trained(found)) == 9 + 3 + 1
    first = model(method="freeze", train_layers=-2)
    assert {name.split(".")[2] for name in trained(first)} == {"0", "1"}


def test_what_cannot_be_frozen_so_is_an_error():
    with pytest.raises(PacelineError, match=r"train_layers is more(.|\n)*up to 4"):
        freeze(tiny_llama(), 5, [])
    with pytest.raises(PacelineError, match="no parameter of the model matches 'lm_haed'"):
        freeze(tiny_llama(), 0, ["lm_haed"])
    with pytest.raises(PacelineError, match="trains nothing"):
        Config(method="freeze").check("llm-finetune")


@pytest.mark.parametrize(
    ("settings", "method"),
    [({"lora_rank": 4}, "lora"), ({"adapter": "folder"}, "lora"), ({"train_layers": 2}, "freeze")],
)
def test_settings_of_another_method_are_an_error(settings, method):
    with pytest.raises(PacelineError, match=f"it is for method={method}"):
        Config(**settings).check("llm-finetune")


@pytest.mark.parametrize("init", ["default", "gaussian", "olora", "orthogonal", "pissa", "pissa_niter_4"])
@pytest.mark.parametrize("kind", ["lora_dora", "lora_rslora"])
def test_adapters_of_every_kind_begin_as_the_model(init, kind):
    plain = model().eval()(TOKENS).logits
    found = model(**LORA, lora_init=init, **{kind: True}).eval()
    torch.testing.assert_close(found(TOKENS).logits, plain, rtol=1e-4, atol=1e-5)
    assert all("lora_" in name for name in trained(found))
    assert any("magnitude" in name for name in trained(found)) is (kind == "lora_dora")


def test_targets_are_names_or_an_expression_and_others_are_trained_whole():
    found = model(**LORA, lora_targets=r".*\.(0|1)\.self_attn\.q_proj", modules_to_save=["embed_tokens"])
    names = trained(found)
    assert len([name for name in names if "lora_" in name]) == 2 * 2
    assert [name for name in names if "lora_" not in name] == [
        "base_model.model.model.embed_tokens.modules_to_save.default.weight"
    ]


def test_an_adapter_is_trained_on(tmp_path):
    first = model(**LORA)
    for name, parameter in first.named_parameters():
        if "lora_" in name:
            parameter.data += 0.1
    first.save_pretrained(tmp_path)
    second = model(method="lora", adapter=str(tmp_path))
    assert torch.equal(second.eval()(TOKENS).logits, first.eval()(TOKENS).logits)
    assert trained(second) == trained(first)


def untied(folder):
    """In a folder; its embeddings have rows for 6 tokens more than its tokenizer has."""
    found = tiny_llama()
    found.config.tie_word_embeddings, found.config.vocab_size = False, 1030
    type(found)(found.config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_added_tokens_alone_are_trained_in_embeddings_and_head(tied, tmp_path):
    added = ["<think>", "</think>"] if tied else [f"<{number}>" for number in range(8)]
    base = "tiny" if tied else untied(tmp_path)
    found = model(**LORA, model=base, added_tokens=added)
    assert found.config.vocab_size == 1024 + len(added)
    rows = {n: p for n, p in found.named_parameters() if p.requires_grad and "lora_" not in n}
    assert sorted(p.shape for p in rows.values()) == [(len(added), 128)] * (1 if tied else 2)
    tokens = torch.cat([TOKENS, TOKENS[:, :1]], 1) + 1024 - 24 + len(added)
    found(input_ids=tokens, labels=tokens).loss.backward()
    assert all((p.grad.abs().sum(1) > 0).all() for p in rows.values())
    for p in rows.values():
        p.data += 1
    rows = found.merge_and_unload().get_input_embeddings().weight
    plain = model(model=base).get_input_embeddings().weight
    assert torch.equal(rows[:1024], plain[:1024])
    new = rows[len(plain) :] - 1
    torch.testing.assert_close(new, plain.mean(0).expand_as(new), rtol=0, atol=1e-4)
    torch.testing.assert_close(rows[1024 : len(plain)] - 1, plain[1024:])  # those that it had are kept


def test_added_tokens_whose_embeddings_are_frozen_are_an_error():
    settings = {"method": "freeze", "train_layers": 1, "added_tokens": ["<think>"]}
    with pytest.raises(PacelineError, match=r"would not be trained(.|\n)*train_modules"):
        model(**settings)
    assert "model.embed_tokens.weight" in trained(model(**settings, train_modules=["embed_tokens"]))


def test_the_tokenizer_gets_the_added_tokens():
    tokenizer = load_tokenizer(Config(added_tokens=["<think>"]))
    assert tokenizer.encode("a<think>b", add_special_tokens=False)[1] == 1024
    assert tiny_tokenizer().get_vocab().get("<think>") is None
