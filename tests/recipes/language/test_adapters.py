"""Which weights are trained: adapters of every kind, some layers, and what is named."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline import PacelineError
from paceline.recipes.data.tiny_models import tiny_llama
from paceline.recipes.language.adapters import freeze
from paceline.recipes.language.models import load_causal_model
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
