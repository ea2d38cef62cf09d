"""Datasets of LLaMA-Factory, by their names in its ``dataset_info.json``, as sources of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....errors import nearest
from ..files import read_places
from ..reading import DEFAULT, ELSEWHERE, READ, REFUSED
from .draft import Draft, words

INFO = "dataset_info.json"
_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "system": "system",
    "tools": "tools",
    "chosen": "chosen",
    "rejected": "rejected",
    "kto_tag": "label",
}
"""Ours, by theirs."""
_TAGS = {
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call", "assistant"),
    "system_tag": ("system", "system"),
}
"""What a tag is unless it is given, and our role."""
_KNOWN_ROLES = ("human", "gpt", "observation", "function_call", "system", "user", "assistant", "tool")
_PICTURES = ("images", "videos", "audios")


def add_data(draft: Draft, file: Path, stage: str) -> None:
    """The data, and those to validate on.

    Args:
        draft: Takes the settings.
        file: The file, in whose folder ``dataset_dir`` is searched too.
        stage: Theirs.
    """
    top = draft.top
    folder, info = _info(draft, file)
    weights = _weights(draft)
    sources = _sources(draft, "dataset", folder, info, stage)
    for source, weight in zip(sources, weights, strict=False):
        source["weight"] = weight
    if sources:
        draft.set("data", sources)
    validation = _sources(draft, "eval_dataset", folder, info, stage)
    size = top.number("val_size")
    if validation:
        draft.set("validation", validation)
    elif size is not None and size >= 1:
        top.note("val_size", REFUSED, "validation is a part, such as 0.05, or files")
    else:
        draft.set("validation", size or 0)
        top.read("val_size", "validation", size or 0)
    top.note("val_size", DEFAULT, "eval_dataset says it")


def _info(draft: Draft, file: Path) -> tuple[Path, dict[str, Any] | None]:
    """The folder of the data, and the content of its ``dataset_info.json``; None: it is not here."""
    top = draft.top
    named = top.text("dataset_dir") or "data"
    if named == "ONLINE":
        top.note("dataset_dir", READ, "names on the Hugging Face hub")
        return Path(), {}
    if named.startswith("REMOTE:"):
        top.note("dataset_dir", ELSEWHERE, "download that dataset, and write its folder here")
        return Path(named.partition(":")[2]), None
    for folder in (Path(named).expanduser(), file.parent / named):
        if os.path.isfile(folder / INFO):
            content = read_places(folder / INFO).content
            if isinstance(content, dict):
                return folder, content
    return Path(named), None


def _weights(draft: Draft) -> list[float]:
    """What each source counts, where sources are mixed by weights."""
    top = draft.top
    strategy = top.text("mix_strategy") or "concat"
    if strategy == "concat":
        return []
    found = words(top, "interleave_probs") or []
    try:
        weights = [float(one) for one in found]
    except ValueError:
        top.wrong("interleave_probs", "numbers between commas")
        return []
    top.note("mix_strategy", READ, "weight of each source of data")
    top.read("interleave_probs", "weight of each source of data", weights)
    return weights


def _sources(
    draft: Draft, key: str, folder: Path, info: dict[str, Any] | None, stage: str
) -> list[dict[str, Any]]:
    """What a key with names of datasets is here."""
    top = draft.top
    found: list[dict[str, Any]] = []
    setting = "data" if key == "dataset" else "validation"
    for name in words(top, key) or []:
        if info is None:
            found.append({"path": name})
            sentence = f"{folder / INFO} is not here: write the file of {name} into {setting}"
            top.note(key, ELSEWHERE, sentence)
        elif not info:
            found.append({"path": name})
        elif not isinstance(info.get(name), dict):
            meant = nearest(name, info)
            hint = f"; did you mean {meant}?" if meant else ""
            top.problem(key, f"{name} is not in {folder / INFO}{hint}")
        else:
            source, why = source_of(info[name], folder, stage)
            if why:
                top.note(key, REFUSED, f"{name}: {why}")
            found.append(source)
    if found:
        top.note(key, READ, f"{setting}: {', '.join(str(one['path']) for one in found)}")
    return found


def source_of(entry: Mapping[str, Any], folder: Path, stage: str) -> tuple[dict[str, Any], str]:
    """An entry of ``dataset_info.json`` as a source of ours, and why it cannot be one.

    Args:
        entry: It.
        folder: Of the file.
        stage: Theirs.

    Example:
        >>> entry = {"file_name": "a.json", "columns": {"prompt": "question", "response": "answer"}}
        >>> source_of(entry, Path("data"), "sft")[0]["columns"]
        {'instruction': 'question', 'output': 'answer'}
    """
    source: dict[str, Any] = {"path": str(entry.get("hf_hub_url") or "")}
    if not source["path"]:
        if "file_name" not in entry:
            return source, "it is a script or of another hub: save it as a file of JSON lines"
        source["path"] = str(folder / str(entry["file_name"]))
    for theirs, ours in (("subset", "name"), ("split", "split"), ("num_samples", "samples")):
        if entry.get(theirs) is not None and entry[theirs] != "train":
            source[ours] = entry[theirs]
    if not all(isinstance(entry.get(key) or {}, Mapping) for key in ("columns", "tags")):
        return source, "its columns and tags are key: value lines"
    columns = entry.get("columns") or {}
    pictures = [one for one in _PICTURES if columns.get(one)]
    if pictures:
        return source, f"it has {', '.join(pictures)}: text alone is trained on"
    if entry.get("folder"):
        return source, "a folder on the hub: download it, and give its path"
    if (entry.get("formatting") or "alpaca") == "alpaca":
        _of_alpaca(source, columns, stage)
        return source, ""
    return source, _of_messages(source, entry, columns)


def _of_alpaca(source: dict[str, Any], columns: Mapping[str, Any], stage: str) -> None:
    if stage == "pt":
        source |= {"form": "text", "columns": {"text": columns.get("prompt") or "instruction"}}
        return
    found = {_COLUMNS[key]: name for key, name in columns.items() if key in _COLUMNS and name}
    found = {ours: name for ours, name in found.items() if ours != name}
    if stage in ("sft", "kto"):
        source["form"] = "alpaca"
    if found:
        source["columns"] = found


def _of_messages(source: dict[str, Any], entry: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    tags = entry.get("tags") or {}
    is_openai = entry.get("formatting") == "openai"
    role, content = tags.get("role_tag", "from"), tags.get("content_tag", "value")
    pair = (role, content)
    if not is_openai and pair not in (("from", "value"), ("role", "content")):
        return f"messages with {role} and {content}: write role and content, or from and value"
    name = columns.get("messages") or "conversations"
    source["form"] = "messages" if is_openai else "sharegpt"
    ours = "messages" if is_openai else "conversations"
    found = {_COLUMNS[key]: one for key, one in columns.items() if key in _COLUMNS and one}
    found[ours] = name
    found = {key: one for key, one in found.items() if key != one}
    if found:
        source["columns"] = found
    roles = {
        str(tags[tag]): ours
        for tag, (_, ours) in _TAGS.items()
        if tag in tags and tags[tag] not in _KNOWN_ROLES
    }
    if roles:
        source["roles"] = roles
    return ""
