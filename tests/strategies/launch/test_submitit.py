"""A function that submitit submits: its own signal handler puts the job back, after the run has saved."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from helpers.environment import clean_environment
from helpers.pairwise import soaked
from helpers.processes import notes
from helpers.ranks import forked_python
from helpers.slurm import Cluster, uninterrupted

submitit = pytest.importorskip("submitit")
JOB = Path(__file__).with_name("slurm_job.py")
pytestmark = pytest.mark.launch  # for its length


# test_slurm.py has a preempted job by default, whose ranks are started as these are.
@pytest.mark.parametrize("how", soaked(["SIGUSR2", "preempted"], ["SIGUSR2"]))
def test_a_job_of_submitit_resumes_exactly(tmp_path, monkeypatch, how):
    monkeypatch.syspath_prepend(str(JOB.parent))
    import slurm_job

    variables = clean_environment()
    variables["PYTHONPATH"] += f":{JOB.parent}"
    cluster = Cluster(tmp_path / "slurm", variables)
    monkeypatch.chdir(tmp_path)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "whole").mkdir()
    whole = uninterrupted(JOB, tmp_path / "whole")
    executor = submitit.SlurmExecutor(tmp_path / "logs", python=forked_python())
    executor.update_parameters(ntasks_per_node=2, time=60)
    submitted = executor.submit(slurm_job.Training())
    job = cluster.job(submitted.job_id)
    job.logs = tmp_path / "logs"
    job.options["requeue"] = ""  # as clusters are that requeue by default
    (job.folder / "options.json").write_text(json.dumps(job.options))
    job.start()
    try:
        job.wait_until(lambda: notes(tmp_path, "step"))
        job.preempt() if how == "preempted" else job.signal(signal.SIGUSR2)
        job.ends()
        assert (job.folder / "requeue").read_text() == "requeue\n", job.output
        assert Path("asked").exists() is (how == "SIGUSR2")
        job.restart()
        job.ends()
        assert submitted.task(0).result() == submitted.task(1).result() == whole
    finally:
        job.close()
    assert [path.name for path in Path("runs/n").iterdir()] == ["1"]
