"""The process that forks the ranks of jobs, and what must live on when other parts of the tests end."""

import json
import os
import subprocess

import psutil
import pytest
from helpers import ranks
from helpers.browser import chromium
from helpers.rank_server import descendants


@pytest.mark.launch
def test_a_server_that_was_killed_is_replaced_for_the_next_job(tmp_path, monkeypatch):
    monkeypatch.delenv(ranks._SHARED, raising=False)
    server = ranks._Server()
    try:
        address = server.address("s3")
        (killed,) = descendants(server._process.pid)
        process = psutil.Process(killed)
        process.kill()
        process.wait(timeout=20)
        order = {"function": "os:_exit", "arguments": [7], "script": "none", "is_module": False, "ranks": 0}
        order |= {"environment": dict(os.environ), "environments": [{}], "folder": str(tmp_path)}
        order |= {"seconds": 20, "stdout": str(tmp_path / "out"), "stderr": str(tmp_path / "err")}
        with server.connected("s3") as connection:
            connection.sendall(json.dumps(order).encode() + b"\n")
            answers = [json.loads(line) for line in connection.makefile()]
        assert {"rank": 0, "code": 7} in answers, answers
        assert server.address("s3") == address
    finally:
        server.close()


@pytest.mark.launch
@pytest.mark.browser
def test_a_browser_that_ends_takes_no_other_process_with_it():
    with chromium() as driver:
        browser = psutil.Process(driver.service.process.pid)
        other = subprocess.Popen(["sleep", "1000"])  # as the server of ranks is, for a job of another test
    try:
        assert other.poll() is None
        assert not browser.is_running()
    finally:
        other.kill()
        other.wait(10)
