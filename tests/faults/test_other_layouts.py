"""A run resumes elsewhere: on other ranks, under another strategy, with other batches; or all refuse to."""

import json
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.ranks import run_ranks

from paceline import Run
from paceline.tools.report.page import build_page
from paceline.tools.report.summary import summarize

JOB = Path(__file__).with_name("layouts_job.py")
SECONDS = 120
job = load_job(JOB)
# After AT steps of the first epoch: the arguments of the run that resumes.
OTHER_BATCHES = {
    "larger batches of the loader": {"batch": 64},
    "smaller batches of the loader": {"batch": 3},
    "accumulation": {"accumulate": 2},
    "both": {"batch": 2, "accumulate": 3},
    "another global batch": {"global_batch_size": 6},
    "another global batch in parts": {"batch": 2, "global_batch_size": 5},
}
DDP, FSDP = {"strategy": "ddp"}, {"strategy": "fsdp"}
DAMAGED = DDP | {"resume": "two", "damage": "model-00002.safetensors"}
OF_TWO = [
    ("train", DDP | {"name": "two"}),
    ("train", DDP | {"name": "ddp-from-one", "resume": "one"}),
    ("train", FSDP | {"name": "fsdp-from-one", "resume": "one"}),
    ("train", FSDP | {"name": "fsdp-from-ddp", "resume": "two"}),
    ("train", DDP | {"name": "other-batches", "resume": "two", "batch": 1, "global_batch_size": 6}),
    ("train", DDP | {"name": "other-accumulation", "resume": "two", "batch": 1, "accumulate": 2}),
    ("train", DAMAGED | {"name": "damaged"}),
    ("train", DAMAGED | {"name": "damaged-path", "by_path": True}),
    ("train", DDP | {"name": "other-model", "resume": "two", "width": 7}),
    ("train", DDP | {"name": "unwritable", "run_dir": "/dev/null/runs"}),
    *(("empty", {"name": name}) for name in job.EMPTY),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where one device trained, two ranks resumed and trained, and one device resumed."""
    place = tmp_path_factory.mktemp("layouts")
    job.train(place, 1, "one")
    run_ranks(JOB, 2, place, 2, json.dumps(OF_TWO), folder=place, seconds=SECONDS)
    job.train(place, 1, "one-from-two", resume="two")
    return place


def of(folder, name, devices=2):
    notes = [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(devices)]
    return [found | {"rank": rank} for rank, found in enumerate(notes)]


def steps(ranks):
    """The samples of each step in the order of the data: ranks take micro-batches one after the other."""
    found = {}
    for rank in ranks:
        for step, micro_batch in rank["seen"]:
            found.setdefault(step, [[] for _ in ranks])[rank["rank"]].append(micro_batch)
    return {
        step: flat(flat(turn) for turn in zip_longest(*of_ranks, fillvalue=[]))
        for step, of_ranks in sorted(found.items())
    }


def flat(lists):
    return list(chain.from_iterable(lists))


ELSEWHERE = {"ddp-from-one": 2, "fsdp-from-one": 2, "fsdp-from-ddp": 2, "one-from-two": 1, "two": 2}


@pytest.mark.fault(23)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_order_of_the_samples_and_the_losses_stay(folder, name):
    whole, found = of(folder, "one", 1), of(folder, name, ELSEWHERE[name])
    assert all(rank["error"] is None and rank["steps"] == 12 for rank in found)
    first = 1 if name == "two" else job.AT + 1
    expected = {step: samples for step, samples in steps(whole).items() if step >= first}
    assert steps(found) == expected
    losses, found_losses = dict(whole[0]["losses"]), dict(found[0]["losses"])
    assert losses.keys() == found_losses.keys()
    for step, loss in losses.items():
        assert found_losses[step] == pytest.approx(loss, rel=1e-12, abs=0), step
    assert len(set(losses.values())) == len(losses)


@pytest.mark.fault(23)
def test_what_cannot_be_exact_elsewhere_is_said(folder):
    def notes(name):
        log = (folder / name / "1/log.txt").read_text()
        return [line for line in log.splitlines() if "note: " in line and "resumes" not in line]

    assert "the checkpoint is of 1 rank: random draws inside" in notes("ddp-from-one")[-1]
    (note,) = notes("one-from-two")
    assert "the checkpoint is of 2 ranks: random draws inside the model (dropout)" in note
    assert "metric objects begin their epoch again" in note
    assert notes("fsdp-from-ddp") == []


@pytest.mark.parametrize(
    ("name", "devices", "strategy"),
    [
        ("one", "1 cpu", "single"),
        ("ddp-from-one", "1 cpu, then 2 cpu", "single, then ddp"),
        ("fsdp-from-ddp", "2 cpu", "ddp, then fsdp"),
        ("one-from-two", "2 cpu, then 1 cpu", "ddp, then single"),
    ],
)
def test_a_report_says_what_each_part_of_the_run_was_trained_on(folder, name, devices, strategy):
    (run,) = summarize([Run(folder / name / "1")])
    since = f" from step {job.AT + 1}"
    expected = [text + since * (", then " in text) for text in (devices, strategy)]
    assert [run.facts.devices, run.facts.strategy] == expected
    assert "".join(f"<td>{text}</td>" for text in [*expected, "64"]) in build_page([run])
    assert f"{devices}{since * (', then ' in devices)}" in Run(folder / name / "1")._repr_html_()


@pytest.mark.fault(24)
@pytest.mark.parametrize("kind", OTHER_BATCHES)
def test_no_sample_is_lost_or_read_twice_with(kind, folder, tmp_path):
    job.shutil.copytree(folder / "one", tmp_path / "one")
    job.train(tmp_path, 1, "on", resume="one", **OTHER_BATCHES[kind])
    whole, after = of(folder, "one", 1), of(tmp_path, "on", 1)
    goes_on_in_order(whole, after)
    if "global_batch_size" not in OTHER_BATCHES[kind]:  # then the checkpoint's holds, and its steps
        assert steps(after) == {step: x for step, x in steps(whole).items() if step > job.AT}


@pytest.mark.fault(24)
@pytest.mark.parametrize("name", ["other-batches", "other-accumulation"])
def test_no_sample_is_lost_or_read_twice_on_ranks_with(name, folder):
    goes_on_in_order(of(folder, "two"), of(folder, name))


def goes_on_in_order(whole, after):
    """The samples are those after the checkpoint, in their order; each epoch has each once."""
    assert {rank["error"] for rank in after} == {None}
    order, done = flat(steps(whole).values()), job.AT * job.BATCH
    for epoch in (order[: job.SAMPLES], order[job.SAMPLES :]):
        assert sorted(epoch) == list(range(job.SAMPLES))
    assert flat(steps(after).values()) == order[done:]


@pytest.mark.fault(13)
def test_ranks_pass_over_a_damaged_shard_together(folder):
    found = of(folder, "damaged")
    assert [rank["error"] for rank in found] == [None, None]
    assert steps(found) == {s: x for s, x in steps(of(folder, "two")).items() if s > job.AT - 2}
    log = (folder / "damaged/1/log.txt").read_text()
    assert "skipped a damaged checkpoint" in log
    assert "model-00002.safetensors" in log
    assert f"checkpoints/step-{job.AT - 2:08d}" in log
    for rank in of(folder, "damaged-path"):
        assert "model-00002.safetensors" in rank["error"]
        assert "checksum" in rank["error"]
        assert rank["seen"] == []


@pytest.mark.fault(26)
def test_ranks_refuse_another_model_alike(folder):
    errors = [rank["error"] for rank in of(folder, "other-model")]
    assert errors[0] == errors[1]
    assert "first.weight: shape [6, 1] in the checkpoint, [7, 1]" in errors[0]


@pytest.mark.fault(11)
def test_all_ranks_report_an_unwritable_folder_before_step_1(folder):
    for rank in of(folder, "unwritable"):
        assert "the run folder cannot be written" in rank["error"]
        assert rank["seen"] == []


@pytest.mark.fault(22)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", job.EMPTY)
def test_a_loader_without_a_batch_is_an_error_before_step_1(folder, name, devices, tmp_path):
    if devices == 1:
        job.empty(tmp_path, 1, name)
    for found in of(folder if devices == 2 else tmp_path, name, devices):
        assert found["error"] is not None
        assert (found["steps"], found["seen"], found["same"]) == (0, [], True)
