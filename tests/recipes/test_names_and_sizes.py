"""What a recipe's settings name is one thing, and the tokens of its data are the model's."""

import json

import numpy as np
import pytest

from paceline import PacelineError
from paceline.config.load import load
from paceline.recipes.data.text import read_tokens, write_tokens

NAMES = {
    "llm_finetune": "model=tiny",
    "dpo": "model=tiny",
    "classify_text": "model=tiny",
    "finetune_vision": "model=tiny",
    "gpt": "data=english",
}


@pytest.mark.parametrize("recipe", NAMES)
def test_a_name_that_is_a_folder_too_is_refused_with_both(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key, name = NAMES[recipe].split("=")
    assert load(f"paceline.recipes.{recipe}", [], [NAMES[recipe]]).problems == []
    (tmp_path / name).mkdir()
    assert load(f"paceline.recipes.{recipe}").problems == []  # nobody named it
    ((at, text),) = load(f"paceline.recipes.{recipe}", [], [NAMES[recipe]]).problems
    assert at == key
    assert f"{name} is built in, and a folder of this name is here" in text
    assert f"{key}=./{name} takes the folder" in text
    assert load(f"paceline.recipes.{recipe}", [], [f"{key}=./{name}"]).problems == []


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A language model and a classifier of fewer tokens than their tokenizer has."""
    pytest.importorskip("transformers")
    from paceline.recipes.data.tiny_models import tiny_bert, tiny_llama, tiny_tokenizer

    found = {}
    for name, model in (("llama", tiny_llama()), ("bert", tiny_bert(2))):
        found[name] = tmp_path_factory.mktemp(name)
        model.resize_token_embeddings(100)
        model.save_pretrained(found[name])
        tiny_tokenizer().save_pretrained(found[name])
    return found


@pytest.mark.fit  # for its length
@pytest.mark.parametrize(
    ("recipe", "kind"), [("llm_finetune", "llama"), ("dpo", "llama"), ("classify_text", "bert")]
)
def test_a_tokenizer_of_more_tokens_than_the_model_has_is_refused_before_training(recipe, kind, small):
    pytest.importorskip("peft")
    settings = [f"model={small[kind]}", "learning_rate=1e-3", "trainer.accelerator=cpu"]
    if recipe != "classify_text":
        settings.append("method=lora")
    loaded = load(f"paceline.recipes.{recipe}", [], settings)
    with pytest.raises(PacelineError, match="the tokenizer has more tokens than the model") as caught:
        loaded.recipe.build(loaded.checked())
    from paceline.recipes.data.tiny_models import tiny_tokenizer

    most = max(tiny_tokenizer().get_vocab().values())
    assert f"tokens up to {most} in {small[kind]}, and 100 embeddings" in str(caught.value)
    assert f"resize_token_embeddings({most + 1})" in str(caught.value)


@pytest.mark.parametrize("name", ["train", "val"])
def test_tokens_beyond_the_vocabulary_of_a_folder_are_refused(name, tmp_path):
    for one in ("train", "val"):
        write_tokens(tmp_path / f"{one}.bin", [np.array([5, 300 if one == name else 7])], end=3)
    (tmp_path / "tokens.json").write_text(json.dumps({"vocabulary": 256, "end": 3}))
    with pytest.raises(
        PacelineError, match=f"{name}.bin has tokens that tokens.json does not count"
    ) as caught:
        read_tokens(tmp_path)
    assert "token 300, and a vocabulary of 256" in str(caught.value)
    (tmp_path / "tokens.json").write_text(json.dumps({"vocabulary": 301, "end": 3}))
    assert read_tokens(tmp_path).vocabulary == 301
