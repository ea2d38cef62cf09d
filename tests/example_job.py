"""Runs a script of docs/examples in 64 bits and stops it after a step: SCRIPT STOP; 0 does not stop it."""

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
