"""Two hosts and a network: the same numbers, a link that is cut, a host that leaves or joins."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
from helpers import processes
from helpers.environment import clean_environment
from helpers.hosts import NAMES, Hosts, why_not
from helpers.pairwise import soaked
from helpers.ranks import forked_python, run_ranks
from safetensors.torch import load_file

pytestmark = [
    pytest.mark.launch,  # for its length
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

JOB = Path(__file__).with_name("hosts_job.py")
SECONDS = 120
PACELINE = ("-m", "paceline", "launch")
MEET = ("--rdzv-backend=c10d", "--rdzv-endpoint=host1:29500", "--rdzv-id=job")


class Job:
    """A launcher on each host, in one folder. It and its ranks are forks, which are on their host."""

    def __init__(self, hosts, folder, options, settings):
        self._hosts, self.folder = hosts, folder
        self._command = [forked_python(), *PACELINE, *options, str(JOB), json.dumps(settings)]
        self.launchers = {}

    def start(self, *names, variables=None):
        for name in names:
            more = {} if variables is None else variables(name)
            environment = clean_environment() | more
            self.launchers[name] = self._hosts.start(name, self._command, self.folder, environment)

    def notes(self, what, **values):
        return processes.notes(self.folder, what, **values)

    def printed(self, name):
        return (self.folder / f"{name}.out").read_text()

    def wait_until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not (found := condition()):
            printed = "\n".join(map(self.printed, self.launchers))
            assert any(one.poll() is None for one in self.launchers.values()), printed
            assert time.monotonic() < deadline, printed
            time.sleep(0.05)
        return found

    def ends(self, *names):
        deadline = time.monotonic() + SECONDS
        return [self.launchers[name].wait(max(deadline - time.monotonic(), 0.1)) for name in names]

    def done(self):
        (done,) = self.notes("done")
        return done

    def checkpoint(self):
        """All tensors of the last one."""
        last = max((self.folder / "runs/n/1/checkpoints").glob("step-*"))
        return {
            name: value for file in last.glob("*.safetensors") for name, value in load_file(file).items()
        }

    def samples(self):
        """The samples of each step, as the attempt read them that finished it: they count once."""
        found = defaultdict(list)
        by_attempt = defaultdict(lambda: defaultdict(list))
        for one in self.notes("reads"):
            by_attempt[one["step"]][one["pid"]].append(one)
        ends = {one["step"]: one["world"] for one in self.notes("step")}
        for step, attempts in by_attempt.items():
            last = [reads for reads in attempts.values() if reads[-1]["world"] == ends[step]][-ends[step] :]
            found[step] = sorted(n for reads in last for read in reads for n in read["samples"])
        return dict(found)


@pytest.fixture(scope="module")
def hosts():
    found = Hosts()
    yield found
    found.close()


@pytest.fixture
def start(hosts, tmp_path):
    """Starts a job on both hosts; what is left of it is killed."""

    def begin(*options, names=NAMES, **settings):
        job = Job(hosts, tmp_path, [*MEET, *options], settings)
        job.start(*names)
        return job

    yield begin
    hosts.join()
    for name in NAMES:
        hosts.kill(name)


@pytest.fixture(scope="module")
def expected(hosts, tmp_path_factory):
    """The same training as two ranks of this machine, which nothing interrupts."""
    job = Job(hosts, tmp_path_factory.mktemp("one-host"), [], {})
    run_ranks(JOB, 2, "{}", folder=job.folder)
    return job


def is_same(job, expected):
    """Bit for bit: weights, what the optimizer keeps, and the losses of all steps."""
    assert job.done()["losses"] == expected.done()["losses"]
    assert job.done()["weights"] == expected.done()["weights"]
    found, wanted = job.checkpoint(), expected.checkpoint()
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(wanted[name]) for name in wanted)


def both_trained(job):
    assert {(one["host"], one["world"]) for one in job.notes("begins")} == {("host1", 2), ("host2", 2)}


@pytest.mark.soak  # those who are cut off below have two hosts that train as one, too
def test_two_hosts_train_as_one(start, expected):
    job = start("--nnodes", "2")
    assert job.ends(*NAMES) == [0, 0], job.printed("host1") + job.printed("host2")
    both_trained(job)
    is_same(job, expected)


@pytest.mark.soak  # test_launch.py has them on one host
def test_the_variables_of_a_train_job_of_kubeflow_are_enough(hosts, tmp_path, expected):
    """Its runtime numbers the pods, and names the first one."""

    def variables(name):
        return {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(NAMES.index(name)),
            "PET_MASTER_ADDR": "host1",
            "PET_MASTER_PORT": "29400",
        }

    job = Job(hosts, tmp_path, [], {})
    job.start(*NAMES, variables=variables)
    try:
        assert job.ends(*NAMES) == [0, 0], job.printed("host1") + job.printed("host2")
    finally:
        for name in NAMES:
            hosts.kill(name)
    both_trained(job)
    is_same(job, expected)


@pytest.mark.fault(44)
def test_a_host_that_is_cut_off_is_named_and_the_run_continues_when_it_returns(hosts, start, expected):
    """In mid-step; both launchers name it when the deadline is over, and start their ranks again."""
    deadline = 4
    job = start("--nnodes", "2", "--max-restarts", "2", seconds=0.2, timeouts={"step": f"{deadline}s"})
    job.wait_until(lambda: len(job.notes("step")) >= 6)
    hosts.cut()
    verdict = "rank 1 (host2) cannot reach rank 0 (host1) over the network: no progress for"
    for name in NAMES:  # while the link is cut
        job.wait_until(lambda name=name: verdict in job.printed(name))
    hosts.join()
    assert job.ends(*NAMES) == [0, 0], job.printed("host1") + job.printed("host2")
    assert "resumes from runs/n/1/checkpoints/step-0000000" in job.printed("host1")
    assert len(job.notes("begins")) == 4
    both_trained(job)
    is_same(job, expected)


ELASTIC = ("--nnodes", "1:2", "--max-restarts", "1", "--rdzv-conf", "last_call_timeout=5")


@pytest.mark.fault(45)
@pytest.mark.parametrize("how", soaked(["killed", "SIGTERM"], ["killed"]))
def test_a_host_leaves_and_another_joins_and_the_steps_are_the_same(hosts, start, expected, how):
    """Sums are in another order with another world, so the last bits differ."""
    job = start(*ELASTIC, seconds=0.2, alone=3)  # it is not at its end before the other joins
    job.wait_until(lambda: len(job.notes("step")) >= 6)
    if how == "killed":
        hosts.kill("host2")
    else:
        job.launchers["host2"].send_signal(signal.SIGTERM)
        assert job.ends("host2") == [143]
    job.wait_until(lambda: job.notes("step", world=1))
    job.start("host2")
    assert job.ends(*NAMES) == [0, 0], job.printed("host1") + job.printed("host2")
    worlds = [one["world"] for one in job.notes("begins", rank=0)]
    assert worlds == [2, 1, 2]
    assert job.samples() == expected.samples()
    assert job.done()["losses"] == pytest.approx(expected.done()["losses"], rel=1e-12, abs=1e-15)
    assert job.done()["weights"] == pytest.approx(expected.done()["weights"], rel=1e-12, abs=1e-15)
    assert [path.name for path in (job.folder / "runs/n").iterdir()] == ["1"]
