"""The page about runs, as text; test_browser.py opens it."""

import json
import re

import numpy as np
import pytest
from helpers.run_folders import rows_of, write_run
from helpers.small_net import Net, data

from paceline import Run, Trainer
from paceline.callbacks import Checkpoint
from paceline.tools.report.page import build_page, write_report
from paceline.tools.report.series import decode
from paceline.tools.report.summary import summarize
from paceline.trainer.run.find import find_runs

EVIL = "</script><script>alert(1)</script>"


def page_of(*folders):
    return build_page(summarize([Run(folder) for folder in folders]))


def data_of(page):
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(text)


def text_of(page, section):
    """The cells of the table under a heading, row by row."""
    part = page[page.index(f"<h2>{section}</h2>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", part[: part.index("</section>")])
    return [re.findall(r">([^<>]+)<", row) for row in rows]


def test_the_charts_have_all_points_of_all_runs(tmp_path):
    one = write_run(tmp_path / "net" / "1", rows_of([3.0, "nan", 1.0], **{"val/loss": 2.5}))
    two = write_run(tmp_path / "net" / "2", rows_of([2.0, 0.5]))
    found = data_of(page_of(one, two))
    assert found["runs"] == ["net/1", "net/2"]
    assert found["ranges"]["step"] == [10, 30]
    (loss,) = found["charts"]
    assert [(line["run"], line["name"]) for line in loss["lines"]] == [
        (0, "train"),
        (0, "val"),
        (1, "train"),
    ]
    assert decode(loss["lines"][0]["values"]).tolist() == pytest.approx([3, np.nan, 1], nan_ok=True)
    track = found["tracks"][loss["lines"][2]["track"]]
    assert decode(track["step"]).tolist() == [10, 20]
    assert decode(track["samples"]).tolist() == [320, 640]
    assert len(found["tracks"]) == 2  # train and val of the first run share their rows


def test_what_a_run_says_cannot_become_code(tmp_path):
    folder = write_run(
        tmp_path / "<img src=x>" / "1",
        rows_of([1.0], **{f"val/{EVIL}": 1.0, "val/{{data}}": 2.0}),
        config={"note": EVIL, EVIL: 1},
        environment={"host": EVIL},
        log=f"10:00:00 warning: {EVIL}\n",
    )
    page = page_of(folder)
    assert EVIL not in page
    assert "<img" not in page
    assert page.count("<script") == 4
    assert f"val/{EVIL}".removeprefix("val/") in [chart["title"] for chart in data_of(page)["charts"]]


def test_a_page_asks_for_nothing_from_the_network(tmp_path):
    page = page_of(write_run(tmp_path / "net" / "1", rows_of([1.0])))
    assert "default-src 'none'" in page
    assert not re.search(r"<link|<img|@import|url\(|<script[^>]* src", page)
    assert 'viewBox="0 0 460 200"' in page  # the charts without a script


def test_tables_have_exact_values_and_mark_the_best(tmp_path):
    one = write_run(tmp_path / "net" / "1", rows_of([3.0, 0.123456789012345], **{"val/accuracy": 0.5}))
    two = write_run(tmp_path / "net" / "2", rows_of([2.0, 1.0], **{"val/accuracy": 0.75}))
    page = page_of(one, two)
    rows = text_of(page, "Values")
    assert ["train/loss", "0.123457", "0.123457", "3", "1", "1", "2"] in rows
    assert '<td class="number best" title="0.123456789012345 at step 20">0.123457</td>' in page
    assert '<td class="number best" title="0.75 at step 10">0.75</td>' in page
    assert '<td class="number best" title="0.5' not in page


def test_only_keys_that_differ_are_differences(tmp_path):
    one = write_run(tmp_path / "net" / "1", rows_of([1.0]), config={"rate": 0.1, "only": "here"})
    two = write_run(tmp_path / "net" / "2", rows_of([1.0]), config={"rate": 0.2})
    page = page_of(one, two)
    shown = page[page.index("<h2>Differences in configuration") :]
    shown = shown[: shown.index("<details>")]
    assert re.findall(r"<tr><td>([\w.]+)</td>", shown) == ["only", "rate"]
    assert "The environments are the same." in page
    single = page_of(one)
    assert "<h2>Configuration</h2>" in single
    assert ["trainer.precision", "bf16"] in text_of(single, "Configuration")


def test_warnings_are_counted_by_run(tmp_path):
    log = "10:00:00 warning: slow disk\n" * 3
    page = page_of(write_run(tmp_path / "net" / "1", rows_of([1.0]), log=log))
    assert ["net/1", "warning: slow disk", "3"] in text_of(page, "Warnings and errors")


def test_checkpoints_are_listed_and_the_best_is_marked(tmp_path, small_fit):
    page = page_of(small_fit.folder)
    rows = text_of(page, "Checkpoints")[1:]
    names = [path.name for path in small_fit.checkpoints]
    assert [row[1] for row in rows] == names
    assert [row[1] for row in rows if "best" in row] == [small_fit.best.name]


def test_the_last_texts_of_each_name_are_shown(tmp_path):
    folder = write_run(tmp_path / "net" / "1", rows_of([1.0]))
    place = folder / "media/train/samples"
    place.mkdir(parents=True)
    for step in range(1, 6):
        (place / f"step-{step:08d}.txt").write_text(f"answer {step}\n\n{EVIL}" + "x" * 9000)
    page = page_of(folder)
    assert re.findall(r"answer \d", page) == ["answer 3", "answer 4", "answer 5"]
    assert "train/samples" in page
    assert EVIL not in page
    assert "x" * 3900 in page
    assert "x" * 4001 not in page
    assert "<h2>Texts</h2>" not in page_of(write_run(tmp_path / "net" / "2", rows_of([1.0])))


class Validated(Net):
    def validation_step(self, batch):
        self.log("loss", super().validation_step(batch))


@pytest.fixture
def small_fit():
    callback = Checkpoint(monitor="val/loss", keep=3)
    trainer = Trainer(max_epochs=2, callbacks=callback, progress=False)
    return trainer.fit(Validated(), data(), data())


def test_a_page_that_would_be_too_large_has_fewer_points_and_says_so(tmp_path):
    values = np.random.default_rng(0).normal(size=20_000)
    folder = write_run(tmp_path / "net" / "1", rows_of(values.tolist()))
    runs = summarize([Run(folder)])
    whole = build_page(runs)
    assert "all 20,000 points as 32-bit floats" in whole
    room = len(whole) - 50_000
    rounded = build_page(runs, room)
    assert len(rounded) <= room
    assert "is rounded to 1/" in rounded
    assert "reduced from" not in rounded
    small = build_page(runs, len(whole) - 90_000)
    assert len(small) <= len(whole) - 90_000
    found = re.search(r"reduced from 20,000 points to ([\d,]+)", small)
    line = data_of(small)["charts"][0]["lines"][0]
    kept = decode(line["values"])
    assert len(kept) == int(found[1].replace(",", "")) < 20_000
    assert len(decode(data_of(small)["tracks"][0]["step"])) == len(kept)
    assert kept.max() == pytest.approx(values.max(), abs=0.01)


def test_a_run_without_rows_has_a_page(tmp_path):
    page = page_of(write_run(tmp_path / "net" / "1"))
    assert "Nothing was logged." in page


def test_the_page_is_written_where_asked(tmp_path):
    write_run(tmp_path / "net" / "1", rows_of([1.0]))
    assert str(write_report([tmp_path / "net"])) == "report.html"
    path = write_report(["net"], "deep/page.html")
    assert len(find_runs(["net"])) == 1
    assert path.read_text().startswith("<!DOCTYPE html>")
