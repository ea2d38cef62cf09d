"""What is measured while a run lasts: time, memory, norms, rates, ranks that are slow or differ."""
