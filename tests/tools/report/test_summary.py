"""Runs are found, named and read."""

import math
from pathlib import Path

import pytest
from helpers.run_folders import rows_of, write_run

from paceline import PacelineError, Run
from paceline.tools.report.summary import chosen_panels, labels_of, summarize
from paceline.trainer.run.find import find_runs


def test_a_folder_stands_for_all_runs_below_it_in_their_order(tmp_path):
    for name in ("net/10", "net/2", "other/1"):
        write_run(tmp_path / "runs" / name, rows_of([1.0]))
    found = find_runs([tmp_path / "runs" / "net" / "10", tmp_path / "runs"])
    assert [run.folder.relative_to(tmp_path / "runs").as_posix() for run in found] == [
        "net/10",
        "net/2",
        "other/1",
    ]


def test_a_configuration_beside_no_run_is_no_run(tmp_path):
    write_run(tmp_path / "net" / "1", rows_of([1.0]))
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "config.yaml").write_text("a: 1")
    assert len(find_runs([tmp_path])) == 1


def test_a_path_without_a_run_names_the_nearest(tmp_path):
    write_run(tmp_path / "classifier" / "1", rows_of([1.0]))
    with pytest.raises(PacelineError, match=r"did you mean: .*classifier\?"):
        find_runs([tmp_path / "clasifier"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PacelineError, match="there is no run at this path or below it"):
        find_runs([tmp_path / "empty"])


def test_labels_are_as_long_as_it_takes():
    assert labels_of([Path("/a/net/1"), Path("/a/net/2")]) == ["net/1", "net/2"]
    assert labels_of([Path("/a/net/1"), Path("/b/net/1")]) == ["a/net/1", "b/net/1"]


def test_a_summary_has_facts_extremes_and_counted_warnings(tmp_path):
    log = "10:00:00 warning: slow\n10:00:01 all fine\n10:00:02 warning: slow\n10:00:03 error: no disk\n"
    folder = write_run(tmp_path / "net" / "1", rows_of([3.0, "nan", 1.0, 2.0]), log=log)
    (run,) = summarize([Run(folder)])
    assert (run.label, run.facts.steps, run.facts.seconds) == ("net/1", 40, 8.0)
    assert (run.facts.devices, run.facts.strategy, run.facts.precision) == ("2 cpu", "ddp", "bf16")
    assert run.facts.started == "2026-01-02 03:04"
    assert run.warnings == {"warning: slow": 2, "error: no disk": 1}
    found = run.extremes["train/loss"]
    assert (found.last, found.low, found.low_step, found.high, found.high_step) == (2.0, 1.0, 30, 3.0, 10)
    assert found.best("train/loss") == (1.0, 30)
    assert found.best("train/accuracy") == (3.0, 10)
    assert run.config["trainer.strategy"] == "ddp"


def changed(key, *changes):
    return [{"from": f"step-{step:08d}", key: values} for step, values in changes]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # settings of config.yaml as they were before; of env.json as they are from there on
        ([(10, {"trainer.precision": "32"})], [], ("2 cpu", "ddp", "32, then bf16 from step 11")),
        ([], [(20, {"world": 4}), (30, {"host": "b"})], ("2 cpu, then 4 cpu from step 21", "ddp", "bf16")),
        (
            [(20, {"trainer.strategy": "fsdp", "trainer.max_epochs": 1})],
            [(20, {"accelerator": "cuda", "world": 8})],
            ("2 cpu, then 8 cuda from step 21", "fsdp, then ddp from step 21", "bf16"),
        ),
        # there and back again; and a session that left no step, since the next began at or before it
        (
            [],
            [(10, {"world": 4}), (20, {"world": 2})],
            ("2 cpu, then 4 cpu from step 11, then 2 cpu from step 21",),
        ),
        ([], [(10, {"world": 4}), (10, {"world": 8})], ("2 cpu, then 8 cpu from step 11",)),
        ([], [(20, {"world": 4}), (10, {"world": 2})], ("2 cpu",)),
        ([], [(40, {"world": 4})], ("2 cpu",)),  # no step of it yet
        ([], [(n, {"world": 2 + n}) for n in range(1, 9)], ("2 cpu, 7 others, then 10 cpu from step 9",)),
        ("no list", [3], ("2 cpu", "ddp", "bf16")),
        ([], [("x", {"world": 4})], ("2 cpu",)),
    ],
)
def test_the_facts_of_a_run_that_was_resumed_otherwise(tmp_path, before, now, expected):
    def entries(key, given):
        whole = [one for one in given if isinstance(one, tuple) and isinstance(one[0], int)]
        return changed(key, *whole) if len(whole) == len(given) else given

    trainer = {"strategy": "ddp", "precision": "bf16", "accelerator": "auto"}
    folder = write_run(
        tmp_path / "net" / "1",
        rows_of([1.0] * 4),
        config={"trainer": trainer, "resumed": entries("before", before)},
        environment={"resumed": entries("now", now)},
    )
    (run,) = summarize([Run(folder)])
    assert (run.facts.devices, run.facts.strategy, run.facts.precision)[: len(expected)] == expected


def test_a_series_without_a_finite_value_has_no_best(tmp_path):
    (run,) = summarize([Run(write_run(tmp_path / "net" / "1", rows_of(["nan", "inf"])))])
    found = run.extremes["train/loss"]
    assert found.last == math.inf
    assert math.isnan(found.low)
    assert found.low_step == -1


def test_epochs_are_fractions(tmp_path):
    (run,) = summarize([Run(write_run(tmp_path / "net" / "1", rows_of(range(8))))])
    epochs = run.series[0].x["epoch"].tolist()
    assert epochs == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6])  # the second one is not over


def test_metrics_are_chosen_by_name_or_panel(tmp_path):
    rows = rows_of([1.0], **{"val/loss": 2.0, "val/accuracy": 0.5, "lr/SGD": 0.1})
    runs = summarize([Run(write_run(tmp_path / "net" / "1", rows))])
    assert chosen_panels(runs) == ["loss", "accuracy", "learning rate"]
    assert chosen_panels(runs, ["val/accuracy", "loss"]) == ["accuracy", "loss"]
    with pytest.raises(PacelineError, match=r"(?s)no run has a metric 'val/acuracy'.*mean: val/accuracy\?"):
        chosen_panels(runs, ["val/acuracy"])
