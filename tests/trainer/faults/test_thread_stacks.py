"""The stacks of all threads, which other libraries' threads must not make a crash of."""

import signal
import subprocess
import sys
import threading

import pytest

from paceline.trainer.faults.thread_stacks import all_stacks

# As gloo's threads do, whenever one of them lets go of a tensor.
COME_AND_GO = """
import ctypes, os, threading, time
import {module} as module

system = ctypes.CDLL(None)
system.pthread_create.argtypes = [ctypes.c_void_p] * 4
system.pthread_join.argtypes = [ctypes.c_void_p] * 2
nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)

def come_and_go():
    while True:
        thread = ctypes.c_ulong()
        system.pthread_create(ctypes.addressof(thread), None, ctypes.cast(nothing, ctypes.c_void_p), None)
        system.pthread_join(thread.value, None)

for _ in range(4):
    threading.Thread(target=come_and_go, daemon=True).start()
end = time.monotonic() + {seconds}
with open(os.devnull, "w") as file:
    while time.monotonic() < end:
        {look}
os._exit(0)
"""


def ended(module, look, seconds):
    code = COME_AND_GO.format(module=module, look=look, seconds=seconds)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_threads_of_other_libraries_may_come_and_go_meanwhile():
    done = ended("paceline.trainer.faults.thread_stacks", "module.all_stacks()", 2)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_which_ends_a_process_that_asks_faulthandler():
    """Else the test above shows nothing."""
    look = "module.dump_traceback(file, all_threads=True)"
    assert ended("faulthandler", look, 40).returncode == -signal.SIGSEGV


def test_each_thread_is_named_with_where_it_is():
    leave = threading.Event()

    def waits_here():
        leave.wait()

    thread = threading.Thread(target=waits_here, name="the other")
    thread.start()
    try:
        own, *others = all_stacks().split("\n\n")
    finally:
        leave.set()
        thread.join()
    assert "MainThread (most recent call first):" in own.splitlines()[0]
    line = test_each_thread_is_named_with_where_it_is.__code__.co_firstlineno
    assert any(f'  File "{__file__}", line {n} in test_each_thread' in own for n in range(line, line + 14))
    (other,) = [text for text in others if ", the other (most recent call first):" in text]
    assert "waits_here" in other


def test_nothing_that_a_caller_holds_outlives_it():
    """Garbage collection is off in a step: frames that refer to themselves would stay."""
    code = """
import gc, weakref
from paceline.trainer.faults.thread_stacks import all_stacks
gc.disable()
class Large: pass
def holds():
    large = Large()
    all_stacks()
    return weakref.ref(large)
raise SystemExit(holds()() is not None)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
