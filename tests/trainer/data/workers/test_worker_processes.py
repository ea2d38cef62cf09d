"""Loader workers and the process they read for."""

import subprocess
import sys
import time

import psutil
import pytest
from helpers.environment import clean_environment

READ = """
import multiprocessing, os, sys, time
from torch.utils.data import DataLoader
from paceline.trainer.data.seeded_loader import private_copy
from paceline.trainer.data.workers.worker_processes import processes_of

def begin(worker):
    parent = os.getppid()
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    loader = private_copy(DataLoader(range(8), num_workers=1, worker_init_fn=begin))
    processes_of(loader)
    next(iter(loader))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_ends_when_its_process_is_killed_before_it_reads(tmp_path, method):
    """torch's worker takes whatever parent it has when it begins to read for its own."""
    script = tmp_path / "read.py"
    script.write_text(READ)
    command = [sys.executable, str(script), method]
    reader = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    worker = None
    try:
        worker = psutil.Process(int(reader.stdout.readline()))
        reader.kill()
        deadline = time.monotonic() + 60
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the worker was left behind"
            time.sleep(0.05)
    finally:
        reader.kill()
        reader.wait()
        if worker is not None and worker.is_running():
            worker.kill()
        reader.stdout.close()
