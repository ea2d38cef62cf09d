"""Checks of optimization: rates, schedules, and the updates of the optimizers."""
