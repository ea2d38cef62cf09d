"""The process that forks the ranks of jobs, and what must live on when other parts of the tests end."""

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
    monkeypatch.setattr(ranks, "_servers", [server])
    try:
        server.address("s3")
        (killed,) = descendants(server._process.pid)
        process = psutil.Process(killed)
        process.kill()
        process.wait(timeout=20)
        job = tmp_path / "job.py"
        job.write_text("raise SystemExit(7)")
        outcome = ranks.run_ranks(job, 1, folder=tmp_path, s3=True, check=False)
        assert outcome.codes == [7], outcome.output
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
