"""Checks of the loss: what it is given, and what it returns."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Evidence, check
from .seen import Seen


@check("softmax-twice", at="steps")
def probabilities_in_cross_entropy(seen: Seen) -> Iterator[Evidence]:
    """Cross-entropy computes a softmax itself."""
    calls = list(seen.losses_in("train", "cross_entropy"))
    if calls and all(call.output.sums_to_one and call.output.requires_grad for call in calls):
        yield Evidence(
            "cross_entropy gets probabilities: a softmax comes before it, and it computes one itself",
            "give it the outputs before the softmax",
        )
