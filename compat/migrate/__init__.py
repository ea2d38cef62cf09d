"""``paceline migrate``: what of code for another trainer runs here, and what has to be rewritten."""
