"""The blocks that a model repeats: their activations; parameters given or fetched block by block."""
