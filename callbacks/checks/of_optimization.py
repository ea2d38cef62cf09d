"""Checks of optimization."""
