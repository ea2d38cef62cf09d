"""The tables agree with what paceline has, and, where it is installed, with what a library has."""

import dataclasses
import importlib
import inspect
import re

import pytest

import paceline
import paceline.callbacks
import paceline.mixing
import paceline.strategies
from paceline.callbacks.hooks import HOOKS as OUR_HOOKS
from paceline.compat.migrate.libraries import LIBRARIES
from paceline.compat.migrate.lightning.arguments import PRECISIONS, STRATEGIES
from paceline.compat.migrate.lightning.names import HOOKS, OWNERS
from paceline.compat.migrate.lightning.trainer_names import (
    TRAINER_ARGUMENTS,
    TRAINER_CALLS,
    TRAINER_MEMBERS,
)
from paceline.compat.migrate.tables import Group
from paceline.other_trainers import names_in
from paceline.other_trainers.methods import HOOKS as HOOK_PEERS

ENTRIES = [
    (f"{library.name} {owner} {name}", entry)
    for library in LIBRARIES
    for owner, table in [*((n, o) for n, o in library.owners.items()), ("", library)]
    for mapping in (
        [table.names]
        if owner == ""
        else [table.arguments, table.members, table.methods, *table.calls.values(), {"": table.entry}]
    )
    for name, entry in mapping.items()
]


def arguments_of(function):
    return set(inspect.signature(function).parameters)


def test_what_is_imported_exists():
    news = [entry.new for _, entry in ENTRIES if entry.new and "." in entry.new and " " not in entry.new]
    for new in news:
        module, _, name = new.rpartition(".")
        if module.startswith(("paceline", "typing")):
            assert hasattr(importlib.import_module(module), name), new


def test_every_entry_to_rewrite_says_what_to_write():
    for where, entry in ENTRIES:
        assert entry.text or entry.group is Group.RUNS, where
        assert not re.search(r"[^.]\.$", entry.text), where


def test_names_of_paceline_in_the_sentences_exist():
    homes = {
        "paceline.callbacks": paceline.callbacks,
        "paceline.strategies": paceline.strategies,
        "paceline.mixing": paceline.mixing,
    }
    checked = 0
    for where, entry in ENTRIES:
        found = re.match(
            r"write (?:\w+\()?(?:callbacks=\[|profile=)?([A-Z]\w+)\(.*of (paceline\.\w+)", entry.text
        )
        if found and found[1] not in ("Trainer",):
            assert hasattr(homes[found[2]], found[1]), (where, entry.text)
            checked += 1
    assert checked > 20


def test_the_trainer_s_arguments_exist_here():
    ours = arguments_of(paceline.Trainer.__init__)
    for where, entry in ENTRIES:
        for name in re.findall(r"Trainer\((\w+)=", entry.text):
            assert name in ours, (where, entry.text)
    for name, entry in TRAINER_ARGUMENTS.items():
        assert (entry.new or name) in ours if entry.new or entry.group is Group.RUNS else True, name


def test_arguments_of_methods_and_callbacks_exist_here():
    fit = arguments_of(paceline.Trainer.fit)
    assert {entry.new for entry in TRAINER_CALLS["fit"].values() if entry.new} <= fit
    for owner, ours in [("ModelCheckpoint", "Checkpoint"), ("EarlyStopping", "EarlyStopping")]:
        taken = arguments_of(getattr(paceline.callbacks, ours).__init__)
        for name, entry in OWNERS[owner].arguments.items():
            if entry.new or entry.group is Group.RUNS:
                assert (entry.new or name) in taken, name
    module = OWNERS["LightningModule"]
    for name, entry in module.members.items():
        if entry.group is Group.RUNS or (entry.new and entry.new.isidentifier()):
            assert hasattr(paceline.TrainModule, entry.new or name), name


def test_members_of_the_trainer_exist_here():
    view = {*dir(paceline.callbacks.TrainerView), *dir(paceline.Trainer)}
    for name, entry in TRAINER_MEMBERS.items():
        if entry.group is not Group.REWRITE or entry.new:
            assert (entry.new or name) in view, name
    for name, ours in names_in("trainer.").items():
        entry = TRAINER_MEMBERS.get(name)
        if entry is not None and re.fullmatch(r"\w+(\(.*\))?", ours):  # one member in the place of one
            assert ours.partition("(")[0] in (entry.new or entry.text), name


def test_hooks_exist_here_and_are_those_that_hook_messages_name():
    for name, (ours, _, _) in HOOKS.items():
        assert ours in OUR_HOOKS, name
        assert HOOK_PEERS.get(name, (ours, ""))[0] == ours, name


def test_strategies_and_precisions_exist_here():
    assert set(STRATEGIES) <= set(paceline.strategies.STRATEGIES)
    for name in PRECISIONS:
        paceline.strategies.make_precision(name)


def test_the_tables_have_all_of_lightning():
    pl = pytest.importorskip("lightning.pytorch")
    lightning = LIBRARIES[0]
    assert arguments_of(pl.Trainer.__init__) - {"self"} <= set(TRAINER_ARGUMENTS)
    missing = {n for n in dir(pl.Trainer) if not n.startswith("_")} - set(TRAINER_MEMBERS)
    internal = "device_ids distributed_sampler_kwargs enable_validation init_module precision_plugin "
    assert missing <= {*(internal + "received_sigterm scaler").split()}
    hooks = {n for n in dir(pl.Callback) if n.startswith("on_")}
    assert hooks <= {*HOOKS, *OWNERS["Callback"].methods}
    hooks = {n for n in dir(pl.LightningModule) if n.startswith("on_")} - {"on_gpu"}
    modes = {n for n in hooks if "_model_" in n}
    assert hooks - modes <= {*HOOKS, *OWNERS["LightningModule"].methods}
    log = arguments_of(pl.LightningModule.log) - {"self", "name", "value"}
    assert log <= set(OWNERS["LightningModule"].calls["log"])
    for package in ("lightning.pytorch.callbacks", "lightning.pytorch.loggers"):
        for name in importlib.import_module(package).__all__:
            assert name in lightning.owners or name in lightning.names, name


def test_the_tables_have_all_of_accelerate():
    accelerate = pytest.importorskip("accelerate")
    table = next(library for library in LIBRARIES if library.name == "accelerate").owners["Accelerator"]
    assert arguments_of(accelerate.Accelerator.__init__) - {"self"} <= set(table.arguments)


def test_the_tables_have_all_of_the_trainer_of_transformers():
    transformers = pytest.importorskip("transformers")
    owners = next(library for library in LIBRARIES if library.name == "transformers").owners
    fields = {field.name for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    assert fields <= set(owners["TrainingArguments"].arguments)
    hooks = {n for n in dir(transformers.TrainerCallback) if n.startswith("on_")}
    assert hooks <= set(owners["TrainerCallback"].methods)
    assert arguments_of(transformers.Trainer.__init__) - {"self"} <= set(owners["Trainer"].arguments)
