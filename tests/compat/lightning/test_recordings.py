"""Recordings of Lightning are of the programs as they are, and Lightning runs where they do not fit."""

import json

import pytest
from helpers import lightning_recordings as recordings
from helpers import lightning_records as records

NAME, LARGEST = "autoencoder", 200 * 1024
MADE_WITH = json.loads(recordings.file_of(NAME).read_text())["made_with"]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Recordings of one program in a folder, whose source is there too."""
    source = tmp_path / f"{NAME}.py"
    source.write_text(recordings.SOURCES[NAME].read_text())
    kept = recordings.file_of(NAME).read_text()
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    monkeypatch.setitem(recordings.SOURCES, NAME, source)
    recordings.file_of(NAME).write_text(kept)
    return tmp_path


@pytest.fixture(params=[None, "2.6.6"], ids=["absent", "installed"])
def installed(request, monkeypatch):
    """The version of Lightning that is installed."""
    monkeypatch.setattr(records, "is_installed", lambda name: request.param is not None)
    monkeypatch.setattr(recordings.importlib.metadata, "version", lambda name: request.param)
    return request.param


def theirs(made_with=MADE_WITH, soak=False):
    """Whether the recording is taken, Lightning runs, or neither."""
    found = recordings.theirs([NAME], made_with, soak, lambda names: dict.fromkeys(names, "live"))
    return "recorded" if isinstance(found.get(NAME), dict) else found.get(NAME, "neither")


@pytest.mark.parametrize("name", recordings.SOURCES)
def test_the_recording_is_of_the_program_as_it_is(name):
    recordings.check(name)
    assert recordings.file_of(name).stat().st_size <= LARGEST


def test_each_recording_has_its_program():
    assert {path.stem for path in recordings.FOLDER.iterdir()} == set(recordings.SOURCES)


def test_a_program_that_has_changed_is_named_with_the_command(folder):
    recordings.check(NAME)
    with recordings.SOURCES[NAME].open("a") as file:
        file.write("# changed\n")
    with pytest.raises(AssertionError, match=f"{NAME} has changed .*record.py {NAME}"):
        recordings.check(NAME)
    recordings.file_of(NAME).unlink()
    with pytest.raises(AssertionError, match=f"{NAME} has no recording; .*record.py {NAME}"):
        recordings.check(NAME)


def test_a_recorder_that_has_changed_makes_every_recording_stale(folder, monkeypatch):
    monkeypatch.setattr(recordings, "HELPERS", recordings.HELPERS[1:])
    with pytest.raises(AssertionError, match="has changed"):
        recordings.check(NAME)


def test_lightning_runs_where_a_recording_does_not_fit(folder, installed):
    live = "live" if installed else "neither"
    assert theirs() == "recorded"
    assert theirs(soak=True) == ("live" if installed else "recorded")
    assert theirs(MADE_WITH | {"torch": "0.1"}) == live
    assert theirs(MADE_WITH | {"arithmetic": []}) == live
    path = recordings.file_of(NAME)
    path.write_text(path.read_text().replace('"lightning": "2.6.6"', '"lightning": "2.6.5"'))
    assert theirs() == ("live" if installed else "recorded")
    path.unlink()
    assert theirs() == live


def test_what_is_written_is_read_without_a_loss(folder, monkeypatch):
    monkeypatch.setattr(recordings.importlib.metadata, "version", lambda name: "2.6.6")
    found = {"calls": [["M", "f", [0.1, "a"]], []], "logged": [], "seconds": 1.0, "made_with": MADE_WITH}
    found |= {"metrics": {"a": (0.1).hex()}, "draws": None, "global_step": 3}
    recordings.write(NAME, found)
    read = json.loads(recordings.file_of(NAME).read_text())
    assert read.pop("lightning") == "2.6.6"
    assert read.pop("sources") == recordings.digest(NAME)
    assert read == {name: value for name, value in found.items() if name != "seconds"}
    with pytest.raises(AssertionError, match="it failed"):
        recordings.write(NAME, {"error": "it failed"})
