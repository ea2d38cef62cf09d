"""Gradients between backward and the update: summed, averaged, found finite or not."""
