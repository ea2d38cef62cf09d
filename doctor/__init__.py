"""``paceline doctor``: whether training works here, found out by training a little."""
