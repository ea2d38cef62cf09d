"""Ranks: the environment of this process, starting ranks, and the process group."""
