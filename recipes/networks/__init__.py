"""Networks of more than one recipe."""
