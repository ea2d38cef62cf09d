"""The folder of a run: files, lock, resuming, and reading a run back."""
