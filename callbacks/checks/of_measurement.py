"""Checks of measurement: metrics, monitors, and what validation does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from .finding import Evidence, check
from .layer_watch import DROPOUTS, NORMS
from .seen import Seen

_LOW = {"loss", "losses", "error", "perplexity", "ppl", "mse", "rmse", "mae", "nll", "bpc", "wer", "cer"}
HIGH = {"accuracy", "acc", "f1", "auc", "auroc", "iou", "miou", "bleu", "r2", "psnr", "ssim", "precision"}
HIGH |= {"recall", "map", "ndcg", "dice", "top1", "top5", "rouge", "correlation", "pearson", "spearman"}
_TURNED = {"neg", "negative", "minus", "inverse", "inv", "one", "1"}


def words_of(name: str) -> list[str]:
    """The words of the name of a value, in lower case."""
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


@check("wrong-split-metric", at="steps")
def validation_name_in_training(seen: Seen) -> Iterator[Evidence]:
    """A training step logs a value under the name of validation."""
    for name in sorted(seen.logged.get("train", ())):
        phase, _, rest = name.partition("/")
        if phase != "train" and name not in seen.logged_first:
            continue  # a callback may have measured it
        first = words_of(rest if phase == "train" else phase)[:1]
        if first and first[0] in ("val", "validation", "test") and rest:
            yield Evidence(
                f"a training step logs {rest if phase == 'train' else name}, which is named as of "
                f"{'test' if first[0] == 'test' else 'validation'}",
                'log it in validation_step, or without the prefix: "loss" is train/loss and val/loss',
            )


@check("wrong-split-metric", at="validation")
def training_name_in_validation(seen: Seen) -> Iterator[Evidence]:
    """A validation step logs a value under the name of training."""
    loaders = [name for name in seen.data if "train" in name.lower() and name != "train"]
    for name in sorted(seen.logged.get("val", ())):
        phase, _, rest = name.partition("/")
        first = words_of(rest)[:1]
        compared = set(words_of(rest)) & {"gap", "difference", "diff", "ratio", "vs", "minus", "val"}
        if phase == "val" and first and first[0] in ("train", "training") and not (loaders or compared):
            yield Evidence(
                f"validation logs {rest}, which is named as of training",
                'log it without the prefix: "loss" is train/loss and val/loss',
            )


@check("monitor-direction", at="start")
def monitor_goes_the_wrong_way(seen: Seen) -> Iterator[Evidence]:
    """The mode of a monitor is the reverse of what the name of its value says."""
    for who, name, mode in seen.monitors:
        words = set(words_of(name.rpartition("/")[2]))
        low, high = words & _LOW, words & HIGH
        if words & _TURNED or ("log" in words and "likelihood" in words):
            continue
        if (mode == "max" and low and not high) or (mode == "min" and high and not low):
            yield Evidence(
                f"{who} takes a {'high' if mode == 'max' else 'low'} {name} for better (mode={mode!r})",
                f"mode={'min' if mode == 'max' else 'max'!r}",
            )


def _depends_on_mode(part: nn.Module) -> bool:
    return isinstance(part, (*DROPOUTS, *NORMS)) and getattr(part, "p", 1.0) > 0


@check("validation-mode", at="validation")
def validation_in_training_mode(seen: Seen) -> Iterator[Evidence]:
    """Parts of the module are in training mode when validation steps end."""
    inside = {name for name, facts in seen.layers.items() if facts.modes.get("val") == {True}}
    parts = dict(seen.module.named_modules())
    moved = {name for name, facts in seen.layers.items() if True in facts.modes.get("val", ())}
    above = [name for name in moved if name in parts and not _depends_on_mode(parts[name])]
    moving = [
        name
        for name in sorted(inside)
        if name in parts and _depends_on_mode(parts[name]) and any(_is_above(one, name) for one in above)
    ]
    if moving:
        kind = type(parts[moving[0]]).__name__
        yield Evidence(
            f"validation runs in training mode: {len(moving)} layers are, such as {moving[0]} ({kind})",
            "leave out the call of train() that sets it, or pass the mode on: super().train(mode)",
        )


_CARRIED = {"hidden", "state", "states", "cache", "cached", "memory", "carry", "last", "previous", "prev"}
"""Words of buffers that carry something from batch to batch, in validation as well."""


def _is_above(one: str, name: str) -> bool:
    return not one or name.startswith(f"{one}.")


@check("validation-trains", at="validation")
def validation_updates_weights(seen: Seen) -> Iterator[Evidence]:
    """An optimizer that has weights of the module steps in a validation."""
    own = {id(one.parameter) for one in seen.parameters.values()}
    steps = [
        one
        for one in seen.updates
        if one.phase == "val" and any(id(p) in own for g in one.optimizer.param_groups for p in g["params"])
    ]
    if steps:
        yield Evidence(
            f"an optimizer steps in validation, {len(steps)} times so far",
            "take backward and step out of validation_step",
        )


@check("validation-trains", at="validation")
def validation_moves_statistics(seen: Seen) -> Iterator[Evidence]:
    """Buffers that training steps change are changed by validation steps too."""
    both = seen.changed_buffers.get("train", set()) & seen.changed_buffers.get("val", set())
    parts = dict(seen.module.named_modules())
    both = {
        name
        for name in both
        if not hasattr(parts.get(name.rpartition(".")[0]), "compute") and not set(words_of(name)) & _CARRIED
    }
    if both:
        yield Evidence(
            f"validation changes {sorted(both)[0]}, which training steps change too",
            "change it only where self.training is True",
        )


@check("selected-on-test", at="test")
def test_data_is_validation_data(seen: Seen) -> Iterator[Evidence]:
    """The samples of the test are those by which checkpoints, rates or the end of training were chosen."""
    watched = [who for who, name, _ in seen.monitors if name.startswith("val/")]
    held_out = {row for one in seen.batches.get("val", ()) for row in one.rows}
    tested = [row for one in seen.batches.get("test", ()) for row in one.rows]
    same = sum(row in held_out for row in tested)
    if watched and len(tested) >= 8 and len(set(tested)) > len(tested) / 2 and same >= 0.8 * len(tested):
        yield Evidence(
            f"{same} of {len(tested)} samples of the test are those of validation, which {watched[0]} uses",
            "keep samples for the test that nothing is chosen by",
        )
