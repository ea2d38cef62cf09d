"""Batches that change under way: their size, how many make a step, which part of one is looked at."""
