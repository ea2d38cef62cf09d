"""Callbacks, loggers and strategies of other packages, found by the names of their entry points."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from helpers.messages import says
from helpers.small_net import Net, data

import paceline.plugins
from paceline import PacelineError, Trainer
from paceline.__main__ import app
from paceline.config import RunConfig
from paceline.strategies import STRATEGIES, Single, make_strategy
from paceline.trainer.config.built_in import built_in

ACME = """
    from paceline.callbacks import Callback, Logger
    from paceline.strategies import Single

    made = []

    class Beep(Callback):
        def __init__(self):
            made.append("Beep")

    class Rows(Logger):
        def write(self, row): ...
        def __call__(self, count): ...

    class Alone(Single):
        name = "alone"

    class Needs(Callback):
        def __init__(self, count): ...

    class Other: ...

    one = Rows()

    def make():
        return Alone()

    def wrong():
        return Other()
"""
ENTRY_POINTS = """
    [paceline.callbacks]
    beep = acme_kit:Beep
    needs = acme_kit:Needs
    missing = acme_kit:Missing
    nowhere = acme_nowhere:Beep
    other = acme_kit:Other
    [paceline.loggers]
    rows = acme_kit:Rows
    one = acme_kit:one
    beep = acme_kit:Beep
    [paceline.strategies]
    alone = acme_kit:Alone
    made = acme_kit:make
    wrong = acme_kit:wrong
    ddp = acme_nowhere:Broken
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a distribution as pip lays it out."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(distribution: str, version: str, entry_points: str, **modules: str) -> None:
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for name, text in modules.items():
            (site / f"{name}.py").write_text(textwrap.dedent(text))
            monkeypatch.delitem(sys.modules, name, raising=False)

    yield install
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


@pytest.fixture
def acme(installed):
    installed("acme-kit", "1.2", ENTRY_POINTS, acme_kit=ACME)


def trainer(**arguments):
    return Trainer(
        **{"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None} | arguments
    )


def refused(**arguments):
    with pytest.raises(PacelineError) as caught:
        trainer(**arguments)
    assert len(str(caught.value).splitlines()) <= 12
    return caught.value


# -- what is named is loaded ----------------------------------------------------------------------


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("given", ["beep", ["beep"], ("beep",)])
def test_a_callback_by_name(given):
    found = trainer(callbacks=given)
    assert sys.modules["acme_kit"].made == ["Beep"]
    assert [type(c).__name__ for c in found.callbacks].count("Beep") == 1


@pytest.mark.usefixtures("acme")
def test_a_config_names_them_too():
    config = RunConfig(trainer={"callbacks": ["beep", "ema"], "loggers": "one", "run_dir": None})
    names = [type(one).__name__ for one in config.make_trainer().callbacks]
    assert {"Beep", "EMA", "Rows"} <= set(names)
    with pytest.raises(PacelineError, match=r"trainer.callbacks.0: .*needs"):
        RunConfig(trainer={"callbacks": ["needs"]}).make_trainer()


@pytest.mark.usefixtures("acme")
def test_names_and_objects_keep_their_order():
    from acme_kit import Beep

    mine = Beep()
    mine.name = "mine"
    found = trainer(callbacks=[mine, "beep"]).settings.callbacks
    assert found[0] is mine
    assert type(found[1]) is Beep
    assert found[1] is not mine


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("given", ["rows", ["rows"]])
def test_a_logger_by_name(given):
    found = trainer(loggers=given)
    assert [type(c).__name__ for c in found.callbacks if hasattr(c, "write")] == [
        "Rows",
        "JSONLogger",
        "TensorBoard",
    ]


@pytest.mark.usefixtures("acme")
def test_an_object_is_taken_as_it_is():
    import acme_kit

    assert acme_kit.one in trainer(loggers=["one"]).callbacks


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("name", ["alone", "made"])
def test_a_strategy_by_name_computes_and_is_recorded(name, tmp_path):
    run = trainer(strategy=name, max_steps=1, run_dir=tmp_path).fit(Net(), data())
    assert run.config["trainer"]["strategy"] == "alone"
    assert type(make_strategy(name)).__name__ == "Alone"


@pytest.mark.usefixtures("acme")
def test_a_strategy_of_one_device_is_refused_on_several():
    with pytest.raises(PacelineError, match="strategy 'alone' computes on one device"):
        make_strategy("alone", world_size=2)


def test_nothing_is_searched_before_a_name_is_given(monkeypatch):
    monkeypatch.setattr(paceline.plugins, "entry_points", lambda **_: pytest.fail("searched"))
    assert type(trainer(strategy="single", callbacks=[], loggers=True).strategy) is Single
    for name in STRATEGIES:
        make_strategy(name)


@pytest.mark.usefixtures("acme")
def test_a_built_in_strategy_cannot_be_replaced():
    assert make_strategy("ddp").__module__ == "paceline.strategies.ddp"
    assert "acme_nowhere" not in sys.modules


def test_the_built_in_names_are_those_of_the_classes():
    assert paceline.plugins.BUILT_IN_STRATEGIES == STRATEGIES
    names = {paceline.plugins.folded(n) for group in ("callbacks", "loggers") for n in built_in(group)}
    assert names == paceline.plugins.BUILT_IN_CALLBACKS


@pytest.mark.usefixtures("acme")
def test_a_replay_takes_names_too(monkeypatch):
    from paceline.tools.debug.replay import alone

    kept = alone({"callbacks": ["beep", "ema"]}, "cpu")["callbacks"]
    assert [type(c).__name__ for c in kept] == ["Beep", "EMA"]


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acme")
def test_a_name_that_is_not_installed():
    text = str(refused(callbacks=["beeep"]))
    says(text, "callbacks: no installed package has 'beeep'", "got: beeep")
    names = "beep, missing, needs, nowhere, other"
    assert f"allowed: objects of paceline.callbacks.Callback, or an installed name: {names}" in text
    says(text, "did you mean: beep?", "fix: install the package that has it", "`paceline plugins`")


def test_where_nothing_is_installed():
    text = str(refused(loggers="comet"))
    assert "loggers: no installed package has 'comet'" in text
    assert (
        "allowed: objects of paceline.callbacks.Logger; nothing is installed in the group paceline.loggers"
        in text
    )


@pytest.mark.parametrize(
    ("argument", "name", "meant"),
    [
        ("callbacks", "EarlyStoping", "EarlyStopping"),
        ("callbacks", "erly_stopping", "EarlyStopping"),
        ("loggers", "tensorbord", "TensorBoard"),
    ],
)
def test_almost_the_name_of_a_built_in_class(argument, name, meant):
    text = str(refused(**{argument: [name]}))
    assert f"fix: from paceline.callbacks import {meant}, and {argument}=[{meant}(...)]" in text


def test_a_base_class_is_no_built_in_callback():
    assert "import Logger" not in str(refused(callbacks="Logger"))


@pytest.mark.usefixtures("acme")
def test_a_strategy_that_is_not_installed():
    text = str(refused(strategy="alon"))
    assert "strategy: there is no 'alon'" in text
    assert "alone" in text.partition("allowed: ")[2].partition("did you mean")[0]
    assert "did you mean: alone?" in text


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "path", "kind", "got"),
    [
        ("nowhere", "acme_nowhere:Beep", ModuleNotFoundError, "No module named 'acme_nowhere'"),
        ("missing", "acme_kit:Missing", AttributeError, "has no attribute 'Missing'"),
        ("needs", "acme_kit:Needs", TypeError, "missing 1 required positional argument: 'count'"),
    ],
)
def test_one_that_cannot_be_loaded(name, path, kind, got):
    error = refused(callbacks=[name])
    assert f"callbacks: the entry point {name!r} of acme-kit 1.2 ({path}) cannot be loaded" in str(error)
    assert f"got: {kind.__name__}: " in str(error)
    assert got in str(error)
    assert type(error.__cause__) is kind


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("argument", "name", "what"),
    [
        ("callbacks", "other", "Callback"),
        ("loggers", "beep", "Logger"),
        ("strategy", "wrong", "Strategy"),
    ],
)
def test_one_that_is_something_else(argument, name, what):
    text = str(refused(**{argument: name}))
    says(text, f"{argument}: the entry point {name!r} of acme-kit 1.2 (acme_kit:", f"gives no {what}")
    assert "got: an object of Beep" in text if name == "beep" else "got: an object of Other" in text


@pytest.mark.usefixtures("acme")
def test_a_name_of_two_packages(installed):
    installed("other-kit", "3.0", "[paceline.callbacks]\nbeep = acme_other:Beep\n")
    text = str(refused(callbacks="beep"))
    assert "callbacks: 'beep' is the name of several entry points" in text
    assert "acme-kit 1.2 (acme_kit:Beep), other-kit 3.0 (acme_other:Beep)" in text
    assert "acme_kit" not in sys.modules
    assert "other" not in refused(callbacks="needs").args[0]  # the others are not affected


@pytest.mark.usefixtures("acme")
def test_all_mistakes_are_reported_together():
    error = refused(callbacks=["nowhere", "beeep", 3], strategy="alon", loggers="rowz", max_epochs=0)
    lines = str(error).splitlines()
    assert lines[0] == "Trainer: 6 invalid arguments"
    for start in (
        "callbacks: the entry point",
        "callbacks: no installed",
        "loggers: no",
        "strategy: there",
    ):
        assert sum(line.strip().startswith(start) for line in lines) == 1, start
    assert any("max_epochs: got 0" in line for line in lines)
    assert any("callbacks: got callbacks[2], of type int: 3" in line for line in lines)
    assert type(error.__cause__) is ModuleNotFoundError


# -- paceline plugins -----------------------------------------------------------------------------


def listed(capsys, *arguments):
    app(["plugins", *arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_the_command_says_where_nothing_is_installed(capsys):
    says(listed(capsys), "no package with callbacks, loggers, strategies or checks for paceline is")
    assert json.loads(listed(capsys, "--json")) == []


@pytest.mark.usefixtures("acme")
def test_the_command_lists_without_importing(capsys, installed):
    installed("other-kit", "3.0", "[paceline.callbacks]\nbeep = acme_other:Beep\n")
    rows = json.loads(listed(capsys, "--json"))
    assert len(rows) == 13
    assert rows[0] == {
        "group": "paceline.callbacks",
        "name": "beep",
        "distribution": "acme-kit",
        "version": "1.2",
        "object": "acme_kit:Beep",
        "shadowed": False,
        "ambiguous": True,
    }
    assert {(r["group"], r["name"]) for r in rows if r["shadowed"]} == {("paceline.strategies", "ddp")}
    assert [r["distribution"] for r in rows if r["ambiguous"]] == ["acme-kit", "other-kit"]
    lines = listed(capsys).splitlines()
    assert lines[0].split() == ["group", "name", "distribution", "object"]
    assert "alone    acme-kit 1.2   acme_kit:Alone" in "\n".join(lines)
    assert [line for line in lines if line.endswith("shadowed by what is built in")]
    assert sum(line.endswith("ambiguous: several packages have this name") for line in lines) == 2
    assert not [name for name in sys.modules if name.startswith("acme_")]
