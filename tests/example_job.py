"""Runs a script of docs/examples in 64 bits: SCRIPT STOP; it is stopped after that step, where that is not 0."""

import functools
import runpy
import sys

from helpers.stops import StopsAt

import paceline

original = paceline.Trainer
script, stop = sys.argv[1], int(sys.argv[2])


@functools.wraps(original)
def exact(callbacks=(), **options):
    return original(callbacks=[*callbacks, *([StopsAt(stop)] if stop else [])], precision="64", **options)


paceline.Trainer = exact
sys.argv = [script]
sys.path.insert(0, "")
runpy.run_path(script, run_name="__main__")
