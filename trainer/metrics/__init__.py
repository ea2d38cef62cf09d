"""Logged values: accumulated per rank, reduced over all ranks, passed to the loggers."""
