"""What is drawn: curves, samples, confusion matrices."""
