"""From Lightning's names, arguments and places in the loop to ours. Nothing here trains anything."""

LIGHTNING_VERSION = "2.6.6"
"""The Lightning whose names and numbers these are: programs ask for it, and files name it."""
