"""What in a model draws or mixes samples, and so cannot be the same however a step is spread."""

from __future__ import annotations

from torch import nn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def draws(part: nn.Module) -> bool:
    """Whether a layer draws random numbers in its forward: one of torch's dropouts, at work."""
    if isinstance(part, _DROPOUTS):
        return part.training and part.p > 0
    if isinstance(part, (nn.MultiheadAttention, nn.RNNBase)):
        return part.training and part.dropout > 0
    return False


def stop_drawing(part: nn.Module) -> None:
    """Switch a layer's dropout off."""
    if isinstance(part, _DROPOUTS):
        part.p = 0.0
    elif isinstance(part, (nn.MultiheadAttention, nn.RNNBase)):
        part.dropout = 0.0


def mixes(part: nn.Module) -> bool:
    """Whether what a layer gives for a sample depends on the others: a batch norm, at work."""
    return isinstance(part, _BATCH_NORMS) and part.training


def not_as_in_one_batch(module: nn.Module, ranks: int, micro_batches: int, synced: bool) -> list[str]:
    """What will not be as if one device took each step as one batch.

    Args:
        module: Its submodules are searched for dropout and batch norms.
        ranks: The world size.
        micro_batches: Micro-batches of a rank in a step.
        synced: Batch norms take their statistics over all ranks.
    """
    if ranks * micro_batches == 1:
        return []
    found = []
    if any(map(draws, module.modules())):
        found.append("dropout draws separately for each rank and micro-batch")
    over_ranks = ranks > 1 and not synced
    if (over_ranks or micro_batches > 1) and any(map(mixes, module.modules())):
        cure = " (sync_batchnorm=True takes all ranks')" if over_ranks else ""
        found.append(f"batch norms take a micro-batch's statistics{cure}")
    return found
