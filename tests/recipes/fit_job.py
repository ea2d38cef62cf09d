"""Runs a command of paceline, and sends SIGTERM to rank 0 at the end of a step; 0: at none.

python fit_job.py STEP ARGUMENTS...

Llama's norms have the precision of the run. As they are they round to float32 in each: two layouts would
differ by 1e-9 in float64 once a sum of theirs rounds the other way. One device computes the logits of all
tokens at once, and ranks those of some.
"""

from __future__ import annotations

import os
import sys

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from paceline.__main__ import main
from paceline.common.faultpoints import Fault, arm
from paceline.recipes.networks import head_loss
from paceline.trainer.faults import stop_agreement as agreement


def norm(self: LlamaRMSNorm, states: torch.Tensor) -> torch.Tensor:
    return self.weight * (
        states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.variance_epsilon)
    )


if __name__ == "__main__":
    LlamaRMSNorm.forward = norm  # type: ignore[method-assign]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        head_loss.MOST_LOGITS = 50 * 4 * 1024  # bytes: of 50 tokens with the tiny tokenizer's vocabulary
    if int(sys.argv[1]):
        agreement._SECONDS = 0.0  # ranks agree in every step, as though steps took long
        arm(Fault("step.end", "SIGTERM", int(sys.argv[1]), 0))
    sys.argv = ["paceline", *sys.argv[2:]]
    main()
