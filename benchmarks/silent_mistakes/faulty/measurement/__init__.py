"""Mistakes in measurement: splits, metrics, monitors, the mode of validation."""
