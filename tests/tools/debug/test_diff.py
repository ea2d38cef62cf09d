"""Where two runs part: planted differences, each found at its step and, repeated, at its tensor."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.ranks import run_ranks

from paceline import PacelineError, Run
from paceline.callbacks.monitors.step_record import FILE_NAME, MAGIC, ROW
from paceline.tools.debug.diff import compare
from paceline.tools.debug.trace import first_difference, tensors_in

JOB = Path(__file__).with_name("diff_job.py")
SECONDS = 240

FOUND = {
    "worker": (2, "loss", "step 2, batch 0[1]: up to"),
    "augmentation": (4, "loss", "step 4, batch 0[0]: up to"),
    "layer": (1, "loss", "step 1, output of net.1: ReLU and GELU, up to"),
    "rate": (1, "rate", "the tensors of step 1 are the same in both runs"),
    "threads": (None, "loss", "loss 0: up to"),
    "shuffle": (1, "samples", "step 1, batch 0[0]: up to"),
    "draw": (5, "random", "the tensors of step 5 are the same in both runs"),
    "loss": (6, "loss", "step 6, loss 0: up to"),
}
"""The step, what differs first, and a part of what the replay says."""


def devices(plant):
    return 2 if plant == "rate" else 1


# -- planted differences ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with a run for each plant, on ranks that are forked: nothing of them is repeated."""
    folder = tmp_path_factory.mktemp("recorded")
    for ranks, plants in (
        (1, [name for name in ["none", *FOUND] if name != "rate"]),
        (2, ["none", "rate"]),
    ):
        for plant in plants:
            run_ranks(JOB, ranks, folder / str(ranks), plant, ranks, folder=folder, seconds=SECONDS)
    return folder


def found_in(folder, plant):
    runs = folder / str(devices(plant))
    return compare(Run(runs / "none" / "1"), Run(runs / plant / "1"))


@pytest.mark.launch  # for its length
@pytest.mark.parametrize("plant", FOUND)
def test_a_planted_difference_is_found_at_its_step(recorded, plant):
    step, what, _ = FOUND[plant]
    found = found_in(recorded, plant)
    assert found
    assert found.compared == 8
    assert found.first.what == what
    assert step is None or found.first.step == step
    if plant == "rate":
        assert found.first.rank == (-1, 1)
        assert "run B: rank 1 has another learning rate than rank 0" in str(found)
    if plant == "threads":
        assert found.first.beyond_rounding is None
        assert ("threads", 1, 2) in found.environment
        assert "that may be rounding: losses differ by more than 1e-05 in no step" in str(found)


@pytest.mark.launch  # for its length
def test_a_run_is_the_same_as_itself(recorded):
    found = compare(Run(recorded / "1/none/1"), Run(recorded / "1/none/1"))
    assert not found
    assert str(found).endswith("steps recorded: 8 and 8, compared: 8\nevery compared step is the same")


def started(arguments, folder):
    command = {"cwd": folder, "env": clean_environment(), "timeout": SECONDS}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **command)


def diff(folder, *arguments):
    options = {"seconds": SECONDS, "check": False, "launches": True}  # a script it repeats is forked
    return run_ranks("paceline", 1, "diff", *arguments, folder=folder, **options)


@pytest.mark.parametrize("plant", soaked(tuple(FOUND), ("augmentation",)))
def test_repeated_it_is_found_at_its_tensor(plant, tmp_path):
    ranks = devices(plant)
    for which in (plant, "none"):
        run_ranks(JOB, ranks, "runs", which, ranks, folder=tmp_path, seconds=SECONDS)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    done = diff(tmp_path, "runs/none/1", f"runs/{plant}/1", "--replay")
    assert done.codes == [3], done.output
    last = done.stdout.strip().splitlines()[-1]
    assert FOUND[plant][2] in last, done.stdout
    if plant == "threads":
        step = int(done.stdout.split("first difference: step ")[1].split(",")[0])
        assert f"first tensor: step {step}, " in last
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before  # it writes nothing


@pytest.mark.soak
def test_two_versions_of_the_code_are_compared(tmp_path):
    text = JOB.read_text()
    versions = {"old": text, "new": text.replace("nn.ReLU()", "nn.Tanh()")}
    for name, code in versions.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.py").write_text(code)
        assert started(["job.py", "../runs", "none"], tmp_path / name).returncode == 0
    for number in (1, 2):  # as if the folders were gone
        path = tmp_path / "runs/none" / str(number) / "env.json"
        path.write_text(path.read_text().replace(str(tmp_path / ("old", "new")[number - 1]), "/nowhere"))
    done = started(
        ["-m", "paceline", "diff", "runs/none/1", "runs/none/2", "--replay", "--code", "old", "new"],
        tmp_path,
    )
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("first tensor: step 1, output of net.1: ReLU and Tanh, up to"), done.output


@pytest.mark.launch  # for its length
def test_a_script_that_cannot_be_repeated_is_an_error_with_its_own_words(recorded, tmp_path):
    shutil.copytree(recorded / "1", tmp_path / "runs")
    for plant in ("none", "loss"):
        path = tmp_path / "runs" / plant / "1" / "env.json"
        changed = {"program": ["-c", "raise SystemExit('no data today')"], "folder": str(tmp_path)}
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    done = diff(tmp_path, "runs/none/1", "runs/loss/1", "--replay", "--trust", "--yes")
    assert done.codes == [1]
    assert "error: the run cannot be repeated up to step 6" in done.stderr
    assert "got: no data today" in done.stderr


def test_a_folder_with_one_run_means_that_run_and_one_with_several_is_refused(tmp_path):
    run_of(tmp_path / "runs/a/1", **SAME)
    run_of(tmp_path / "runs/b/1", **SAME)
    run_of(tmp_path / "runs/b/2", **SAME)
    assert diff(tmp_path, "runs/a", "runs/b/2").codes == [0]
    refused = diff(tmp_path, "runs/a", "runs/b")
    assert refused.codes == [1]
    assert "several runs below this path" in refused.stderr
    assert "runs/b/1, " in refused.stderr
    assert "runs/b/2\n" in refused.stderr
    assert "runs/a?" in diff(tmp_path, "runs/b/2", "runs/aa").stderr


# -- records that are written here -------------------------------------------------------------------


def run_of(folder, config=None, environment=None, **columns):
    """A run with this record."""
    rows = np.zeros(len(next(iter(columns.values()))), ROW)
    rows["step"], rows["rank"], rows["ranks"] = np.arange(len(rows)) + 1, -1, 1
    for name, values in columns.items():
        rows[name] = values
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(MAGIC + rows.tobytes())
    (folder / "config.yaml").write_text(json.dumps({"trainer": {"seed": 0}} | (config or {})))
    (folder / "env.json").write_text(json.dumps({"torch": "2.13"} | (environment or {})))
    return Run(folder)


SAME = {"loss": [1.0, 2.0, 3.0], "samples": [5, 6, 7], "random": [9, 9, 9], "gradient_norm": [math.nan] * 3}


@pytest.mark.parametrize(
    ("changed", "step", "what", "also"),
    [
        ({"loss": [1.0, 2.5, 3.0]}, 2, "loss", []),
        ({"loss": [1.0, 2.0, math.nan]}, 3, "loss", []),
        ({"samples": [5, 6, 8], "loss": [1.0, 2.0, 4.0]}, 3, "samples", ["loss"]),
        ({"random": [9, 8, 8], "loss": [1.0, 2.0, 4.0]}, 2, "random", []),
        ({"rate": [0.1, 0.0, 0.0]}, 1, "rate", []),
        ({"rank": [-1, 1, -1]}, 2, "rate", []),
    ],
)
def test_the_first_step_and_what_differs_first(tmp_path, changed, step, what, also):
    found = compare(run_of(tmp_path / "a", **SAME), run_of(tmp_path / "b", **SAME | changed)).first
    assert (found.step, found.what, found.also) == (step, what, also)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"gradient_norm": [1.0, 2.0, 3.0]},  # one of them alone measured it
        {"samples": [0, 0, 0]},  # one of them read a stream
        {"random": [1, 2, 3], "ranks": [2, 2, 2]},  # each rank has its own
    ],
)
def test_what_only_one_run_can_know_is_no_difference(tmp_path, changed):
    assert not compare(run_of(tmp_path / "a", **SAME), run_of(tmp_path / "b", **SAME | changed))


def test_steps_that_both_have_are_compared(tmp_path):
    later = {name: values[1:] for name, values in SAME.items()}
    found = compare(run_of(tmp_path / "a", **SAME), run_of(tmp_path / "b", **later | {"step": [2, 3]}))
    assert (found.steps, found.compared, bool(found)) == ((3, 2), 2, False)
    none = compare(run_of(tmp_path / "c", **SAME), run_of(tmp_path / "d", **SAME | {"step": [7, 8, 9]}))
    assert "there is no step that both runs have recorded" in str(none)


def test_runs_of_other_layouts_differ_where_it_is_more_than_rounding(tmp_path):
    ddp = {"config": {"trainer": {"seed": 0, "strategy": "ddp"}}}
    near = {"loss": [1.0000001, 2.0, 3.0]}
    a = run_of(tmp_path / "a", config={"trainer": {"seed": 0, "strategy": "single"}}, **SAME)
    assert not compare(a, run_of(tmp_path / "b", **ddp, **SAME | near))
    # Resumed under the other strategy and back, or on another number of ranks.
    back = [
        {"from": f"step-0000000{n}", "before": {"trainer.strategy": s}}
        for n, s in ((1, "single"), (2, "ddp"))
    ]
    single = {"trainer": {"seed": 0, "strategy": "single"}, "resumed": back}
    assert not compare(a, run_of(tmp_path / "f", config=single, **SAME | near))
    four = {"resumed": [{"from": "step-00000001", "now": {"world": 4}}]}
    ranks = compare(run_of(tmp_path / "g", **SAME), run_of(tmp_path / "h", None, four, **SAME | near))
    assert not ranks
    assert [one.name for one in ranks.environment] == ["resumed"]
    far = compare(a, run_of(tmp_path / "c", **ddp, **SAME | {"loss": [1.0000001, 2.0, 3.01]}))
    assert far.first.step == 3
    assert "trainer.strategy  single | ddp" in str(far)
    alike = run_of(tmp_path / "d", **SAME | near)
    assert compare(run_of(tmp_path / "e", **SAME), alike).first.step == 1


def test_settings_that_differ_are_listed_and_json_has_all(tmp_path):
    a = run_of(tmp_path / "a", config={"trainer": {"seed": 0}, "module": {"hparams": {"width": 8}}}, **SAME)
    b = run_of(tmp_path / "b", {"trainer": {"seed": 1, "run_dir": "x"}}, {"torch": "2.14"}, **SAME)
    found = compare(a, b)
    assert found.config == [("trainer.seed", 0, 1), ("module.hparams.width", 8, None)]
    assert found.environment == [("torch", "2.13", "2.14")]
    as_json = json.loads(found.as_json())
    assert as_json["config"][0] == ["trainer.seed", 0, 1]
    assert as_json["first"] is None


# -- traces ------------------------------------------------------------------------------------------


def row(stage, name, values, step=1, kind=""):
    tensor = torch.as_tensor(values)
    values = tensor.flatten()
    return {
        "step": step, "stage": stage, "name": name, "kind": kind, "shape": list(tensor.shape),
        "dtype": str(tensor.dtype), "checksum": hash(tuple(values.tolist())), "values": values,
    }  # fmt: skip


def test_the_first_tensor_is_that_of_the_earliest_stage_on_any_rank():
    batch = row("batch", "0", [1.0])
    a = [[batch, row("gradient of", "w", [1.0, 2.0])], [batch, row("output of", "net", [1.0])]]
    b = [[batch, row("gradient of", "w", [1.0, 3.0])], [batch, row("output of", "net", [1.5])]]
    found = first_difference(a, b)
    assert str(found) == (
        "first tensor: step 1, output of net on rank 1: up to 0.5 apart, 3.3e-01 of the largest, "
        "in 1 of 1 numbers"
    )
    assert first_difference(a, a) is None


def test_other_micro_batches_are_compared_by_weights_and_gradients_up_to_rounding():
    def rows(size, gradient):
        return [
            [row("batch", "0", [1.0] * size), row("loss", "0", size), row("gradient of", "w", [gradient])]
        ]

    assert first_difference(rows(4, 1.0), rows(2, 1.0 + 1e-7)) is None
    assert first_difference(rows(4, 1.0), rows(4, 1.0 + 1e-6)) is not None
    assert "gradient of w" in str(first_difference(rows(4, 1.0), rows(2, 1.01)))


@pytest.mark.parametrize(
    ("theirs", "how"),
    [
        (row("batch", "0", [[1.0]]), "shape [1] and [1, 1]"),
        (row("batch", "0", torch.ones(1, dtype=torch.float64)), "dtype torch.float32 and torch.float64"),
        (row("batch", "0", [math.inf]), "not finite"),
        (row("batch", "1", [1.0]), "batch 0: run A alone has it"),
    ],
)
def test_shapes_types_and_names_that_differ_are_named(theirs, how):
    assert how in str(first_difference([[row("batch", "0", [1.0])]], [[theirs]]))


def test_tensors_are_found_in_nested_batches():
    found = tensors_in({"image": torch.ones(1), "more": [torch.ones(2), ("text", torch.ones(3))]})
    assert [(path, len(one)) for path, one in found] == [
        ("['image']", 1),
        ("['more'][0]", 2),
        ("['more'][1][1]", 3),
    ]


def test_masked_scores_are_compared_where_they_are_finite():
    def rows(value):
        return [[row("output of", "mask", [1.0, -math.inf, math.nan, value])]]

    assert "up to 0.5 apart" in str(first_difference(rows(2.0), rows(2.5)))
    assert first_difference(rows(2.0), rows(2.0)) is None


def test_a_parameter_that_one_run_has_alone_is_named_before_the_batch():
    batch = row("batch", "0", [1.0])
    more = [[row("weight before", "extra", [1.0]), batch]]
    assert str(first_difference([[batch]], more)) == (
        "first tensor: step 1, weight before extra: run B alone has it"
    )


def test_json_has_no_number_that_json_has_none_for(tmp_path):
    odd = SAME | {"loss": [1.0, math.nan, 3.0]}
    found = compare(run_of(tmp_path / "a", **SAME), run_of(tmp_path / "b", **odd)).as_json()
    assert json.loads(found, parse_constant=pytest.fail)["first"]["b"] == "nan"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--code", "a", "b"), "--code is for --replay"),
        (("--accelerator", "cpu"), "--accelerator is for --replay"),
        (
            ("--replay", "--trust", "--yes", "--code", "nowhere", "b"),
            "the folder to start the run's command in does not exist",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, arguments, message):
    other = {"environment": {"program": ["job.py"], "folder": str(tmp_path), "fit": 1}}
    run_of(tmp_path / "a", **other, **SAME)
    run_of(tmp_path / "b", **other, **SAME | {"loss": [0.0] * 3})
    refused = diff(tmp_path, "a", "b", *arguments)
    assert refused.codes == [1]
    assert f"error: {message}" in refused.stderr


def test_a_damaged_config_is_an_error(tmp_path):
    run = run_of(tmp_path / "a", **SAME)
    (run.folder / "config.yaml").write_text("trainer: {seed")
    with pytest.raises(PacelineError, match=r"config\.yaml is damaged"):
        compare(run, run)
