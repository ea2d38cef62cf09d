"""Checks of measurement."""
