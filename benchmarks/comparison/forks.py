"""Programs one after another, each in a fork of a process that has imported what takes long to import.

python forks.py PACKAGE JOBS.json; a job is a folder, the program in it, and arguments. Exit codes and
process ids take the place of the jobs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

DEADLINE = 90


def run(folder: str, program: str, arguments: str) -> None:
    """The program as ``python PROGRAM`` would run it, with what it prints in a file; does not return."""
    os.chdir(folder)
    printed = os.open("printed.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.argv = [program, *arguments.split()]
    names = sys.modules["__main__"].__dict__
    names["__file__"] = program
    code = 0
    try:
        exec(compile(Path(program).read_text(), program, "exec"), names)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        own = error.__traceback__
        sys.excepthook(type(error), error, own.tb_next if own else None)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    importlib.import_module(sys.argv[1])
    ends: list[tuple[int | None, int]] = []
    for job in json.loads(Path(sys.argv[2]).read_text()):
        child = os.fork()
        if child == 0:
            run(*job)
        end, ended, status = time.monotonic() + DEADLINE, 0, 0
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        ends.append((os.waitstatus_to_exitcode(status) if ended else None, child))
    Path(sys.argv[2]).write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
