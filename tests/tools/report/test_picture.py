"""``paceline plot``."""

import pytest
from helpers.run_folders import rows_of, write_run
from matplotlib.image import imread

from paceline import PacelineError
from paceline.callbacks.pictures import picture
from paceline.tools.report.picture import plot_runs


@pytest.fixture
def drawn(monkeypatch):
    """The panels of each picture, and how it was drawn."""
    found = []

    def draw(panels, path, **options):
        found.append((panels, options))
        return real(panels, path, **options)

    real = picture.draw_panels
    monkeypatch.setattr("paceline.tools.report.picture.draw_panels", draw)
    return found


def two_runs(tmp_path):
    write_run(tmp_path / "net" / "1", rows_of([3.0, 2.0, 1.0], **{"val/loss": 2.5}))
    write_run(tmp_path / "net" / "2", rows_of([2.0, 1.0, 0.5]))
    return tmp_path / "net"


def test_runs_are_overlaid_in_one_picture(tmp_path, drawn):
    path = plot_runs([two_runs(tmp_path)])
    assert str(path) == "curves.png"
    assert imread(path).std() > 0
    ((panels, options),) = drawn
    assert options["families"] == ["net/1", "net/2"]
    assert [(line.label, line.family, line.y.tolist()) for line in panels["loss"]] == [
        ("train", 0, [3.0, 2.0, 1.0]),
        ("val", 0, [2.5, 2.5, 2.5]),
        ("train", 1, [2.0, 1.0, 0.5]),
    ]


def test_one_run_is_drawn_into_its_folder(tmp_path, drawn):
    two_runs(tmp_path)
    assert plot_runs([tmp_path / "net" / "1"]) == tmp_path / "net" / "1" / "curves.png"
    assert drawn[0][1]["title"] == "net/1"


def test_metrics_axis_and_file_are_chosen(tmp_path, drawn):
    path = plot_runs([two_runs(tmp_path)], tmp_path / "deep" / "a.png", ["train/loss"], "time")
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = drawn[0][0]
    assert [line.label for line in panels["loss"]] == ["train", "train"]
    assert panels["loss"][0].x.tolist() == [2.0, 4.0, 6.0]


def test_mistakes_name_the_nearest(tmp_path):
    runs = two_runs(tmp_path)
    with pytest.raises(PacelineError, match=r"did you mean: samples\?"):
        plot_runs([runs], axis="sampels")
    with pytest.raises(PacelineError, match="the rows of these runs have no tokens"):
        plot_runs([runs], axis="tokens")
    with pytest.raises(PacelineError, match=r"did you mean: val/loss\?"):
        plot_runs([runs], metrics=["val/los"])
    with pytest.raises(PacelineError, match="nothing was logged"):
        plot_runs([write_run(tmp_path / "idle" / "1")])
