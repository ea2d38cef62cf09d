"""What a probe raises where there is nothing for it."""


class NotHere(LookupError):
    """There is nothing of a kind that a probe looks at, such as validation data."""
