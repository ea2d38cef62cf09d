"""Trainers for a script that a command runs again for one of its fits: replay, trace, one step."""
