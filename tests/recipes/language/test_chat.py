"""``paceline chat``: answers are those of transformers, with what was said before."""

import pytest
import torch
from helpers.terminal import Terminal
from typer.testing import CliRunner

from paceline import PacelineError
from paceline.__main__ import app

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.recipes.llm_finetune import Config, build

FEW = ["--max-tokens", "12"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of adapters that has learned a little, with a system prompt in its settings."""
    folder = tmp_path_factory.mktemp("chat")
    trainer = {"max_steps": 2, "limit_val_batches": 1, "accelerator": "cpu", "run_dir": folder, "name": "n"}
    settings = {"length": 64, "method": "lora", "learning_rate": 2e-3, "export_merged": True}
    return build(Config(**settings, trainer=trainer)).fit().folder


def talk(source, text, *words):
    done = CliRunner().invoke(app, ["chat", str(source), *FEW, *words], input=text)
    assert done.exit_code == 0, done.exception
    return done.stdout.splitlines()


def expected(folder, messages):
    """What transformers says next."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    given = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        found = model.generate(given, max_new_tokens=12, do_sample=False, pad_token_id=0)
    return tokenizer.decode(found[0, given.shape[1] :], skip_special_tokens=True).strip()


def said(*texts):
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@pytest.mark.fit
def test_a_pipe_gets_an_answer_for_each_line_and_conversations_go_on(run):
    first = expected(run / "merged", said("What is a list?"))
    second = expected(run / "merged", said("What is a list?", first, "And a set?"))
    assert first != second
    text = "What is a list?\n\nAnd a set?\n/reset\nWhat is a list?\n/exit\nnever\n"
    answers = "\n".join(talk(run, text))
    assert answers.split() == f"{first} {second} {first}".split()


@pytest.mark.fit
def test_the_system_prompt_is_that_of_the_run_or_of_the_command(run):
    system = [{"role": "system", "content": "Be short."}]
    answer = expected(run / "merged", [*system, *said("Go on.")])
    assert answer != expected(run / "merged", said("Go on."))
    assert " ".join(talk(run, "Go on.\n", "--system", "Be short.")).split() == answer.split()
    with (run / "config.yaml").open("a") as file:
        file.write("config:\n  system: Be short.\n")
    assert " ".join(talk(run, "Go on.\n")).split() == answer.split()


@pytest.mark.fit
def test_an_exported_folder_is_loaded_and_another_model_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    answer = expected(run / "merged", said("Why?"))
    assert " ".join(talk(run / "merged", "Why?\n", "--system", "")).split() == answer.split()
    done = CliRunner().invoke(app, ["chat", str(run / "exported")])  # whose base is in no file
    assert isinstance(done.exception, PacelineError)
    assert "this folder cannot be loaded" in str(done.exception)
    from paceline.recipes import digits

    trainer = {
        "max_steps": 1,
        "limit_val_batches": 1,
        "accelerator": "cpu",
        "run_dir": tmp_path,
        "name": "d",
    }
    other = digits.build(digits.Config(trainer=trainer)).fit().folder
    done = CliRunner().invoke(app, ["chat", str(other)])
    assert isinstance(done.exception, PacelineError)
    assert "there is no language model that answers" in str(done.exception)


@pytest.mark.launch
def test_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(run, tmp_path):
    with Terminal(tmp_path, "chat", str(run), "--max-tokens", "1000000") as terminal:
        terminal.expect("Ctrl-C ends an answer")
        terminal.expect("> ")
        terminal.type("Hello\n")
        terminal.expect("Hello\n")
        terminal.press_until("\x03", "> ")
        terminal.type("\x04")
        assert terminal.end() == 0
