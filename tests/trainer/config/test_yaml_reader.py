"""Config files of any content: a value, or one sentence with the file and the line."""

from __future__ import annotations

import pytest
from helpers.recipes import loaded

from paceline import PacelineError
from paceline.config import RunConfig
from paceline.trainer.config.yaml_reader import read_yaml, read_yaml_file


class Config(RunConfig):
    epochs: int = 1
    name: str = "n"
    when: str = ""
    more: dict = {}


PRESETS = {"tiny": {"epochs": 3}}


def load(tmp_path, content, *overrides):
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return loaded(Config, PRESETS, path, overrides)


def bomb(levels=9, width=9):
    """Each level is a list of the one before."""
    lines = ["a0: &a0 [" + ", ".join(["lol"] * width) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merges(levels=9, width=9):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


WRONG = {
    "bomb": (bomb(), 5, "more than 10000 values"),
    "merges": (merges(), 5, "more than 10000 values"),
    "itself": ("epochs: 1\nmore: &a [*a]", 2, "a part of itself"),
    "itself in a mapping": ("epochs: 1\nmore: &a {x: {y: *a}}", 2, "a part of itself"),
    "deep": ("more: " + "[" * 200 + "]" * 200, 1, "nested more than 50 levels deep"),
    "deeper": ("more: " + "[" * 100_000, 1, "nested more than 50 levels deep"),
    "latin-1": ("epochs: 1\nname: Größe".encode("latin-1"), 2, "not written in UTF-8"),
    "utf-16": ("epochs: 1".encode("utf-16"), 1, "not written in UTF-8"),
    "control character": ("epochs: 1\nname: \x00", 2, "special characters are not allowed"),
    "integer key": ("epochs: 1\n3: 4", 2, "a key is a name"),
    "no key": ("epochs: 1\n~: 4", 2, "a key is a name"),
    "list key": ("epochs: 1\n? [a]\n: 4", 2, "a key is a name"),
    "integer key of the trainer": ("epochs: 1\ntrainer:\n  3: 4", 3, "a key is a name"),
    "twice": ("epochs: 1\nname: x\nepochs: 2", 3, "given twice: in line 1 too"),
    "twice in a line": ("more: {a: 1, a: 2}", 1, "given twice"),
    "list for a preset": ("epochs: 1\npreset: [tiny]", 2, "preset is a name"),
    "number for a preset": ("preset: 3", 1, "no such preset"),
    "list for a name": ("epochs: 1\nname: [a, b]", 2, "name"),
    "list for the trainer": ("epochs: 1\ntrainer: [a]", 2, "trainer"),
    "no mapping": ("[1, 2]", None, "key: value"),
    "nothing": ("", None, "key: value"),
    "open bracket": ("epochs: 1\nmore: {x: [1", 2, "no YAML"),
    "tab": ("epochs: 1\n\tname: x", 2, "no YAML"),
    "two documents": ("epochs: 1\n---\nepochs: 2", 2, "no YAML"),
    "an object": ("epochs: 1\nmore: !!python/object/apply:os.system [ls]", 2, "no YAML"),
    "a tag of other values": ("epochs: 1\nname: !!timestamp foo", 2, "no YAML"),
    "a tag of few values": ("epochs: 1\nmore: {x: !!bool foo}", 2, "no YAML"),
    "a digit that is no number": ("epochs: 1\ntrainer:\n  devices: ²", 3, "trainer.devices"),
    "unknown alias": ("epochs: 1\nname: *nobody", 2, "no YAML"),
    "long value": ("epochs: " + "x" * 100_000, 1, "epochs"),
}


@pytest.mark.fault(40)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence_with_file_and_line(case, tmp_path):
    content, line, said = WRONG[case]
    with pytest.raises(PacelineError) as raised:
        load(tmp_path, content)
    text = str(raised.value)
    assert said in text
    place = str(tmp_path / "config.yaml") + (f":{line}" if line else "")
    assert place in text
    assert len(text) < 1000
    assert len(text.splitlines()) <= 12


def test_aliases_of_a_sensible_size_are_taken(tmp_path):
    found = load(tmp_path, "more: {first: &a {x: 1, y: [2, 3]}, all: [*a, *a]}\nname: z")
    assert found.more["all"] == [{"x": 1, "y": [2, 3]}] * 2


def test_words_that_look_like_dates_and_times_stay_words():
    found = read_yaml("a: 2024-13-45\nb: 2024-01-01\nc: 1:30:00\nd: 010\ne: 0x1f\nf: 1_000", "x").content
    assert found == {
        "a": "2024-13-45", "b": "2024-01-01", "c": "1:30:00", "d": 10, "e": 31, "f": 1000
    }  # fmt: skip


def test_an_impossible_date_is_a_word_that_the_field_judges(tmp_path):
    assert load(tmp_path, "when: 2024-13-45").when == "2024-13-45"
    with pytest.raises(PacelineError, match=r"epochs \(.*config.yaml:1\): got '2024-13-45'"):
        load(tmp_path, "epochs: 2024-13-45")


@pytest.mark.parametrize("text", ["more=" + "[" * 100_000, "more={a: &a [*a]}", "preset=[tiny]"])
def test_the_command_line_is_read_as_carefully(text, tmp_path):
    with pytest.raises(PacelineError):
        load(tmp_path, "epochs: 1", text)


def test_a_file_of_more_than_a_megabyte_is_refused(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("# " + "x" * (2 << 20))
    with pytest.raises(PacelineError, match="larger than 1 MB"):
        read_yaml_file(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("-012", -12), ("+0x1F", 31), ("1_000", 1000), ("8.", 8.0), ("-.5", -0.5), ("1e3", 1000.0)],
)
def test_numbers_are_of_their_kind(text, value):
    found = read_yaml(f"key: {text}", "x").content["key"]
    assert (found, type(found)) == (value, type(value))


def test_a_key_that_is_given_twice_is_one_message():
    with pytest.raises(PacelineError) as caught:
        read_yaml("a: 1\na: 2", "x")
    assert str(caught.value).count("where: x:2") == 1
    assert "this is no YAML" not in str(caught.value)
