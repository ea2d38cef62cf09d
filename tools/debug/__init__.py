"""Tools to look into a run: replay of a step, invariance to the layout."""
