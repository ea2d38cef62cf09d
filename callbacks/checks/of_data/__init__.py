"""Checks of the data: its parts, order, samples, contents and targets."""
