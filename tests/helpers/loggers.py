"""A logger to read back from in a test."""

from paceline.callbacks import Logger

NO_DEFAULTS = ("-jsonl", "-tensorboard", "-curves")
"""Beside other loggers: these alone."""


class Rows(Logger):
    """Keeps every row in memory."""

    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(dict(row))

    def series(self, name):
        return [(row["step"], row[name]) for row in self.rows if name in row]
