"""What the inputs are: their scale, and what is done to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import tensors_in
from .probe import probe
from .subject import Subject

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)


def first_layer_input(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """The largest float input of a training batch, and what the first layer with weights got of it."""
    batch = subject.train_batches[0] if subject.train_batches else None
    floats = [t for _, t in tensors_in(batch) if t.dtype.is_floating_point and t.dim() > 1]
    wide = max(floats, key=Tensor.numel, default=None)
    if wide is None:
        return None
    module = subject.copy(trained=False)
    with torch.no_grad():
        leaves = subject.step(module, batch).leaves
    for leaf in leaves:
        if isinstance(leaf.part, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)):
            return None
        if isinstance(leaf.part, _LAYERS) and leaf.given is not None and len(leaf.given) == len(wide):
            return wide, leaf.given
    return None


@probe("unscaled-inputs")
def inputs_of_the_first_layer(subject: Subject) -> Iterator[Evidence]:
    """The first layer gets bytes, or columns of very different units."""
    if not subject.module.automatic_optimization:
        yield from _watched_inputs(subject)
        return
    found = first_layer_input(subject)
    if found is None:
        return
    given = found[1].double()
    size = float(given.square().mean().sqrt())
    if given.dim() >= 3 or given.shape[-1] > 64:
        if size > 30:
            yield Evidence(
                f"the first layer gets inputs of a size of {size:.3g}, up to {float(given.max()):.4g}",
                "normalise the inputs: images to [0, 1], then by mean and deviation",
            )
        return
    spread = given.reshape(-1, given.shape[-1]).std(0)
    means = given.reshape(-1, given.shape[-1]).mean(0).abs()
    sizes = (spread.square() + means.square()).sqrt()
    known = sizes[sizes > 0]
    if len(known) and float(known.max()) > 50:
        yield Evidence(
            f"inputs of the first layer have sizes from {float(known.min()):.2g} to "
            f"{float(known.max()):.2g}",
            "standardise each column with the mean and deviation of the training part",
        )


def _watched_inputs(subject: Subject) -> Iterator[Evidence]:
    """The same of what the callback has seen, where a step cannot be called by itself."""
    for name, facts in subject.seen.layers.items():
        part, given = subject.module.get_submodule(name), facts.first_input
        if not isinstance(part, _LAYERS) or given is None or "float" not in given.dtype or given.made_by:
            continue
        if given.std > 30 and given.maximum > 60:
            yield Evidence(
                f"{name} gets inputs of {given.mean:.3g} ± {given.std:.3g}, up to {given.maximum:.4g}",
                "normalise the inputs: images to [0, 1], then by mean and deviation",
            )


@probe("normalised-twice")
def inputs_scaled_once_more(subject: Subject) -> Iterator[Evidence]:
    """Inputs that are normalised already are shifted and scaled before the first layer."""
    found = first_layer_input(subject)
    if found is not None:
        wide, given = (one.double() for one in found)
        scale = _affine(wide, given)
        spread, mean = float(wide.std()), float(wide.mean())
        is_standard = abs(mean) < 0.25 and 0.6 < spread < 1.6
        is_unit = float(wide.min()) >= 0 and 0.2 < float(wide.max()) <= 1.0
        if (
            scale is not None
            and (is_standard or is_unit)
            and not 0.3 < scale < (1.3 if is_standard else 20)
        ):
            yield Evidence(
                f"inputs of {mean:.2g} ± {spread:.2g} are normalised already, and are scaled once more, "
                f"by {scale:.3g}",
                "normalise once, in the data or in the module",
            )
            return
        moved = abs(float(given.mean()) - mean) > 0.7 and not 0.3 < float(given.std()) / spread < 2.5
        if is_standard and wide.shape == given.shape and moved:
            yield Evidence(
                f"inputs of {mean:.2g} ± {spread:.2g} are normalised already, and the first layer gets "
                f"{float(given.mean()):.2g} ± {float(given.std()):.2g}",
                "normalise once, in the data or in the module",
            )
            return
        if float(given.abs().max()) < 0.03 and float(given.abs().max()) > 0:
            yield _tiny(given)
            return
    table = subject.table("train")
    numbers = table.numbers()
    if numbers is None or numbers.shape[1] > 64 or len(numbers) < 32:
        return
    spreads, means = numbers.double().std(0), numbers.double().mean(0)
    far = (means.abs() > 3 * spreads) & (spreads > 1e-6) & (spreads < 0.7) & (means.abs() < 50)
    if int(far.sum()) >= max(2, 0.6 * len(spreads)) and float(means.abs().max()) < 20:
        yield Evidence(
            f"{int(far.sum())} of {len(spreads)} columns have a mean of more than 3 deviations, as those "
            "that are normalised once more",
            "normalise once, with the mean and deviation of these columns",
        )


def _affine(wide: Tensor, given: Tensor) -> float | None:
    """The factor by which ``given`` was scaled from ``wide``; None where that is not all."""
    if wide.shape != given.shape or torch.equal(wide, given):
        return None
    a, b = wide - wide.mean(), given - given.mean()
    factor = float((a * b).sum() / (a * a).sum())
    error = float((b - factor * a).square().mean().sqrt())
    return abs(factor) if error < 1e-3 * float(b.square().mean().sqrt()) + 1e-12 else None


def _tiny(given: Tensor) -> Evidence:
    return Evidence(
        f"the first layer gets inputs of at most {float(given.abs().max()):.2g}, as of a second division",
        "normalise once, in the data or in the module",
    )


@probe("all-padding")
def inputs_that_are_constant(subject: Subject) -> Iterator[Evidence]:
    """Nearly all of the inputs is one value."""
    table = subject.table("train")
    for place, one in table.inputs.items():
        if one.numel() < 256 or one.dim() < 2 or one[0].numel() < 4:
            continue
        usual = one.flatten()[:: max(1, one.numel() // 5000)].float().mode().values
        share = float((one.float() == usual).float().mean())
        rows = int((one.reshape(len(one), -1).float() != usual).any(1).sum())
        is_lone = one.numel() == max(t.numel() for t in table.inputs.values())
        if share > 0.995 and is_lone and rows < 0.5 * len(one):
            yield Evidence(
                f"{share:.1%} of the input {place!r} is {float(usual):g}: all of {len(one) - rows} rows of "
                f"{len(one)}",
                "see how inputs are padded, cut and converted",
            )
