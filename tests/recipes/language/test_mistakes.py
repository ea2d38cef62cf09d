"""Mistakes in data and settings of fine-tuning, as people make them: each is answered with what to change.

They were written down before their answers were known.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from typer.testing import CliRunner

from paceline import PacelineError
from paceline.__main__ import app

GOOD = {"messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]}
PAIR = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}
SINGLE = {"prompt": "1 + 1 =", "completion": " 2", "label": True}


def turns(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": role} for role in roles]}


def chats(*more: Any) -> dict[str, Any]:
    """A file with records that are right, and these."""
    return {"chats.jsonl": [GOOD, GOOD, *more]}


def words(count: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a " * count}, {"role": "assistant", "content": "b"}]}


# Each: the recipe, its settings, the files beside them (a list is JSON lines), what the answer has.
MISTAKES: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {}


def mistake(name: str, command: str, files: dict[str, Any], *expected: str) -> None:
    recipe, _, settings = command.partition(" ")
    assert name not in MISTAKES
    MISTAKES[name] = recipe, settings, files, [*expected]


SFT = "llm-finetune data=chats.jsonl"
# -- files
mistake("no file", "llm-finetune data=chat.jsonl", chats(), "no file chat.jsonl", "chats.jsonl")
mistake("an empty file", SFT, {"chats.jsonl": ""}, "chats.jsonl", "0 records")
mistake("an empty folder", "llm-finetune data=folder", {"folder/readme.rst": "x"}, "no files of records")
mistake("one record", SFT, {"chats.jsonl": [GOOD]}, "1 record", "validation=0")
mistake(
    "a broken line",
    SFT,
    {"chats.jsonl": json.dumps(GOOD) + '\n{"messages": ['},
    "chats.jsonl line 2",
    "no JSON",
)
mistake(
    "a comma after each line",
    SFT,
    {"chats.jsonl": json.dumps(GOOD) + ",\n" + json.dumps(GOOD)},
    "line 1",
    "Extra data",
)
mistake("records under a key", SFT, {"chats.jsonl": json.dumps({"data": [GOOD, GOOD]})}, "data", "list")
mistake(
    "another encoding", SFT, {"chats.jsonl": '{"text": "\xe9"}'.encode("latin-1")}, "chats.jsonl", "utf-8"
)
mistake(
    "several mistakes",
    SFT,
    chats({"a": 1}, turns("user"), turns("bot", "user")),
    "3 records",
    "line 3",
    "line 4",
    "line 5",
)
mistake(
    "a csv with other columns",
    "llm-finetune data=qa.csv",
    {"qa.csv": "question,answer\na,b\nc,d\n"},
    "question, answer",
    "columns",
)
mistake(
    "columns that are not there",
    "llm-finetune data='{path: qa.csv, columns: {instruction: q, output: a}}'",
    {"qa.csv": "question,answer\na,b\nc,d\n"},
    "question",
    "'q'",
)
mistake("validation of another name", SFT + " validation=val.jsonl", chats(), "no file val.jsonl")
# -- records
mistake("no answer", SFT, chats(turns("user")), "line 3", "no answer")
mistake("an unknown role", SFT, chats(turns("human", "bot")), "line 3", "'bot'", "roles")
mistake(
    "content that is a number",
    SFT,
    chats({"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]}),
    "line 3",
    "content",
    "3",
)
mistake(
    "messages as a string",
    SFT,
    chats({"messages": json.dumps(GOOD["messages"])}),
    "line 3",
    "list of mappings",
)
mistake(
    "pairs for llm-finetune", SFT, {"chats.jsonl": [PAIR, PAIR]}, "chosen", "pairs of answers are for dpo"
)
mistake("chats for dpo", "dpo data=chats.jsonl", chats(), "'chosen'", "chosen and rejected")
mistake(
    "labels as words",
    "kto data=kto.jsonl",
    {"kto.jsonl": [SINGLE, SINGLE | {"label": "good"}]},
    "line 2",
    "true or false",
    "good",
)
mistake(
    "no label",
    "kto data=kto.jsonl",
    {"kto.jsonl": [SINGLE, {"prompt": "a", "completion": "b"}]},
    "line 2",
    "label",
)
mistake(
    "a margin as a word",
    "reward-model data=pairs.jsonl",
    {"pairs.jsonl": [PAIR, PAIR | {"margin": "much"}]},
    "line 2",
    "margin",
    "much",
)
mistake("equal answers", "dpo data=pairs.jsonl", {"pairs.jsonl": [PAIR | {"rejected": " 2"}] * 4}, "differ")
mistake("all too long", SFT + " length=8", {"chats.jsonl": [words(40)] * 4}, "length")
mistake(
    "too long is an error",
    SFT + " length=32 too_long=error",
    chats(words(100)),
    "line 3",
    "tokens",
    "length=",
)
mistake("a negative weight", SFT, chats(GOOD | {"weight": -1}), "line 3", "weight")
mistake("tools that are no JSON", SFT, chats(GOOD | {"tools": "{"}), "line 3", "tools")
# -- settings
mistake(
    "one source has a weight",
    "llm-finetune data='[{path: chats.jsonl, weight: 2}, chats.jsonl]'",
    chats(),
    "weight",
)
mistake(
    "streaming of a list",
    "llm-finetune data=chats.json streaming=true",
    {"chats.json": json.dumps([GOOD] * 4)},
    "one list",
    "streaming=false",
)
mistake("packing and grouping", SFT + " group_by_length=true", chats(), "packing=false")
mistake("a template that is not there", SFT + " chat_template=chat.jinja", chats(), "chat.jinja", "chatml")
mistake(
    "a template with a mistake",
    SFT + " chat_template=chat.jinja",
    chats() | {"chat.jinja": "{% for m in messages %}"},
    "chat template",
)
mistake("a misspelt setting", SFT + " lora_rnak=8", chats(), "lora_rnak", "lora_rank")
mistake("their name of a setting", SFT + " num_train_epochs=3", chats(), "num_train_epochs", "epochs")
mistake("lora settings without lora", SFT + " lora_rank=8", chats(), "lora_rank", "method=lora")
mistake("no such optimizer", SFT + " optimizer=AdanW", chats(), "AdanW", "AdamW")
mistake(
    "an argument of no optimizer",
    SFT + " optimizer='{class: AdamW, beta1: 0.9}'",
    chats(),
    "beta1",
    "betas",
)
mistake("the rate twice", SFT + " optimizer='{class: AdamW, lr: 0.1}'", chats(), "learning_rate")
mistake("no such schedule", SFT + " scheduler=cosin", chats(), "cosin", "cosine")
mistake("a warm-up of a word", SFT + " warmup=long", chats(), "warmup", "long")
mistake("freezing nothing", SFT + " method=freeze", chats(), "train_layers")
mistake("more layers than there are", SFT + " method=freeze train_layers=99", chats(), "train_layers", "99")
mistake("layers that no adapter fits", SFT + " method=lora lora_targets=[q_porj]", chats(), "q_porj")
mistake("the default rate for a model", SFT + " model=folder", chats(), "learning rate")
mistake(
    "a folder without a model",
    SFT + " model=folder learning_rate=1e-4",
    chats() | {"folder/a.txt": ""},
    "folder",
    "config.json",
)
mistake("a batch of one for kto", "kto batch_size=1", {}, "batch_size", "2")
mistake("a teacher that is not there", SFT.replace("llm-finetune", "llm-distill"), chats(), "teacher")
mistake("4 bits of the tiny model", SFT + " method=lora load_in_4bit=true", chats(), "load_in_4bit")


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """What the command says."""

    def said(recipe: str, settings: str, files: dict[str, Any]) -> Any:
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            if isinstance(content, list):
                content = "\n".join(map(json.dumps, content)) + "\n"
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.chdir(tmp_path)
        quiet = ["trainer.max_steps=1", "trainer.progress=false", "trainer.accelerator=cpu"]
        return CliRunner().invoke(app, ["fit", recipe, *shlex.split(settings), *quiet]).exception

    return said


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_answered(name, answer, tmp_path):
    recipe, settings, files, expected = MISTAKES[name]
    error = answer(recipe, settings, files)
    assert isinstance(error, PacelineError), repr(error)
    missing = [one for one in expected if one not in str(error)]
    assert not missing, f"{missing} not in:\n{error}"
    assert not list(Path(tmp_path).glob("runs/*/*/checkpoints/*"))


def test_there_are_forty():
    assert len(MISTAKES) >= 40
