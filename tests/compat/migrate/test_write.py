"""The native form that ``--write`` makes computes what the Lightning program does."""

import runpy

import pytest
import torch

from paceline.compat.migrate.analysis import analyse
from paceline.compat.migrate.tables import Group

from .programs import PROGRAMS


def written(path, source):
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    return report


def trained(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    return runpy.run_path(str(path))["main"]()


def parameters(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def is_same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_native_form_trains_as_a_plain_loop_does(name, tmp_path, monkeypatch):
    source, loop = PROGRAMS[name]
    path = tmp_path / f"{name}.py"
    report = written(path, source)
    assert not [f for f in report.findings if f.group is Group.REWRITE and not f.automatic]
    path.write_bytes(report.rewritten)
    assert b"lightning" not in report.rewritten
    found = parameters(trained(path, monkeypatch).net)
    assert is_same(found, parameters(loop())), name


@pytest.mark.parametrize("name", PROGRAMS)
def test_lightning_trains_the_program_to_the_same_weights(name, tmp_path, monkeypatch):
    source, loop = PROGRAMS[name]
    pytest.importorskip("pytorch_lightning" if "pytorch_lightning" in source else "lightning")
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    assert is_same(parameters(trained(path, monkeypatch).net), parameters(loop())), name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_write_changes_nothing(name, tmp_path):
    path = tmp_path / "program.py"
    path.write_bytes(written(path, PROGRAMS[name][0]).rewritten)
    again = analyse(path)
    assert again.rewritten == again.source
    assert not again.libraries
