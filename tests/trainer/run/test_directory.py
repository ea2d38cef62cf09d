"""The directory of a run, built without a Trainer."""

import json
from pathlib import Path

import pytest
import yaml

from paceline import PacelineError
from paceline.strategies.ranks.collectives import Collectives
from paceline.trainer.run.directory import RunDirectory
from paceline.trainer.run.numbering import make_run_folder, numbered


def directory(run_dir=Path("runs"), **options):
    found = RunDirectory(Collectives(), run_dir, **options)
    found.begin_stage("net")
    return found


@pytest.fixture
def opened():
    found = directory()
    found.log_line("before there is a folder")
    found.open(None, {"name": "net"}, {"fit": 1})
    yield found
    found.release()


def test_it_makes_a_numbered_folder_with_configuration_environment_and_log(opened, capsys):
    opened.log_line("after")
    opened.log_line("for the log only", console=False)
    assert opened.path.as_posix() == "runs/net/1"
    assert yaml.safe_load((opened.path / "config.yaml").read_text()) == {"name": "net"}
    assert json.loads((opened.path / "env.json").read_text())["fit"] == 1
    logged = [line.split(" ", 1)[1] for line in (opened.path / "log.txt").read_text().splitlines()]
    assert logged == ["before there is a folder", "after", "for the log only"]
    assert "for the log only" not in capsys.readouterr().out


def test_a_folder_whose_name_is_a_digit_and_no_number_is_no_run(tmp_path):
    for name in ("2", "²", "x"):
        (tmp_path / name).mkdir()
    assert make_run_folder(tmp_path, lambda folder: None).name == "3"
    assert [n for n, _ in numbered(tmp_path)] == [2, 3]


def test_the_number_of_a_run_that_was_deleted_is_not_given_again(tmp_path):
    made = [make_run_folder(tmp_path, lambda folder: None) for _ in range(3)]
    assert [one.name for one in made] == ["1", "2", "3"]
    for one in made[:2]:
        one.rmdir()
    assert make_run_folder(tmp_path, lambda folder: None).name == "4"


def test_the_next_run_of_the_name_gets_the_next_number(opened):
    second = directory()
    second.open(None, {}, {})
    assert second.path.as_posix() == "runs/net/2"
    second.release()


def test_a_folder_is_held_until_it_is_released(opened):
    other = directory()
    with pytest.raises(PacelineError, match="another run is active"):
        other.lock(opened.path)
    opened.release()
    other.lock(opened.path)
    other.release()


def test_nothing_is_written_without_a_run_dir():
    found = directory(None)
    found.open(None, {}, {})
    assert (found.path, found.checkpoints) == (None, None)


def test_a_quiet_one_drops_its_lines(capsys):
    directory(None, quiet=True).log_line("nobody sees this")
    assert capsys.readouterr().out == ""
