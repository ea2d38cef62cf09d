"""Distillation of language models: what validation measures, teachers of other sizes, and other tokens."""

from __future__ import annotations

import json
import math

import pytest
import torch

from paceline.errors import PacelineError


def saved(folder, tokenizer, vocabulary=1024):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def build(tmp_path):
    """Builds the recipe for a few sums, with a teacher that has this many embeddings."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from paceline.recipes import llm_distill
    from paceline.recipes.data.tiny_models import tiny_tokenizer

    sums = [{"instruction": f"{n} + {n}", "output": f"{2 * n}!"} for n in range(8)]
    (tmp_path / "sums.json").write_text(json.dumps(sums))

    def made(vocabulary=1024, tokenizer=None, **settings):
        teacher = saved(tmp_path / "teacher", tokenizer or tiny_tokenizer(), vocabulary)
        trainer = {"max_steps": 2, "accelerator": "cpu", "run_dir": tmp_path / "runs"}
        given = {"data": tmp_path / "sums.json", "length": 64, "batch_size": 2, "export": False}
        config = llm_distill.Config(teacher=str(teacher), trainer=trainer, **given | settings)
        return llm_distill.build(config)

    return made


def test_validation_is_of_the_tokens_and_not_of_the_teacher(build):
    module = build().module.eval()
    batch = next(iter(build(validation=0.5).val))
    with torch.no_grad():
        loss = module.validation_step(batch)["loss"]
    assert loss.item() == pytest.approx(math.log(1024), abs=0.2)
    assert module.training_step(batch)["loss"].item() < 0.1  # both are about uniform


def test_a_teacher_with_more_embeddings_than_tokens(build):
    """Models of one family often have different numbers of rows that no token has."""
    batch = next(iter(build().train))
    module = build(vocabulary=1088).module
    found = module.training_step(batch)["loss"]
    assert torch.isfinite(found)
    with torch.no_grad():  # rows without a token count nothing
        module.teacher.get_output_embeddings().weight[1024:] *= 100
    assert module.training_step(batch)["loss"].item() == found.item()


def test_a_teacher_with_other_tokens_is_refused(build):
    from transformers import PreTrainedTokenizerFast

    from paceline.recipes.data.tiny_models import tiny_tokenizer

    other = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    vocabulary = other["model"]["vocab"]
    one, two = list(vocabulary)[500:502]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    from tokenizers import Tokenizer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(other)), eos_token="<|endoftext|>"
    )
    with pytest.raises(PacelineError, match="teacher: its tokens are not those of the model") as raised:
        build(tokenizer=tokenizer)
    assert repr(one) in str(raised.value) or repr(two) in str(raised.value)


@pytest.mark.fit
def test_it_trains_and_validates(build):
    experiment = build(validation=0.25)
    experiment.fit()
    assert {"train/loss", "val/loss"} <= set(experiment.trainer.metrics)
