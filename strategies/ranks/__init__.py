"""What ranks tell each other: collectives, comparisons, replicas."""
