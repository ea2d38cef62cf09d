"""What a run must live through: signals, NaN, hangs, out of memory, crashes."""
