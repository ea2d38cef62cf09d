"""What an estimate needs of a language model: its config, and no weights, tokenizer or data."""

import json
import shutil

import pytest
from helpers.pairwise import soaked

pytest.importorskip("transformers")
pytest.importorskip("peft")

from transformers import LlamaConfig, LlamaForCausalLM

from paceline import PacelineError
from paceline.__main__ import main
from paceline.config import for_shapes, shapes_alone
from paceline.recipes import dpo, kto, llm_distill, llm_finetune, reward_model
from paceline.recipes.data.tiny_models import tiny_tokenizer
from paceline.tools import estimate

CASES = [
    (llm_finetune, {}),
    (llm_finetune, {"method": "lora", "packing": False, "gradient_checkpointing": True}),
    (kto, {"method": "freeze", "train_layers": 1}),
    (reward_model, {}),
    (llm_distill, {}),
    (dpo, {"method": "lora"}),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and its config alone."""
    whole, config = (tmp_path_factory.mktemp(name) for name in ("whole", "config"))
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=1024, eos_token_id=2, **small)).save_pretrained(whole)
    tiny_tokenizer().save_pretrained(whole)
    shutil.copy(whole / "config.json", config)
    return whole, config


@pytest.mark.fit  # for its length
@pytest.mark.parametrize(("recipe", "more"), soaked(CASES, CASES[2:3]))
def test_a_config_gives_the_estimate_of_the_whole_model(recipe, more, folders):
    def built(folder):
        teacher = {"teacher": str(folder)} if recipe is llm_distill else {}
        trainer = {"accelerator": "cpu", "devices": 1, "run_dir": None}
        return recipe.build(
            recipe.Config(
                model=str(folder),
                learning_rate=1e-3,
                length=96,
                batch_size=2,
                trainer=trainer,
                **more,
                **teacher,
            )
        )

    whole, config = folders
    with for_shapes():
        assert shapes_alone()
        shapes = built(config)
    assert all(one.is_meta for name, one in shapes.module.named_parameters() if "lora_" not in name)
    real = built(whole)
    assert not any(one.is_meta for one in real.module.parameters())
    rows = [
        estimate(one.trainer, one.module, shapes.train, devices=8, memory="80GiB").rows
        for one in (shapes, real)
    ]
    assert [(row.strategy, row.bytes) for row in rows[0]] == [(row.strategy, row.bytes) for row in rows[1]]
    (batch,) = shapes.train
    rows_of = batch.get("rows", batch.get("chosen", batch))
    assert tuple(rows_of["input_ids"].shape) == (2, 96)


@pytest.mark.fit  # for its length
def test_the_command_takes_a_config_alone(folders, monkeypatch, capsys):
    settings = ["preset=lora", f"model={folders[1]}", "length=64", "trainer.strategy=fsdp"]
    words = ["estimate", "llm-finetune", *settings, "--devices", "8", "--memory", "80GiB", "--json"]
    monkeypatch.setattr("sys.argv", ["paceline", *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert json.loads(capsys.readouterr().out)["devices"] == 8


def test_quantized_layers_are_refused(folders):
    pytest.importorskip("bitsandbytes")
    config = llm_finetune.Config(
        model=str(folders[1]), method="lora", load_in_4bit=True, learning_rate=1e-3
    )
    with for_shapes(), pytest.raises(PacelineError, match="kernels of quantized layers"):
        llm_finetune.build(config)
