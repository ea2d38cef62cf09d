"""The devices of this machine, and what ranks can talk through on it."""
