"""Answers during training: logged when they are due, and training continues as without them."""

import pytest
import torch
from helpers.ranks import run_ranks

from paceline import PacelineError

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.callbacks.loggers.series import read_rows
from paceline.recipes.llm_finetune import Config, build

RUN = {"length": 64, "batch_size": 2, "epochs": 1, "method": "lora", "lora_dropout": 0.1}
FEW = {"neftune_alpha": 5.0, "export": False}


def fit(folder, name, trainer=None, **settings):
    given = {"max_steps": 4, "limit_val_batches": 1, "accelerator": "cpu", "log_every": 1}
    given |= {"run_dir": folder, "name": name, **(trainer or {})}
    experiment = build(Config(**RUN | FEW | settings, trainer=given))
    run = experiment.fit()
    rows = read_rows(run.folder / "metrics.jsonl")
    return run, experiment, [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.fit
def test_answers_are_logged_and_training_is_the_same_to_the_bit(tmp_path):
    _, plain, losses = fit(tmp_path, "plain")
    (tmp_path / "questions.txt").write_text("Why?\n\nWhat is a list?\n")
    settings = {"samples": tmp_path / "questions.txt", "samples_every": "2st", "system": "Be short."}
    run, sampled, same = fit(tmp_path, "sampled", **settings)
    assert losses == same
    state = sampled.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in plain.module.state_dict().items())
    files = sorted((run.folder / "media/train/samples").iterdir())
    assert [file.name for file in files] == ["step-00000002.txt", "step-00000004.txt"]
    text = files[0].read_text()
    assert text.startswith("**Why?**\n\n")
    assert "\n\n**What is a list?**\n\n" in text
    assert len(text) > len("**Why?**\n\n\n\n**What is a list?**\n\n") + 20
    assert text != files[1].read_text()


@pytest.mark.fit
def test_the_last_answer_is_what_the_model_says(tmp_path):
    run, experiment, _ = fit(tmp_path, "n", samples=["Why?"], samples_every=4)
    tokenizer = next(c for c in experiment.trainer.callbacks if hasattr(c, "questions")).tokenizer
    given = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.no_grad():
        found = experiment.module.model.eval().generate(
            **given, max_new_tokens=128, do_sample=False, pad_token_id=0
        )
    answer = tokenizer.decode(found[0, given["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    assert (run.folder / "media/train/samples/step-00000004.txt").read_text() == f"**Why?**\n\n{answer}"


def test_what_cannot_be_asked_is_an_error(tmp_path):
    with pytest.raises(PacelineError, match=r"samples: .*none.txt cannot be read"):
        build(Config(**RUN, samples=tmp_path / "none.txt"))
    with pytest.raises(PacelineError, match="never"):
        build(Config(**RUN, samples=["Why?"], samples_every="never"))


@pytest.mark.launch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_3"])
def test_rank_0_answers_where_it_has_the_whole_weights(strategy, tmp_path):
    words = ["length=64", "batch_size=2", "epochs=1", "export=false", 'samples=["Why?"]', "samples_every=2"]
    words += ["trainer.max_steps=2", "trainer.limit_val_batches=1", f"trainer.strategy={strategy}"]
    done = run_ranks(
        "paceline", 2, "fit", "llm-finetune", *words, folder=tmp_path, check=False, transformers=True
    )
    written = tmp_path / "runs/llm-finetune/1/media/train/samples/step-00000002.txt"
    if strategy == "ddp":
        assert done.codes == [0, 0], done.output
        assert written.read_text().startswith("**Why?**\n\n")
    else:
        assert done.codes == [1, 1]
        assert "samples: answers are generated of whole weights" in done.output
        assert not written.exists()
