"""What is drawn where in curves.png."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from paceline.callbacks import Curves
from paceline.callbacks.loggers.series import bucketed, drawable, read_series
from paceline.callbacks.pictures.curves import draw
from paceline.callbacks.pictures.panels import ends_of_y, in_order, lower_is_better, place_of

ANNOUNCED = "curves.png is being drawn; at its end this process waits for it"


@pytest.fixture
def figure(monkeypatch):
    """The figures that were saved."""
    found = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (found.append(self), save(self, *a, **k))[1]
    )
    return found


def drawn(tmp_path, figure, rows):
    """The visible panels by title."""
    path = tmp_path / "net" / "7" / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw(path, tmp_path / "curves.png", dpi=40)
    assert imread(tmp_path / "curves.png").std() > 0
    axes = [one for one in figure[-1].axes if one.get_visible()]
    return {one.get_title(loc="left"): one for one in axes}


ROWS = [
    {"step": step, "train/loss": 1 / step, "lr/SGD": 0.03, "perf/samples_per_second": 9000.0 + step}
    for step in (1, 2, 3)
] + [{"step": 3, "val/loss": 0.5, "train/loss_epoch": 0.6, "val/f1": 0.25}, {"step": 2, "val/f1": 0.25}]


def test_training_and_validation_share_a_panel_and_a_family_of_colours(tmp_path, figure):
    panels = drawn(tmp_path, figure, ROWS)
    assert list(panels) == ["loss", "f1", "learning rate", "samples per second"]
    assert figure[0].get_suptitle() == "net/7"
    lines = {line.get_label(): line for line in panels["loss"].lines}
    assert list(lines) == ["train", "train epoch", "val"]
    assert lines["train"].get_xydata().tolist() == [[1, 1], [2, 0.5], [3, pytest.approx(1 / 3)]]
    colors = [lines[name].get_color() for name in ("train", "train epoch", "val")]
    assert colors == ["#7fa9f2", "#7fa9f2", "#1d4ed8"]
    assert [text.get_text() for text in panels["loss"].get_legend().texts] == list(lines)


def test_axes_are_those_of_people(tmp_path, figure):
    panels = drawn(tmp_path, figure, ROWS)
    assert panels["samples per second"].get_ylim()[0] == 0
    assert panels["learning rate"].get_ylim() == pytest.approx((0, 0.0336))
    assert panels["f1"].get_ylim() == pytest.approx((0.125, 0.375))  # a constant, in the middle
    assert len({panel.get_xlim() for panel in panels.values()}) == 1
    assert all(tick == int(tick) for tick in panels["loss"].get_xticks())


def test_values_that_are_not_finite_are_gaps(tmp_path, figure):
    rows = [{"step": step, "train/loss": value} for step, value in enumerate([1.0, "nan", 3.0, "inf"], 1)]
    panels = drawn(tmp_path, figure, [*rows, {"step": 1, "val/f1": "nan"}])
    shown = panels["loss"].lines[0].get_ydata()
    assert shown.tolist() == pytest.approx([1, math.nan, 3, math.nan], nan_ok=True)
    assert panels["loss"].get_ylim()[1] < 3.2
    assert panels["f1"].texts[0].get_text() == "no finite value"


def test_at_most_nine_panels_are_drawn_and_the_others_counted(tmp_path, figure):
    more = {f"val/m{number}": 1.0 for number in range(12)}
    panels = drawn(tmp_path, figure, [*ROWS, {"step": 3} | more])
    assert len(panels) == 9
    assert {"loss", "learning rate", "samples per second"} <= set(panels)
    assert figure[0].get_suptitle().endswith("(7 more panels not drawn)")


def test_long_curves_are_means_in_a_band_of_their_extremes(tmp_path, figure):
    values = np.random.default_rng(0).normal(size=5000).tolist()
    panels = drawn(tmp_path, figure, [{"step": n, "train/loss": v} for n, v in enumerate(values, 1)])
    (line,) = panels["loss"].lines
    assert len(line.get_xdata()) == 600
    band = panels["loss"].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (min(values), max(values))


def test_buckets_have_the_mean_and_the_extremes_of_their_part():
    x, y = np.arange(6.0), np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan])
    found = bucketed(x, y, 3)
    assert found.x.tolist() == [0.5, 2.5, 4.5]
    assert found.mean.tolist() == pytest.approx([2, 5, math.nan], nan_ok=True)
    assert found.low.tolist() == pytest.approx([1, 5, math.nan], nan_ok=True)
    assert found.high.tolist() == pytest.approx([3, 5, math.nan], nan_ok=True)
    assert bucketed(x, y, 6).mean.tolist() == pytest.approx(y.tolist(), nan_ok=True)


def test_what_no_picture_can_show_is_no_value():
    values = np.array([1e308, -1e308, 5e-324, 2.0, math.inf])
    assert drawable(values).tolist() == pytest.approx([math.nan, math.nan, 0, 2, math.nan], nan_ok=True)


def test_series_of_the_same_rows_share_their_positions():
    rows = [{"step": 2, "train/a": 1.0, "train/b": 2.0}, {"step": 1, "train/a": 0.5, "train/b": 1.0}]
    first, second, third = read_series([*rows, {"step": 3, "val/a": 1.0}])
    assert first.x is second.x
    assert third.x is not first.x
    assert (first.x["step"].tolist(), first.values.tolist()) == ([1, 2], [0.5, 1.0])
    assert set(first.x) == {"step"}  # what no row has is no axis


def test_places_and_order():
    names = ["perf/mfu", "lr/SGD", "val/accuracy", "val/a/loss", "train/loss_epoch", "norm/gradient"]
    panels = in_order(place_of(name).panel for name in [*names, "perf/samples_per_second"])
    assert panels == [
        "loss",
        "a/loss",
        "accuracy",
        "learning rate",
        "samples per second",
        "norm/gradient",
        "perf/mfu",
    ]
    assert place_of("plain") == ("plain", "value")
    assert lower_is_better("val/a_loss")
    assert not lower_is_better("val/accuracy")
    assert ends_of_y("loss", 0.0, 0.0) == (-1.0, 1.0)


def test_labels_that_matplotlib_would_hide_or_read_as_a_formula(tmp_path, figure):
    rows = [{"step": step, "lr/_Own": 0.1, "lr/b$x_$": 0.2, "train/cost_$5_$": 1.0} for step in (1, 2)]
    panels = drawn(tmp_path, figure, rows)
    assert set(panels) == {r"cost_\$5_\$", "learning rate"}
    legend = [text.get_text() for text in panels["learning rate"].get_legend().texts]
    assert legend == ["_Own", r"b\$x_\$"]


@pytest.mark.usefixtures("pictures")
def test_a_picture_that_cannot_be_drawn_costs_a_line_and_not_the_run(tmp_path, monkeypatch):
    def broken(*arguments):
        raise ValueError("no font")

    monkeypatch.setattr("paceline.callbacks.pictures.curves.draw", broken)
    torn_down(tmp_path)
    logged = (tmp_path / "log.txt").read_text()
    assert logged.endswith(" warning: curves.png could not be drawn: ValueError: no font\n")


def test_a_process_that_cannot_be_started_costs_a_line_too(tmp_path, monkeypatch):
    def no_memory(*arguments):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("paceline.callbacks.pictures.curves.start_drawing", no_memory)
    (line,) = torn_down(tmp_path)
    assert line == "warning: curves.png could not be drawn: OSError: [Errno 12] Cannot allocate memory"


@pytest.mark.parametrize(("sent", "said"), [(False, [ANNOUNCED]), (True, [])])
def test_a_picture_that_is_not_there_when_fit_returns_is_announced(tmp_path, monkeypatch, sent, said):
    order = []
    monkeypatch.setattr(
        "paceline.callbacks.pictures.curves.start_drawing", lambda *_: order.append("started")
    )
    monkeypatch.setattr(
        "paceline.callbacks.pictures.curves.wait_for_pictures", lambda: order.append("drawn")
    )
    monkeypatch.setattr(
        "paceline.callbacks.pictures.curves.url_of", lambda path: "s3://runs" if sent else None
    )
    assert torn_down(tmp_path) == said
    assert order == ["started", "drawn"][: 1 + sent]


def torn_down(folder):
    (folder / "metrics.jsonl").write_text('{"step": 1, "train/loss": 1.0}\n')
    lines = []
    trainer = SimpleNamespace(folder=folder, is_global_zero=True, log_line=lines.append)
    Curves().on_teardown(trainer, "fit")
    return lines
