"""The status of a TrainJob, against a server with HTTPS and a self-signed certificate."""

import json
import os
import signal
import ssl
import subprocess
import threading
import time
from contextlib import nullcontext
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.ranks import run_ranks
from helpers.small_net import Net, data

from paceline import Trainer
from paceline.callbacks import Callback, KubeflowStatus
from paceline.callbacks.loggers import kubeflow


class Server(ThreadingHTTPServer):
    """Keeps what is posted with the token of the moment.

    Attributes:
        answer: The status code of its answers; None: it never answers.
        is_asked: Whether it has a report that it does not answer.
        closes: Set at its end: what it has not answered is dropped.
    """

    daemon_threads = True

    def __init__(self, certificate, key):
        super().__init__(("127.0.0.1", 0), Handler)
        self.token, self.answer, self.posted, self.refused = "first", 200, [], 0
        self.is_asked, self.closes = threading.Event(), threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request, client_address):
        self.refused += 1  # a client that does not trust the certificate


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.answer is None:
            self.server.is_asked.set()
            self.server.closes.wait()
            return
        allowed = self.headers["Authorization"] == f"Bearer {self.server.token}"
        if allowed and self.server.answer == 200:
            self.server.posted.append((self.path, json.loads(content)["trainerStatus"]))
        self.send_response(self.server.answer if allowed else 401)
        if self.server.answer == 307:
            self.send_header("Location", f"https://localhost:{self.server.server_port}/elsewhere")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ours", "another"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", f"{name}.key", "-out", f"{name}.crt"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    return folder


@pytest.fixture
def server(certificates, tmp_path, monkeypatch):
    found = Server(certificates / "ours.crt", certificates / "ours.key")
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    (tmp_path / "token").write_text("first\n")
    address = f"https://localhost:{found.server_port}/apis/v1/namespaces/n/trainjobs/t/status"
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", address)
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", str(certificates / "ours.crt"))
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    yield found
    found.closes.set()
    found.shutdown()
    found.server_close()
    thread.join()


def fit(tmp_path, loggers=True, **settings):
    usual = {"max_epochs": 2, "log_every": 1, "progress": False, "accelerator": "cpu", "name": "n"}
    trainer = Trainer(loggers=loggers, run_dir=tmp_path / "runs", **usual | settings)
    trainer.fit(Net(), data())
    return trainer


class Slow(Callback):
    """Steps that take a moment; acts at the third."""

    def __init__(self, at_step_3=None):
        self.at_step_3 = at_step_3

    def on_step_end(self, trainer):
        time.sleep(0.05)
        if trainer.global_step == 3 and self.at_step_3:
            self.at_step_3(trainer)


class WaitsForReports(Callback):
    """A step begins when each step before it, up to ``most`` of them, has been reported."""

    def __init__(self, server, most):
        self.server, self.most = server, most

    def on_step_start(self, trainer, batches):
        deadline = time.monotonic() + 60
        while len(self.server.posted) < min(trainer.global_step, self.most):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_run_in_a_train_job_reports_by_itself(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubeflow, "_EVERY", 0.01)
    trainer = fit(tmp_path, callbacks=[WaitsForReports(server, 6)])
    path, last = server.posted[-1]
    assert path == "/apis/v1/namespaces/n/trainjobs/t/status"
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    percent = [status["progressPercentage"] for _, status in server.posted]
    assert percent == sorted(percent)
    assert len(percent) > 3
    assert percent[0] < 100
    metrics = {one["name"]: one["value"] for one in last["metrics"]}
    assert float(metrics["train/loss"]) == pytest.approx(trainer.metrics["train/loss"], rel=1e-5)
    assert all(isinstance(value, str) for value in metrics.values())
    assert datetime.fromisoformat(last["lastUpdatedTime"]).tzinfo is not None
    assert not [one for one in threading.enumerate() if one.name == "kubeflow"]


def test_reports_are_seconds_apart_and_the_last_one_comes_always(server, tmp_path, monkeypatch):
    assert kubeflow._EVERY >= 1
    monkeypatch.setattr(kubeflow, "_EVERY", 600)
    fit(tmp_path, callbacks=[WaitsForReports(server, 1)])
    percent = [status["progressPercentage"] for _, status in server.posted]
    assert len(percent) == 2
    assert percent[0] < percent[1] == 100


def status_after(total, *rows):
    status = KubeflowStatus()
    status._begin_fit(total)
    for step, seconds in rows:
        status.write({"step": step, "time": seconds, "epoch": 0, "samples": step, "train/loss": 0.5})
    return status._status()


def test_the_seconds_that_are_left_follow_from_those_that_have_passed():
    found = status_after(200, (100, 1000.0), (110, 1020.0))  # a resumed run: 2 seconds a step
    assert (found["progressPercentage"], found["estimatedRemainingSeconds"]) == (55, 180)
    assert "estimatedRemainingSeconds" not in status_after(200, (100, 1000.0))
    assert status_after(10**10, (1, 0.0), (2, 5.0))["estimatedRemainingSeconds"] == 2**31 - 1


def test_a_run_without_a_known_number_of_steps_has_no_percentage_before_its_end(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr(kubeflow, "_EVERY", 0.01)
    fit(tmp_path, max_epochs=None, max_time="1s", callbacks=[Slow()])
    assert "progressPercentage" not in server.posted[0][1]
    assert server.posted[-1][1]["progressPercentage"] == 100


@pytest.mark.parametrize("how", ["stop", "SIGTERM", "error"])
def test_only_a_fit_that_has_ended_by_itself_is_complete(server, tmp_path, how):
    def act(trainer):
        if how == "stop":
            trainer.stop("enough")
        elif how == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        else:
            raise ArithmeticError

    raises = {"SIGTERM": pytest.raises(SystemExit), "error": pytest.raises(ArithmeticError)}
    with raises.get(how, nullcontext()):
        fit(tmp_path, callbacks=[Slow(act)])
    assert (server.posted[-1][1]["progressPercentage"] == 100) is (how == "stop")


def test_the_token_is_read_again(server, tmp_path):
    kubeflow._post({"trainerStatus": {}})
    server.token = "second"
    (tmp_path / "token").write_text("second")
    kubeflow._post({"trainerStatus": {}})
    assert len(server.posted) == 2


@pytest.mark.parametrize(
    "fault", ["500", "redirect", "another certificate", "no server", "http", "no token"]
)
def test_a_server_that_fails_is_a_warning_and_the_run_ends_well(
    server, certificates, tmp_path, monkeypatch, capsys, fault
):
    monkeypatch.setattr(kubeflow, "_EVERY", 0.01)
    if fault in ("500", "redirect"):
        server.answer = 500 if fault == "500" else 307
    elif fault == "another certificate":
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", str(certificates / "another.crt"))
    elif fault == "no server":
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://localhost:9/status")
    elif fault == "http":
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://localhost:{server.server_port}/status")
    else:
        (tmp_path / "token").unlink()
    trainer = fit(tmp_path, callbacks=[Slow()])
    assert trainer.global_step == trainer.total_steps
    assert server.posted == []
    printed = capsys.readouterr().out
    assert printed.count("warning: the TrainJob's status is not reported") == 1
    assert "Bearer" not in printed


def test_reports_continue_after_an_outage(server, tmp_path, monkeypatch):
    monkeypatch.setattr(kubeflow, "_EVERY", 0.01)
    server.answer = 500
    fit(tmp_path, callbacks=[Slow(lambda trainer: setattr(server, "answer", 200))])
    assert server.posted[-1][1]["progressPercentage"] == 100


def test_a_server_that_never_answers_holds_neither_steps_nor_the_checkpoint_up(
    server, tmp_path, monkeypatch, capsys
):
    """Step 3 ends when the server has the first report, which it keeps to the end of the test."""
    monkeypatch.setattr(kubeflow, "_SECONDS", 120.0)
    server.answer = None
    last_step, reports, post = 6, [], kubeflow._post

    def noting_post(content):
        reports.append([path.name for path in tmp_path.rglob("checkpoints/*/manifest.json")])
        post(content)

    class Ends(Callback):
        def on_fit_end(self, trainer):
            assert trainer.global_step == last_step
            assert "timed out" not in capsys.readouterr().out  # nothing has waited for it
            monkeypatch.setattr(kubeflow, "_SECONDS", 0.1)

    monkeypatch.setattr(kubeflow, "_post", noting_post)
    steps = Slow(lambda trainer: server.is_asked.wait(60))
    trainer = fit(tmp_path, callbacks=[steps, Ends()])
    assert server.is_asked.is_set()
    assert trainer.global_step == last_step
    assert (len(reports), bool(reports[0]), bool(reports[1])) == (2, False, True)  # the last is the last
    assert "timed out" in capsys.readouterr().out


@pytest.mark.parametrize("loggers", [["-kubeflow"], False])
def test_it_can_be_left_out(server, tmp_path, loggers):
    fit(tmp_path, loggers)
    assert server.posted == []


def test_it_is_not_there_outside_of_a_train_job(tmp_path, monkeypatch):
    for name in ("URL", "CA_CERT", "TOKEN"):
        monkeypatch.delenv(f"KUBEFLOW_TRAINER_SERVER_{name}", raising=False)
    assert not any(isinstance(one, KubeflowStatus) for one in fit(tmp_path).callbacks)


def test_one_rank_reports_for_all(server, tmp_path):
    names = ("URL", "CA_CERT", "TOKEN")
    variables = {n: os.environ[n] for n in (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in names)}
    job = Path(__file__).with_name("kubeflow_job.py")
    run_ranks(job, 2, folder=tmp_path, environment=variables, seconds=120)
    assert server.posted[-1][1]["progressPercentage"] == 100
    assert 1 <= len(server.posted) <= 2  # the first row and the end
