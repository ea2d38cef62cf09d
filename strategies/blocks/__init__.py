"""The blocks that a model repeats: their activations; parameters that are given or fetched block by block."""
