"""Datasets of Axolotl's files, by their types, as sources of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..reading import DEFAULT, ELSEWHERE, NONE, READ, REFUSED
from ..section import Known, Section
from .draft import Draft, words

_QUESTION = {"instruction": "question", "output": "answer"}
_INSTRUCTIONS: dict[str, dict[str, str]] = {
    "alpaca": {},
    "alpaca_w_system": {},
    "gpteacher": {"output": "response"},
    "oasst": {"instruction": "INSTRUCTION", "output": "RESPONSE"},
    "jeopardy": _QUESTION,
    "summarizetldr": {"instruction": "article", "output": "summary"},
    "alpaca_chat": {"output": "response"},
    "alpaca_chat.load_qa": _QUESTION,
    "alpaca_chat.load_concise": {"output": "response"},
    "alpaca_chat.load_camel_ai": {"instruction": "message_1", "output": "message_2"},
    "alpaca_w_system.load_open_orca": {
        "system": "system_prompt",
        "instruction": "question",
        "output": "response",
    },
}
"""Our columns, by their type of instructions."""
_PAIRS: dict[str, dict[str, str]] = {
    "intel": {"instruction": "question"},
    "icr": {"instruction": "input"},
    "prompt_pairs": {"instruction": "prompt"},
    "argilla": {"chosen": "chosen_response", "rejected": "rejected_response"},
    "argilla_chat": {},
    "ultra": {},
}
"""Of preferences, after the name of a template."""
_LABELLED: dict[str, dict[str, str]] = {
    "argilla": {"output": "completion"},
    "intel": {"instruction": "question", "output": "completion"},
    "prompt_pairs": {"instruction": "prompt", "output": "completion"},
    "ultra": {"instruction": "prompt", "output": "completion"},
}
"""Of answers with labels."""
_TEMPLATE = "the tokenizer's own chat template writes it; else chat_template: chatml, or a file of Jinja"
_FILES = ("json", "csv", "parquet", "text", "arrow")
_ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
}
_KNOWN: Known = {
    "ds_type": (DEFAULT, "the ending of the file says it"),
    "conversation": (ELSEWHERE, _TEMPLATE),
    "chat_template": (ELSEWHERE, "chat_template is one for all data"),
    "chat_template_jinja": (ELSEWHERE, "chat_template: a file of Jinja, for all data"),
    "input_format": (ELSEWHERE, _TEMPLATE),
    "input_transform": (REFUSED, "write the transformed samples into a file of JSON lines"),
    "shards": (REFUSED, "samples: N takes the first ones"),
    "shards_idx": (REFUSED, "samples: N takes the first ones"),
    "preprocess_shards": (DEFAULT, "samples are read by one process"),
    "field_thinking": (ELSEWHERE, "thoughts are in reasoning_content or thinking of a message"),
    "template_thinking_key": (ELSEWHERE, "messages have reasoning_content or thinking as they are"),
    "split_thinking": (NONE, "thoughts in the text of an answer stay there"),
    "message_field_training_detail": (REFUSED, "weight: 0 of a message: it is not learned, as a whole"),
    "train_on_eot": (DEFAULT, "the token that ends an answer is learned"),
    "logprobs_field": (
        REFUSED,
        "the recipe llm-distill computes the teacher's distributions: teacher: FOLDER",
    ),
    "temperature": (REFUSED, "temperature of the recipe llm-distill"),
    "drop_system_message": (NONE, "system prompts are kept: remove them from the file"),
    "trust_remote_code": (NONE, "code of datasets is not run"),
    "revision": (REFUSED, "download that revision: hf download --repo-type dataset, and give its folder"),
    "skip": (REFUSED, "the first samples are read too: remove them from the file"),
    "format": (ELSEWHERE, _TEMPLATE),
    "no_input_format": (ELSEWHERE, _TEMPLATE),
    "system_format": (ELSEWHERE, _TEMPLATE),
    "system_prompt": (ELSEWHERE, "system: of all conversations that have none"),
    "step_separator": (REFUSED, "no rewards of single steps: reward-model judges whole answers"),
    "max_completion_length": (REFUSED, "no rewards of single steps: reward-model judges whole answers"),
    "train_on_last_step_only": (DEFAULT, "no rewards of single steps"),
    **dict.fromkeys(
        ("length", "sequence_length", "min_input_id", "max_input_id", "seed"),
        (REFUSED, "no synthetic data: benchmarks make their own"),
    ),
}
_READ = (
    *(
        "path",
        "type",
        "name",
        "split",
        "data_files",
        "field",
        "field_messages",
        "field_human",
        "field_model",
    ),
    *("message_field_role", "message_field_content", "message_property_mappings", "field_tools"),
    *("message_field_training", "roles_to_train", "train_on_eos", "roles", "field_chosen", "text_column"),
    "field_rejected",
)
_OF_TYPE = {
    "field_instruction": "instruction",
    "field_input": "input",
    "field_output": "output",
    "field_system": "system",
    "field_prompt": "prompt",
    "field_completion": "completion",
    "field_label": "label",
    "field_chosen": "chosen",
    "field_rejected": "rejected",
}
"""Our columns, by the keys of a type that is a mapping."""
_FORMATS = ("prompt_format", "chosen_format", "rejected_format", "completion_format")


def add_data(draft: Draft) -> None:
    """The data, and those to validate on."""
    top = draft.top
    for key, setting in (
        ("datasets", "data"),
        ("pretraining_dataset", "data"),
        ("test_datasets", "validation"),
    ):
        found: list[dict[str, Any]] = []
        for entry in _entries(top, key):
            found += _sources(draft, entry, is_text=key.startswith("pretraining"))
        if found:
            draft.set(setting, found)
            top.note(key, READ, f"{setting}: {', '.join(str(one['path']) for one in found)}")
    if top.get("pretraining_dataset") is not None and draft.has("streaming"):
        draft.set("streaming", True)
    size = top.number("val_set_size")
    if isinstance(draft.get("validation"), list):
        top.note("val_set_size", DEFAULT, "test_datasets says it")
    elif size is not None and size >= 1:
        top.note("val_set_size", REFUSED, "validation is a part, such as 0.05, or files")
    else:
        draft.set("validation", size or 0)
        top.read("val_set_size", "validation", size or 0)


def _entries(top: Section, key: str) -> list[Section]:
    value = top.get(key)
    entries = value if isinstance(value, list) else [] if value is None else [value]
    found = []
    for number, entry in enumerate(entries):
        one = {"path": entry} if isinstance(entry, str) else entry
        if not isinstance(one, Mapping):
            top.wrong(key, "a list of - path: ... lines")
            return []
        found.append(Section(top.findings, one, f"{key}.{number}" if isinstance(value, list) else key))
    return found


def _sources(draft: Draft, entry: Section, is_text: bool) -> list[dict[str, Any]]:
    """A dataset as a source, or one for each of its files."""
    more: dict[str, Any] = {}
    name = entry.text("name")
    if name is not None:
        more["name"] = name
        entry.read("name", "name", name)
    _split(entry, more)
    columns: dict[str, str] = {}
    kind = entry.get("type")
    if isinstance(kind, Mapping):
        _of_mapping(draft, entry, entry.section("type"), more, columns)
    else:
        _of_name(draft, entry, "pretrain" if is_text else str(kind or ""), more, columns)
    columns = {ours: theirs for ours, theirs in columns.items() if ours != theirs}
    more |= {"columns": columns} if columns else {}
    paths = _paths(entry)
    for key in _READ:
        entry.note(key, NONE, "data of this type have no use for it")
    entry.rest(_KNOWN, (*_READ, *_OF_TYPE))
    return [{"path": path, **more} for path in paths]


def _split(entry: Section, more: dict[str, Any]) -> None:
    split = entry.text("split")
    path = entry.text("path") or ""
    if split is not None and split != "train" and not os.path.isfile(path):
        more["split"] = split
    entry.note("split", READ if "split" in more else DEFAULT, f"split: {split}")


def _paths(entry: Section) -> list[str]:
    path = entry.text("path") or ""
    files = words(entry, "data_files")
    if not files:
        entry.read("path", "path", path)
        return [path]
    if path in _FILES or os.path.isdir(path):
        found = files if path in _FILES else [str(Path(path) / one) for one in files]
        for key in ("path", "data_files"):
            entry.read(key, "path", ", ".join(found))
        return found
    entry.note("data_files", REFUSED, "download these files of the hub, and give their paths")
    entry.note("path", READ, f"path: {path}")
    return [path]


def _of_mapping(
    draft: Draft, entry: Section, section: Section, more: dict[str, Any], columns: dict[str, str]
) -> None:
    """A type that says which fields there are."""
    for key, ours in _OF_TYPE.items():
        field = section.text(key)
        if field is not None:
            columns[ours] = field
            section.read(key, f"columns.{ours}", field)
    for key in _FORMATS:
        text = section.text(key)
        plain = text is None or text.strip("{}") == key.removesuffix("_format")
        section.note(
            key, DEFAULT if plain else REFUSED, "texts are as they are: write them so into the file"
        )
    more["form"] = "completion" if draft.recipe == "kto" else "alpaca"
    if draft.recipe in ("dpo", "reward-model"):
        del more["form"]
    section.rest(_KNOWN, (*_OF_TYPE, *_FORMATS))


def _of_name(
    draft: Draft, entry: Section, kind: str, more: dict[str, Any], columns: dict[str, str]
) -> None:
    """A type that is a name."""
    base, _, rest = kind.partition(".")
    short = kind.partition(":")[0]
    if draft.recipe in ("dpo", "reward-model", "kto") and kind:
        _of_preferences(draft, entry, base, rest, more, columns)
    elif base in ("chat_template", "sharegpt", "chat"):
        _of_messages(entry, "conversations" if base == "sharegpt" else "messages", more, columns)
        entry.note("type", READ, "form: messages")
    elif kind in ("completion", "pretrain"):
        field = entry.text("text_column") or entry.text("field") or "text"
        more["form"], columns["text"] = "text", field
        for key in ("text_column", "field"):
            entry.read(key, "columns.text", field)
        entry.note("type", READ, "form: text")
    elif short in _INSTRUCTIONS or kind in _INSTRUCTIONS:
        more["form"] = "alpaca"
        columns |= _INSTRUCTIONS.get(kind, _INSTRUCTIONS.get(short, {}))
        if draft.get("chat_template") is None and draft.top.get("chat_template") is None:
            draft.set("chat_template", "plain")  # which needs no marks of the model either
        sentence = "form: alpaca; chat_template writes the question, which has other words than Alpaca's"
        entry.note("type", READ, sentence)
    elif not kind:
        entry.note("type", DEFAULT, "the keys of a record say what it is")
    else:
        sentence = "no such type: columns, form and roles of a source say how its records are read"
        entry.note("type", REFUSED, sentence)


def _of_preferences(
    draft: Draft, entry: Section, base: str, rest: str, more: dict[str, Any], columns: dict[str, str]
) -> None:
    table = _LABELLED if draft.recipe == "kto" else _PAIRS
    if base == "bradley_terry":
        columns |= {"instruction": "input"}
    elif base == "chat_template" and rest in ("", "default"):
        columns["conversations"] = entry.text("field_messages") or "messages"
        entry.read("field_messages", "columns.conversations", columns["conversations"])
        for key, ours in (("field_chosen", "chosen"), ("field_rejected", "rejected")):
            columns[ours] = entry.text(key) or ours
            entry.read(key, f"columns.{ours}", columns[ours])
        _names_of_messages(entry)
        _roles(entry, more)
    elif base == "chat_template" and rest in ("argilla", "argilla_chat"):
        pass
    elif rest in table:
        columns |= table[rest]
        if draft.recipe == "kto":
            more["form"] = "alpaca"
    elif base != "passthrough":
        sentence = "no such type: columns and form of a source say how its records are read"
        entry.note("type", REFUSED, sentence)
    entry.note("type", READ, f"columns: {', '.join(columns) or 'their own names'}; {_TEMPLATE}")


def _of_messages(entry: Section, usual: str, more: dict[str, Any], columns: dict[str, str]) -> None:
    more["form"] = "messages"
    columns["messages"] = entry.text("field_messages") or usual
    entry.read("field_messages", "columns.messages", columns["messages"])
    for key, ours in (("field_tools", "tools"), ("field_system", "system")):
        field = entry.text(key)
        if field is not None:
            columns[ours] = field
            entry.read(key, f"columns.{ours}", field)
    _names_of_messages(entry)
    _roles(entry, more)
    learned = words(entry, "roles_to_train")
    if learned is not None and set(learned) - {"assistant", "gpt"}:
        entry.note(
            "roles_to_train", REFUSED, "answers of the assistant are learned; train_on: all learns all"
        )
    entry.note("roles_to_train", DEFAULT, "train_on: answers")
    if entry.text("train_on_eos") not in (None, "turn"):
        entry.note("train_on_eos", REFUSED, "the token that ends an answer is learned: train_on_eos: turn")
    entry.note("train_on_eos", DEFAULT, "the token that ends an answer is learned")
    field = entry.text("message_field_training")
    if field not in (None, "weight", "train", "training"):
        entry.note("message_field_training", REFUSED, "name it weight, train or training in the file")
    entry.read("message_field_training", f"{field} of messages", "as it is")


def _names_of_messages(entry: Section) -> None:
    """Names of role and content: ours are read by themselves."""
    mappings = entry.section("message_property_mappings")
    role = mappings.text("role") or entry.text("message_field_role") or "role"
    content = mappings.text("content") or entry.text("message_field_content") or "content"
    good = (role, content) in (("role", "content"), ("from", "value"))
    text = "role and content, or from and value, are read by themselves"
    for section, key in (
        (mappings, "role"),
        (mappings, "content"),
        (entry, "message_field_role"),
        (entry, "message_field_content"),
    ):
        section.note(key, READ if good else REFUSED, text if good else f"{text}: name them so in the file")
    for key in mappings.values:
        mappings.note(key, READ, "what chat templates take of a message is passed to them")


def _roles(entry: Section, more: dict[str, Any]) -> None:
    section = entry.section("roles")
    roles: dict[str, str] = {}
    for ours in section.values:
        names = words(section, ours) or []
        roles |= {one: ours for one in names if _ROLES.get(one) != ours}
        section.read(ours, "roles", ", ".join(names))
    if roles:
        more["roles"] = roles
