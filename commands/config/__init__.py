"""``paceline config``: shows, checks and writes configurations."""
