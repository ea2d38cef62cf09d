"""Runs in an object store, with a real client and server: faults, kills at each request, other machines."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import processes
from helpers.object_store import KEY, SECRET, ObjectStore
from helpers.pairwise import soaked
from helpers.ports import free_port
from helpers.ranks import Outcome, run_ranks

import paceline
from paceline import PacelineError, Trainer
from paceline.common.remote_paths import cached_path
from paceline.trainer.checkpoint.files.format import CheckpointError
from paceline.trainer.checkpoint.files.remote_run import complete
from paceline.trainer.checkpoint.listing import find_checkpoints
from paceline.trainer.run.find import find_runs
from paceline.trainer.storage import remote as remote_module
from paceline.trainer.storage.remote import Remote, RemoteError

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")
JOB = Path(__file__).with_name("remote_job.py")
QUICK = {"AWS_MAX_ATTEMPTS": "1"}  # of the store's client, for stores that never answer
pytestmark = pytest.mark.launch  # for its length


def _can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"]
    return not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = ObjectStore(tmp_path_factory.mktemp("store") / "server")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def here(monkeypatch, store, tmp_path):
    """This process is a client too, with its own cache; nothing is planned."""
    store.plan()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same training in a local folder."""
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, {}, run_dir=str(folder / "runs"))


@pytest.fixture(scope="module")
def stored(store, tmp_path_factory):
    """A folder of the store with a run, the folder of the training with its cache, and how it ended."""
    folder = tmp_path_factory.mktemp("stored")
    outcome = start(folder, store.environment, run_dir="s3://bucket/stored", max_time="1h")
    assert outcome.codes == [0], printed(outcome)
    return "s3://bucket/stored", folder, outcome


def start(folder: Path, environment: dict[str, str], **settings) -> Outcome:
    folder.mkdir(exist_ok=True)
    settings["out"] = str(folder / "result.json")
    environment = {"PACELINE_CACHE": str(folder / "cache")} | environment
    options = {"folder": folder, "environment": environment, "check": False, "s3": True}
    return run_ranks(JOB, settings.get("devices", 1), json.dumps(settings), **options)


def run(folder: Path, environment: dict[str, str], **settings) -> dict:
    outcome = start(folder, environment, **settings)
    assert set(outcome.codes) == {0}, outcome.output
    return json.loads((folder / "result.json").read_text())


def launch(folder: Path, environment: dict[str, str], **settings) -> dict:
    """The same as a command, whose trainer starts the ranks."""
    folder.mkdir(exist_ok=True)
    settings["out"] = str(folder / "result.json")
    environment = {"PACELINE_CACHE": str(folder / "cache")} | environment
    outcome = processes.run(JOB, folder, settings, **environment)
    assert (outcome.code, outcome.left) == (0, []), outcome.printed()
    return json.loads((folder / "result.json").read_text())


def printed(outcome: Outcome) -> str:
    return outcome.stdout + outcome.stderr


def same(result: dict, whole: dict) -> bool:
    return result["weights"] == whole["weights"] and result["rows"] == whole["rows"]


def test_a_run_is_in_the_store_and_resumes_on_another_machine(here, store, whole, stored):
    url, folder, outcome = stored
    assert same(json.loads((folder / "result.json").read_text()), whole)
    assert f"n in {url}/n/1" in printed(outcome)
    names = Remote(f"{url}/n/1").names()
    kept = {name.split("/")[1] for name in names if name.count("/") > 1 and name.startswith("checkpoints/")}
    assert kept == {"step-00000004", "step-00000006"}
    assert {"config.yaml", "env.json", "log.txt", "metrics.jsonl", "checkpoints/latest"} <= names.keys()
    sent = [line for line in store.requests("stored/n/1/checkpoints/step-00000004/") if "PUT" in line]
    assert [line.rsplit("/", 1)[1].partition("?")[0] for line in sent][-1] == "manifest.json"
    assert len(sent) == 4

    again = run(here / "two", store.environment, run_dir=url, resume="latest")  # with an empty cache
    assert again["begins"] == []  # the run is complete
    assert again["weights"] == whole["weights"]
    assert Path(again["run"]).name == "1"

    found = paceline.Run(f"{url}/n/1")
    assert found.latest.name == "step-00000006"
    assert [row["step"] for row in found.rows if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    assert found.config["trainer"]["run_dir"] == url
    assert [path.name for path in find_checkpoints(f"{url}/n/1")] == ["step-00000004", "step-00000006"]
    assert len(find_runs([url])) == 1


def test_two_trainings_that_begin_at_once_get_a_number_each(here, store, whole):
    url = f"s3://bucket/{here.name}"
    first, second = Remote(f"{url}/n/1"), Remote(f"{url}/n/1")
    assert first.write("config.yaml", b"one", only_new=True)
    assert not second.write("config.yaml", b"two", only_new=True)
    fresh = run(here / "job", store.environment, run_dir=url, resume=None)
    assert Path(fresh["run"]).name == "2"
    assert same(fresh, whole)
    assert first.read("config.yaml") == b"one"
    first.write("env.json", b"{}")  # which no run is without for long
    assert [one.folder.name for one in find_runs([url])] == ["1", "2"]


def test_a_damaged_copy_in_the_cache_is_fetched_again(store, whole, stored):
    url, folder, _ = stored
    (file,) = (folder / "cache").rglob("step-00000006/model-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    resumed = run(folder, store.environment, run_dir=url)
    assert resumed["begins"] == []
    assert resumed["weights"] == whole["weights"]


@pytest.mark.parametrize("damage", soaked(["changed", "cut", "missing"], ["changed"]))
def test_what_is_damaged_in_the_store_is_passed_over(here, store, whole, stored, damage):
    """The run has all its checkpoints again afterwards."""
    url = stored[0]
    remote = Remote(f"{url}/n/1/checkpoints")
    name = next(name for name in remote.names() if re.match(r"step-00000006.*\.safetensors", name))
    content = remote.read(name)
    if damage == "missing":
        remote.delete([name])
    else:
        remote.write(name, content[:-1] + b"?" if damage == "changed" else content[:-8])
    resumed = run(here / "two", store.environment, run_dir=url)
    assert resumed["begins"] == [4]
    assert same(resumed, whole)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(False, marks=pytest.mark.soak, id="before it takes effect"),
        pytest.param(True, id="after"),
    ],
)
@pytest.mark.parametrize("part", soaked(range(4), [0]))
def test_a_training_that_is_killed_at_any_request_loses_nothing(here, store, whole, first, part):
    trials = run(here / "job", store.environment, store=str(store.folder), first=first, part=part)
    assert [one["killed"] for one in trials] == [True] * (len(trials) - 1) + [False]
    assert len(trials) > 8
    assert [one["place"] for one in trials if not same(one, whole)] == []
    assert {tuple(one["begins"]) for one in trials} >= {(0,), (2,), (4,)}
    for one in trials:
        names = Remote(f"s3://bucket/{one['place']}/n/{Path(one['run']).name}").names("checkpoints")
        kept = {Path(name).parent.name for name in names if name.endswith("manifest.json")}
        assert kept == {"step-00000004", "step-00000006"}, one["place"]


def test_requests_that_fail_are_repeated(here, store, whole):
    """Some are answered by an error, and some connections end in the middle."""
    fail = {str(number): "cut" if number % 12 == 6 else "500" for number in range(0, 60, 3)}
    store.plan(prefix=here.name, fail=fail)
    done = run(here / "job", store.environment, run_dir=f"s3://bucket/{here.name}")
    assert same(done, whole)
    store.plan()
    names = Remote(f"s3://bucket/{here.name}/n/1").names("checkpoints")
    assert sum(name.endswith("manifest.json") for name in names) == 2


def test_a_store_that_refuses_ends_the_run_with_its_reason_and_without_credentials(here, store):
    store.plan(prefix=f"{here.name}/n/1/checkpoints/step-00000004", fail={"PUT": "500"})
    failed = start(
        here / "job", store.environment | QUICK, run_dir=f"s3://bucket/{here.name}", patient=False
    )
    text = printed(failed)
    assert failed.codes == [1]
    assert "the checkpoint could not be sent to the object store; it is on this machine" in text
    assert "InternalError" in text or "on purpose" in text
    store.plan()
    resumed = run(here / "job", store.environment, run_dir=f"s3://bucket/{here.name}")
    assert resumed["begins"] == [4]  # what is on this machine is newer
    everything = text + "".join(
        path.read_text(errors="replace") for path in (here / "job").rglob("*") if path.is_file()
    )
    assert SECRET not in everything
    assert KEY not in everything


def test_a_save_that_fails_may_be_a_warning(here, store, whole):
    store.plan(prefix=f"{here.name}/n/1/checkpoints/step-00000004", fail={"PUT": "500"})
    place = f"s3://bucket/{here.name}"
    settings = {"save": {"on_save_error": "warn"}, "patient": False}
    done = start(here / "job", store.environment | QUICK, run_dir=place, **settings)
    assert done.codes == [0], printed(done)
    assert same(json.loads((here / "job" / "result.json").read_text()), whole)
    assert printed(done).count("could not be sent") == 1
    names = Remote(f"{place}/n/1").names("checkpoints")
    assert "checkpoints/step-00000006/manifest.json" in names
    assert "checkpoints/step-00000004/manifest.json" not in names


@pytest.mark.parametrize("strategy", soaked(["ddp", "fsdp"], ["ddp"]))
def test_each_rank_sends_its_files_and_another_world_resumes(here, store, strategy):
    local = run(here / "whole", {}, run_dir=str(here / "runs"), strategy=strategy, devices=2)
    url = f"s3://bucket/{here.name}"
    by = launch if strategy == "fsdp" else run
    done = by(here / "job", store.environment, run_dir=url, strategy=strategy, devices=2)
    assert done["weights"] == local["weights"]
    names = Remote(f"{url}/n/1/checkpoints").names("step-00000004")
    assert {
        "step-00000004/model-00001.safetensors",
        "step-00000004/model-00002.safetensors",
    } <= names.keys()
    shutil.rmtree(here / "job" / "cache")
    Remote(f"{url}/n/1/checkpoints").delete(["step-00000006/manifest.json"])
    resumed = run(here / "job", store.environment, run_dir=url, strategy=strategy, devices=2)
    assert resumed["begins"] == [4]
    assert resumed["weights"] == local["weights"]
    assert resumed["rows"] == local["rows"]


@pytest.mark.skipif(not _can_mount(), reason="a folder cannot be mounted for a process alone")
@pytest.mark.parametrize("launched", soaked([False, True], [False]), ids=["ranks", "launched"])
def test_two_machines_with_a_cache_each(here, store, launched):
    local = run(here / "whole", {}, run_dir=str(here / "runs"), strategy="fsdp", devices=2)
    url, cache = f"s3://bucket/{here.name}", here / "cache"
    caches = [here / name / "cache" for name in ("one", "two")]
    environment = store.environment | {"PACELINE_CACHE": str(cache)}

    def machine(place: Path, port: int, settings: dict) -> processes.Outcome:
        command = [sys.executable, "-m", "paceline", "launch", "--nnodes", "2", "--nproc", "1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]
        words = shlex.join(map(str, [*command, JOB, json.dumps(settings)]))
        script = f"mount --bind {place} {cache} && exec {words}"
        return processes.Outcome(place.parent, ["unshare", "-m", "sh", "-c", script], environment)

    def job(**more) -> dict:
        settings = {"run_dir": url, "strategy": "fsdp", "num_nodes": 2, "out": str(here / "result.json")}
        settings |= more
        for place in caches:
            place.mkdir(parents=True, exist_ok=True)
        if launched:
            port = free_port()
            with ThreadPoolExecutor(2) as pool:
                both = list(pool.map(lambda place: machine(place, port, settings), caches))
            assert [one.code for one in both] == [0, 0], "".join(one.printed() for one in both)
        else:
            settings["mounts"] = list(map(str, caches))
            alone = environment | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            run_ranks(JOB, 2, json.dumps(settings), folder=here, environment=alone, s3=True)
        return json.loads((here / "result.json").read_text())

    cache.mkdir()
    assert job()["weights"] == local["weights"]
    held = [len(list(place.rglob("*.safetensors"))) for place in caches]
    assert sorted(held) == [0, 4]  # rank 0's machine has its part of two checkpoints
    for place in caches:
        shutil.rmtree(place)
    Remote(f"{url}/n/1/checkpoints").delete(["step-00000006/manifest.json"])
    resumed = job()
    assert resumed["begins"] == [4]
    assert resumed["weights"] == local["weights"]
    assert resumed["rows"] == local["rows"]
    assert any(name.startswith("log-rank-1") for name in Remote(f"{url}/n/1").names())

    # One machine keeps a checkpoint of step 4 of this run, which is deleted; another run gets its number.
    Remote(url).delete(Remote(url).names())
    shutil.rmtree(here / "one" / "cache")
    other = job(seed=5)
    shutil.rmtree(here / "one" / "cache")
    Remote(f"{url}/n/1/checkpoints").delete(["step-00000006/manifest.json"])
    resumed = job(seed=5)
    assert resumed["begins"] == [4]
    assert resumed["weights"] == other["weights"] != local["weights"]


def test_what_an_address_may_not_be(here, monkeypatch):
    with pytest.raises(PacelineError, match="would be written into logs") as caught:
        Trainer(run_dir="s3://me:pa55word@bucket/runs")
    assert "pa55word" not in str(caught.value)
    with pytest.raises(PacelineError, match="nothing here reads addresses with nowhere://"):
        Remote("nowhere://bucket/runs")
    with pytest.raises(PacelineError, match="there is no run at this address or below it"):
        paceline.Run(f"s3://bucket/{here.name}/nothing")
    with pytest.raises(CheckpointError, match="there is no checkpoint at this address"):
        complete(cached_path(f"s3://bucket/{here.name}/n/1/checkpoints/step-1"))
    monkeypatch.setattr(remote_module, "PAUSES", ())
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteError, match="listing failed in the object store"):
        Remote("s3://other-bucket/runs").names()
    s3fs.S3FileSystem.clear_instance_cache()
