"""Averages of the weights: exponential, of the last epochs, Lookahead."""
