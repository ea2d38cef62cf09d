"""Memory that runs out: what this run held, what it could do with less, and nothing half-applied."""

import json
import re
import threading
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_cases, run_ranks

from paceline.trainer.utils.paths import shown_path

JOB = Path(__file__).with_name("memory_job.py")
job = load_job(JOB)

TYPES = {"device": torch.OutOfMemoryError, "host": RuntimeError, "python": MemoryError}
ADVICE = re.compile(r"DataLoader\(batch_size=(\d+)\) and Trainer\(global_batch_size=(\d+)\), half at once")
WHERE = ["forward", "backward", "update"]


def fails(folder, module, size=job.SIZE, **settings):
    """Train until memory runs out: the error, its notes, the trainer, and the weights before the step."""
    trainer, kept = job.start(folder, **settings)
    with pytest.raises(TYPES[module.kind]) as raised:
        trainer.fit(module, job.loader(size))
    assert type(raised.value) is TYPES[module.kind]
    return "\n".join(raised.value.__notes__), trainer, kept.before


def checkpoints(run):
    return sorted(path.name for path in Path(run).glob("checkpoints/step-*"))


@pytest.mark.fault(29)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_half_applied(tmp_path, where, kind):
    module = job.Net(where, kind)
    notes, trainer, before = fails(tmp_path, module)
    assert f"in step {job.STEP}, epoch 1" in notes
    assert trainer.global_step == job.STEP - 1
    assert job.weights(module) == before
    assert checkpoints(trainer.folder) == ["step-00000001", "step-00000002"]


@pytest.mark.fault(29)
def test_what_the_run_holds_is_reported(tmp_path):
    notes, _, _ = fails(tmp_path, job.Net("forward"))
    # 1000 weights of 8 bytes; AdamW has two numbers for each, and a count of 4 bytes or more.
    printed = re.search(
        r"memory: parameters 8 kB, gradients 8 kB, optimizer ([\d.]+) kB; the process (\S+ .B) of", notes
    )
    assert printed is not None, notes
    assert 16 <= float(printed[1]) <= 16.02
    assert printed[2].endswith("MB") or printed[2].endswith("GB")


@pytest.mark.fault(29)
def test_weights_that_are_frozen_have_no_gradients(tmp_path):
    module = job.Net("forward")
    module.frozen = torch.nn.Linear(100, 5, bias=False).requires_grad_(False)
    notes, _, _ = fails(tmp_path, module)
    assert "parameters 12 kB, gradients 8 kB" in notes


FOLLOWED = {
    "plain": {},
    "accumulation": {"accumulate": 2},
    "a global batch": {"global_batch_size": 6},
    "an odd batch": {"size": 5},
}


@pytest.mark.fault(29)
@pytest.mark.parametrize("name", soaked(list(FOLLOWED), ["accumulation", "an odd batch"]))
def test_half_at_once_gives_the_same_steps(tmp_path, name):
    settings = dict(FOLLOWED[name])
    size = settings.pop("size", job.SIZE)
    notes, _, _ = fails(tmp_path / "failed", job.Net("forward"), size, **settings)
    advice = ADVICE.search(notes)
    assert advice is not None, notes
    less, whole = int(advice[1]), int(advice[2])
    assert less <= size // 2
    found = []
    for batch, more in ((size, settings), (less, {"global_batch_size": whole})):
        module, (trainer, _) = job.Net(), job.start(tmp_path / str(batch), **more)
        trainer.fit(module, job.loader(batch))
        found.append((trainer.global_step, job.weights(module)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-12, abs=1e-14)
    assert found[0][1] != job.weights(job.Net())


@pytest.mark.fault(29)
def test_only_what_this_run_can_do_is_reported(tmp_path):
    notes, _, _ = fails(tmp_path, job.Net("forward"), size=1)
    assert not ADVICE.search(notes)
    assert "strategy=Single(activation_checkpointing=True)" in notes
    assert "bf16" not in notes  # it is in double precision
    notes, _, _ = fails(tmp_path, job.Net("forward", "host"), precision="32")
    assert 'precision="bf16"' in notes
    assert ADVICE.search(notes)[0].startswith("DataLoader(batch_size=2) and Trainer(global_batch_size=4)")


@pytest.mark.fault(29)
def test_under_manual_optimization_no_global_batch_size_is_reported(tmp_path):
    notes, _, _ = fails(tmp_path, job.Manual("forward"))
    assert "memory: parameters 8 kB" in notes
    assert "global_batch_size" not in notes


@pytest.mark.fault(29)
@pytest.mark.parametrize("what", ["validate", "predict"])
def test_a_pass_without_training_is_reported_too(tmp_path, what):
    trainer, _ = job.start(tmp_path)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        getattr(trainer, what)(job.Net("validation"), job.loader())
    notes = "\n".join(raised.value.__notes__)
    assert f"in {what}" in notes
    assert "memory: parameters 8 kB" in notes
    assert not ADVICE.search(notes)


@pytest.mark.fault(29)
def test_of_a_validation_within_a_fit_the_trainings_batch_size_is_not_reported(tmp_path):
    trainer, _ = job.start(tmp_path)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.fit(job.Net("validation"), job.loader(), job.loader())
    notes = "\n".join(raised.value.__notes__)
    assert "memory: parameters 8 kB" in notes
    assert not ADVICE.search(notes)


def waits_for(event):
    event.wait()


@pytest.mark.fault(29)
def test_the_crash_report_holds_what_is_known(tmp_path):
    event = threading.Event()
    thread = threading.Thread(target=waits_for, args=(event,))
    thread.start()
    try:
        notes, trainer, _ = fails(tmp_path, job.Net("backward"), log_every=1)
    finally:
        event.set()
        thread.join()
    path = trainer.folder / "crash-rank-0.txt"
    assert shown_path(path) in notes
    assert f"to reproduce: paceline replay {shown_path(trainer.folder)} --step {job.STEP}" in notes
    parts = dict(re.findall(r"(?ms)^== (\w+)\n(.*?)(?=^== |\Z)", path.read_text()))
    assert list(parts) == ["where", "error", "metrics", "configuration", "environment", "stacks"]
    assert f"step {job.STEP}, epoch 1, {job.SIZE * 2} samples into the epoch, rank 0 of 1" in parts["where"]
    assert "in run_out" in parts["error"]
    assert "memory: parameters 8 kB" in parts["error"]
    assert json.loads(parts["metrics"])["train/loss"] == trainer.metrics["train/loss"]
    assert "max_epochs: 2" in parts["configuration"]
    assert json.loads(parts["environment"])["torch"] == torch.__version__
    assert "waits_for" in parts["stacks"]  # another thread
    assert "write_crash_report" in parts["stacks"]  # and this one


# -- on two ranks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    cases = {where: {"where": where} for where in WHERE}
    cases |= {"whole": {}, "half at once": {"size": 2, "global_batch_size": 8}}
    return run_cases(JOB, tmp_path_factory.mktemp("ranks"), cases, one_pair=False)


@pytest.mark.launch  # for its length
@pytest.mark.fault(29)
@pytest.mark.parametrize("where", WHERE)
def test_on_two_ranks_nothing_is_half_applied(on_ranks, where):
    first, second = on_ranks[where]
    kind, *notes = second["error"]
    assert kind == "OutOfMemoryError"
    notes = "\n".join(notes)
    assert f"in step {job.STEP}, epoch 1" in notes
    if where == "update":  # which needs as much with any batch
        assert not ADVICE.search(notes)
    else:
        assert ADVICE.search(notes).groups() == ("2", "8")
    assert "strategy='fsdp'" in notes or 'strategy="fsdp"' in notes
    assert first["error"] is not None
    assert checkpoints(first["run"]) == ["step-00000001", "step-00000002"]
    assert second["after"] == second["before"]
    assert first["before"] == second["before"]
    assert where == "update" or first["after"] == first["before"]
    assert (Path(first["run"]) / "crash-rank-1.txt").exists()


@pytest.mark.launch  # for its length
@pytest.mark.fault(29)
def test_on_two_ranks_half_at_once_gives_the_same_steps(on_ranks):
    for mine, its in zip(on_ranks["half at once"], on_ranks["whole"], strict=True):
        assert mine["error"] is its["error"] is None
        assert mine["after"] == pytest.approx(its["after"], rel=1e-12, abs=1e-14)


def alone(folder):
    found = run_ranks(JOB, 1, 1, folder=folder, check=False)
    return found.codes[0], found.stderr


def launched(folder):
    found = run_ranks(JOB, 1, 2, folder=folder, check=False, launches=True)
    return found.codes[0], found.stderr


@pytest.mark.launch
@pytest.mark.fault(29)
def test_at_most_twelve_lines_are_printed(tmp_path):
    for devices, run in enumerate((alone, launched), 1):
        folder = tmp_path / str(devices)
        folder.mkdir()
        code, printed = run(folder)
        assert code == 1
        lines = printed[printed.index("Traceback") :].strip().splitlines()
        assert len(lines) <= 12, printed
        assert any("OutOfMemoryError: out of memory" in line for line in lines)
        assert f"batch_size=2) and Trainer(global_batch_size={4 * devices})" in printed
        assert lines[-1].endswith(f"--step {job.STEP}")
