"""Small functions on nested batches and text, which know nothing of a run."""
