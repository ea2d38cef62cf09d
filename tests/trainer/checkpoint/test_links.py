"""Links in a run's folder: what they lead to is read, and neither deleted nor rewritten."""

import pytest
from helpers.small_net import Net, data

from paceline import Trainer
from paceline.callbacks import Checkpoint


def fit(folder, steps):
    saves = Checkpoint(every=2, keep=2)
    usual = {"run_dir": folder, "name": "n", "accelerator": "cpu", "progress": False, "log_every": "1st"}
    loggers = ["-tensorboard", "-curves"]
    trainer = Trainer(**usual, max_steps=steps, callbacks=saves, loggers=loggers)
    return trainer.fit(Net(), data(), resume="auto")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def moved_away(path, elsewhere):
    """Move it to another disk, and link it back."""
    target = elsewhere / path.name
    elsewhere.mkdir(exist_ok=True)
    path.rename(target)
    path.symlink_to(target)
    return target


def test_retention_leaves_a_checkpoint_that_was_moved_and_linked_back(tmp_path):
    run = fit(tmp_path, 4)
    moved = moved_away(run.folder / "checkpoints" / "step-00000002", tmp_path / "disk")
    before = contents(moved)
    fit(tmp_path, 8)
    names = sorted(path.name for path in (run.folder / "checkpoints").glob("step-*"))
    assert names == ["step-00000006", "step-00000008"]
    assert contents(moved) == before


def test_a_linked_checkpoint_is_resumed_and_replaced(tmp_path):
    run = fit(tmp_path, 4)
    moved = moved_away(run.folder / "checkpoints" / "step-00000004", tmp_path / "disk")
    before = contents(moved)
    (moved / "manifest.json").rename(tmp_path / "manifest.json")  # as if it was half copied
    fit(tmp_path, 4)
    assert not (run.folder / "checkpoints" / "step-00000004").is_symlink()
    assert contents(moved) == {name: before[name] for name in before if name != "manifest.json"}
    (tmp_path / "manifest.json").rename(moved / "manifest.json")
    assert fit(tmp_path, 6).rows[-1]["step"] == 6
    assert contents(moved) == before


@pytest.mark.parametrize("kind", ["staging", "replaced"])
def test_links_of_the_names_that_saving_uses_are_removed_alone(tmp_path, kind):
    run = fit(tmp_path, 4)
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    folder = run.folder / "checkpoints"
    name = {"staging": ".staging-step-00000006", "replaced": "step-00000006.replaced"}[kind]
    (folder / name).symlink_to(elsewhere)
    fit(tmp_path, 6)
    assert not (folder / name).is_symlink()
    assert (folder / "step-00000006" / "manifest.json").is_file()
    assert (elsewhere / "kept").read_text() == "mine"


@pytest.mark.parametrize("exists", [True, False])
def test_rows_of_a_linked_file_are_not_rewritten(tmp_path, exists):
    run = fit(tmp_path, 4)
    moved = moved_away(run.folder / "metrics.jsonl", tmp_path / "disk")
    before = moved.read_bytes()
    if not exists:
        moved.unlink()
    (run.folder / "checkpoints" / "step-00000004" / "manifest.json").unlink()  # a resume from step 2
    again = fit(tmp_path, 6)
    assert not (run.folder / "metrics.jsonl").is_symlink()
    assert moved.read_bytes() == before if exists else not moved.exists()
    assert {row["step"] for row in again.rows} == set(range(1 if exists else 3, 7))
