"""Settings of several sources: which value counts, and where it comes from."""

import re
import sys
from pathlib import Path

import pytest

import paceline
from paceline import PacelineError
from paceline.config.sources import (
    COMMAND_LINE,
    OWN_VARIABLES,
    PREFIX,
    Settings,
    read_config_file,
    read_environment,
    read_override,
)
from paceline.trainer.config.validation import find_problems


def put(settings, *texts):
    for text in texts:
        settings.put(read_override(text), COMMAND_LINE)
    return settings


def filled(values):
    settings = Settings()
    settings.add(values, {}, "a file")
    return settings


def test_mappings_are_merged_and_all_else_is_replaced():
    settings = filled({"model": {"depth": 4, "width": 8}, "seeds": [1, 2]})
    settings.add({"model": {"depth": 6}, "seeds": [3]}, {"model.depth": "b.yaml:2"}, "b.yaml")
    assert settings.values == {"model": {"depth": 6, "width": 8}, "seeds": [3]}
    assert settings.place("model.depth") == "b.yaml:2"
    assert settings.place("model.width") == "a file"
    assert settings.place("seeds") == "b.yaml"


def test_arguments_of_one_class_are_merged_those_of_another_are_not():
    settings = filled({"optimizer": {"class": "AdamW", "lr": 1, "betas": [0, 1]}})
    settings.add({"optimizer": {"class": "AdamW", "lr": 2}}, {}, "b.yaml")
    assert settings.values["optimizer"] == {"class": "AdamW", "lr": 2, "betas": [0, 1]}
    settings.add({"optimizer": {"class": "SGD", "lr": 3}}, {}, "c.yaml")
    assert settings.values["optimizer"] == {"class": "SGD", "lr": 3}
    assert put(settings, "optimizer=Adam").values["optimizer"] == "Adam"


def test_an_argument_makes_a_mapping_of_a_class_that_is_only_named():
    settings = put(filled({"module": "my:Net"}), "module.width=3")
    assert settings.values["module"] == {"class": "my:Net", "width": 3}
    settings.add({"module": {"depth": 2}}, {}, "b.yaml")
    assert settings.values["module"] == {"class": "my:Net", "width": 3, "depth": 2}


def test_plus_adds_to_a_list():
    settings = put(filled({"tags": ["a"]}), "tags+=b", "tags+=[c, d]", "new+=x", "one=1", "one+=2")
    assert settings.values == {"tags": ["a", "b", "c", "d"], "new": ["x"], "one": [1, 2]}
    assert settings.place("tags.0") == "a file"
    assert settings.place("tags.1") == COMMAND_LINE


def test_an_item_of_a_list_has_a_number():
    settings = put(
        filled({"callbacks": [{"class": "ema"}, "swa"]}), "callbacks.0.decay=0.9", "callbacks.1=x"
    )
    assert settings.values["trainer"]["callbacks"] == [{"class": "ema", "decay": 0.9}, "x"]
    with pytest.raises(PacelineError, match="a list of 2 has no item '7'"):
        put(settings, "callbacks.7=1")


def test_callbacks_and_loggers_need_no_section():
    settings = put(filled({"callbacks": ["ema"], "trainer": {"max_epochs": 1}}), "loggers=csv")
    assert settings.values == {"trainer": {"max_epochs": 1, "callbacks": ["ema"], "loggers": "csv"}}
    with pytest.raises(PacelineError, match="the same setting"):
        filled({"callbacks": [], "trainer": {"callbacks": []}})


def test_a_replaced_value_has_no_place_of_what_it_was():
    settings = Settings()
    settings.add({"a": {"b": {"c": 1}}}, {"a.b.c": "x.yaml:3", "a.b": "x.yaml:2"}, "x.yaml")
    put(settings, "a.b=5")
    assert "a.b.c" not in settings.places
    assert settings.place("a.b") == COMMAND_LINE


def test_a_source_is_not_changed_by_what_comes_later():
    preset = {"model": {"depth": 4}, "tags": [{"x": 1}]}
    put(filled(preset), "model.depth=9", "tags.0.x=2", "tags+=3")
    assert preset == {"model": {"depth": 4}, "tags": [{"x": 1}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("no", "no"),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("", None),
        ("a: b: c", "a: b: c"),
        ("#ff00aa", "#ff00aa"),
        ("007", 7),
        ("1.", 1.0),
        (".5e2", 50.0),
    ],
)
def test_values_are_yaml(text, value):
    assert read_override(f"key={text}").value == value


@pytest.mark.parametrize("text", ["tiny", "=3", ".a=1", "a..b=1", "a b=1", "+=3", "--epochs=3 x"])
def test_what_is_no_setting_is_refused(text):
    with pytest.raises(PacelineError, match="is no setting"):
        read_override(text)


def test_a_key_inside_of_a_value_is_refused():
    with pytest.raises(PacelineError, match="epochs holds a value, not further keys"):
        put(filled({"epochs": 3}), "epochs.x=1")


def test_two_underscores_of_a_variable_are_a_dot():
    found = read_environment(
        {"PACELINE_TRAINER__MAX_EPOCHS": "2", "PACELINE_TRACEBACK": "full", "PATH": "/"}
    )
    assert [(one.key, one.value, name) for one, name in found] == [
        ("trainer.max_epochs", 2, "PACELINE_TRAINER__MAX_EPOCHS")
    ]


def test_variables_of_the_package_are_no_settings():
    """A variable that is read anywhere in the package is in the list."""
    root = Path(paceline.__file__).parent
    folders = [one.parent for one in root.glob("*/__init__.py")]
    files = [*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    name = re.compile(r"[\"'](PACELINE_[A-Z_]+)[\"']")
    read = {found for file in files for found in name.findall(file.read_text())}
    assert read - {PREFIX, "PACELINE_MODEL__DEPTH"} == OWN_VARIABLES - {"PACELINE_TEST_MARK"}


def test_the_config_of_a_run_that_a_script_started_has_the_trainers_arguments(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "name: net\ntrainer: {max_epochs: 2, callbacks: [EMA], loggers: true, profile: Profiler}\n"
        "module: {class: a:B, hparams: {}}\n"
    )
    assert read_config_file(file).content == {"trainer": {"max_epochs": 2, "loggers": True}}
    file.write_text("name: n\ntrainer: {loggers: [CSVLogger]}\nmodule: {class: a:B, hparams: {}}\n")
    assert read_config_file(file).content == {"trainer": {}}


def test_the_config_of_a_run_is_what_it_was_given(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "name: net\ntrainer: {max_epochs: 2}\nmodule: {class: a:B, hparams: {}}\n"
        "config:\n  recipe: x\n  epochs: 3\n"
    )
    found = read_config_file(file)
    assert found.content == {"recipe": "x", "epochs": 3}
    assert found.places["epochs"] == f"{file}:6"


def test_a_mapping_of_the_command_line_is_merged_too():
    settings = filled(
        {"data": {"train": "a:b", "batch_size": 4}, "callbacks": [{"class": "ema", "decay": 0}]}
    )
    put(settings, "data={batch_size: 8}", "callbacks.0={decay: 1}")
    assert settings.values["data"] == {"train": "a:b", "batch_size": 8}
    assert settings.values["trainer"]["callbacks"] == [{"class": "ema", "decay": 1}]
    assert (settings.place("data.train"), settings.place("data.batch_size")) == ("a file", COMMAND_LINE)
    put(settings, "data=null", "data={val: c:d}")
    assert settings.values["data"] == {"val": "c:d"}


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        ("my:Net", {"class": "my:Net", "width": 3}, {"class": "my:Net", "width": 3}),
        ("my:Net", {"class": "my:Other", "width": 3}, {"class": "my:Other", "width": 3}),
        ({"width": 3}, {"class": "my:Net"}, {"class": "my:Net", "width": 3}),
        ({"class": "my:Net", "width": 3}, {"class": "my:Other"}, {"class": "my:Other"}),
    ],
)
def test_a_class_keeps_its_arguments_until_another_is_named(before, more, after):
    settings = filled({"module": before})
    settings.add({"module": more}, {}, "b.yaml")
    assert settings.values["module"] == after


def test_the_place_of_a_whole_names_other_sources_of_its_parts():
    settings = Settings()
    places = {"callbacks": "a.yaml:1", "callbacks.0": "a.yaml:2", "callbacks.0.decay": "a.yaml:3"}
    settings.add({"callbacks": [{"class": "ema", "decay": 1}]}, places, "a.yaml")
    assert settings.place("trainer.callbacks.0") == "a.yaml:2"
    put(settings, "callbacks.0.decay=9")
    assert settings.place("trainer.callbacks.0") == f"a.yaml:2, {COMMAND_LINE}"


def test_what_begins_as_a_list_or_mapping_must_be_one():
    with pytest.raises(PacelineError, match="the value of key"):
        read_override("key=[1, 2")
    with pytest.raises(PacelineError, match="PACELINE_KEY"):
        read_environment({"PACELINE_KEY": "{a: 1"})


def test_a_variable_of_mixed_case_is_taken_as_it_is():
    ((found, _),) = read_environment({"PACELINE_SCHEDULER__T_max": "5"})
    assert found.key == "scheduler.T_max"


def test_a_typing_mistake_in_a_runs_config_is_refused(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("name: n\ntrainer: {}\nmodule: {class: a:B, hparams: {}}\nconfg: {epochs: 3}\n")
    with pytest.raises(PacelineError, match=r"confg(.|\n)*config\.yaml:4(.|\n)*did you mean: config\?"):
        read_config_file(file)


def calls_of(work):
    """How many functions, of Python and of C, are called."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def explain_wrong_keys(number):
    keys = {f"wrong_{n}": 1 for n in range(number)}
    settings = Settings()
    settings.add(keys, {key: f"my.yaml:{n}" for n, key in enumerate(keys)}, "my.yaml")
    assert [settings.place(key) for key in keys][-1] == f"my.yaml:{number - 1}"
    assert len(find_problems(keys).problems) == number


def test_thousands_of_wrong_keys_are_explained_in_a_time_that_grows_as_they_do():
    explain_wrong_keys(1)  # imports
    few = calls_of(lambda: explain_wrong_keys(500))
    assert calls_of(lambda: explain_wrong_keys(1500)) < 4 * few
