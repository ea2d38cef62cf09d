"""Tensors of which each rank holds a part: sharded, gathered, stored, as a state by name."""
