"""Checks of model."""
