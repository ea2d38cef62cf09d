"""Checkpoints: what they hold, how they are written, verified, loaded and exported."""
