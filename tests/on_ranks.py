"""Runs a job on ranks forked from one process, which has imported what each of them would.

python on_ranks.py JOB RANKS ARGUMENTS...

Each rank is the script ``JOB RANKS ARGUMENTS...`` in the environment that a launcher would give it; one
rank alone is the script as it is. A rank's imports take three seconds, its cases often less. The package's
own launch has no part in it: ``strategies/test_launch.py`` is about that.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

free_port = runpy.run_path(str(Path(__file__).with_name("ports.py")))["free_port"]
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG
_SECONDS_BEHIND_AN_ERROR = 20  # for the other ranks, which may name it


def import_what_all_need() -> None:
    """Nothing of it may start a thread: a process that has some cannot be forked."""
    import torch._dynamo
    import torch.distributed.fsdp

    import paceline.callbacks
    import paceline.strategies  # noqa: F401

    with open(sys.argv[0]) as job:
        if "deepspeed" in job.read() + " ".join(sys.argv):
            import deepspeed  # noqa: F401
            import torch._inductor.compile_fx  # noqa: F401
    assert len(os.listdir("/proc/self/task")) == 1


def forked(rank: int, ranks: int, port: int) -> int:
    """The process of a rank."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return 0


def main() -> int:
    """The ranks' exit code: 0 where all of them ended so."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    ranks = int(sys.argv[1])
    if ranks == 1:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"  # else numpy starts some threads
    import_what_all_need()
    port = free_port()
    alive = {forked(rank, ranks, port): rank for rank in range(ranks)}
    signal.signal(signal.SIGALRM, lambda *_: [os.kill(child, signal.SIGKILL) for child in alive])
    code = 0
    while alive:
        child, status = os.wait()
        rank = alive.pop(child)
        if status and not code:
            code = 1
            print(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
            signal.alarm(_SECONDS_BEHIND_AN_ERROR)
    return code


if __name__ == "__main__":
    sys.exit(main())
