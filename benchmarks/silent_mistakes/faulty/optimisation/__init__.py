"""Mistakes in optimisation: rates, schedules, decay, gradients, averages."""
