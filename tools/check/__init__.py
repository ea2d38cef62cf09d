"""Checks of a training program on request: a short fit that is watched, then probes of copies and data."""
