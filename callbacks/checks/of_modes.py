"""Checks of modes."""
