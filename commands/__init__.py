"""The commands of the command line. None imports torch before it needs it: help is immediate."""
