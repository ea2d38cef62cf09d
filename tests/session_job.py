"""Runs commands one after another in this folder, each in a fork: into pipes, or on its own terminal.

Prints one JSON list: for each command its exit code and what it printed.
"""

from __future__ import annotations

import json
import os
import pty
import runpy
import select
import sys
import time
from typing import Any

SECONDS = 60  # for a command


def run(words: list[str], terminal: bool) -> dict[str, Any]:
    """Run one command to its end."""
    if terminal:
        process, output = pty.fork()
        inputs = [output]
    else:
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        process = os.fork()
        inputs = [out, err]
    if process == 0:
        if not terminal:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(child_out, 1)
            os.dup2(child_err, 2)
        _main(words)
    if not terminal:
        os.close(child_out)
        os.close(child_err)
    printed = _read(inputs, process)
    _, status = os.waitpid(process, 0)
    texts = [printed[one].decode(errors="replace") for one in inputs]
    return {"code": os.waitstatus_to_exitcode(status), "out": texts[0], "err": "".join(texts[1:])}


def _main(words: list[str]) -> None:
    """Be the command; its own command line is one that can be started again."""
    sys.argv = ["paceline", *words]
    sys.orig_argv[:] = [sys.executable, "-m", "paceline", *words]
    os.environ["COLUMNS"] = "120"
    code: Any = 1
    try:
        runpy.run_module("paceline", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read(inputs: list[int], process: int) -> dict[int, bytes]:
    found, still = dict.fromkeys(inputs, b""), list(inputs)
    deadline = time.monotonic() + SECONDS
    while still:
        ready, _, _ = select.select(still, [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(process, 9)
            break
        for one in ready:
            try:
                data = os.read(one, 65536)
            except OSError:  # of a terminal whose process has ended
                data = b""
            found[one] += data
            if not data:
                still.remove(one)
    for one in inputs:
        os.close(one)
    return found


if __name__ == "__main__":
    terminal, commands = sys.argv[1] == "terminal", json.loads(sys.argv[2])
    print(json.dumps([run(words, terminal) for words in commands]))
