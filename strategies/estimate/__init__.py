"""What strategies say of themselves beforehand: the bytes of a rank, and the collectives of a step."""
