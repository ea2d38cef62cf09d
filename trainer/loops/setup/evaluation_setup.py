"""Everything between ``validate(...)``, ``test(...)`` or ``predict(...)`` and its result, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ....callbacks.hooks import HookTable
from ....common.argument_checks import SWITCH, check_arguments
from ....errors import PacelineError
from ...checkpoint.weights import find_weights, load_weights
from ...data.factory import check_loader
from ...data.sources import evaluation_feeds, find_data, missing_data
from ...module import is_overridden, missing_method
from ...phases import PHASES, STEPS
from ...utils.paths import as_path
from ..context import StageContext
from ..evaluation_loop import EvaluationLoop
from ..feed_settings import FeedRequest
from ..fit_context import FitContext
from ..predictions import GatheredPredictions, NoPredictions, Predictions, PredictionSink, PredictionWriter


def prepare(
    context: StageContext, dataloader: Any, datamodule: Any, weights: str | Path | None
) -> EvaluationLoop:
    """Data, the module on its device, weights: a loop that is ready to run."""
    module, stage = context.module, context.name
    require_step(module, stage)
    kind = PHASES[stage]
    off = getattr(context.settings, f"limit_{kind}_batches") == 0
    data = {} if off else find_data(dataloader, kind, datamodule, module, "dataloader")
    if off:
        context.directory.log_line(f"limit_{kind}_batches=0: nothing to {stage}")
    if data is None:
        raise PacelineError(
            f"there is no data to {stage} with",
            code="no-data",
            allowed=f"{stage}(module, dataloader), a DataModule, or {kind}_dataloader on the module",
            fix=missing_data(kind, datamodule, module),
        )
    context.strategy.setup(module, lambda: None)
    if weights is not None:
        load_weights(module, _find(context, weights), context.strategy)
    feeds = evaluation_feeds(data, FeedRequest(context).for_evaluation(stage))
    for feed in feeds.values():
        context.closing.callback(feed.close)
    return EvaluationLoop(context, stage, feeds)


def _find(context: StageContext, weights: str | Path) -> Path:
    trainer = context.trainer
    named = {"best": lambda: trainer.run.best, "latest": lambda: trainer.run.latest}
    find = named.get(weights) if isinstance(weights, str) else None
    found: Path | None = context.ranks.on_rank_zero(find or (lambda: find_weights(weights, [*named])))
    if found is None:
        fix = "Checkpoint(monitor=...)" if weights == "best" else "fit first, or give a path"
        raise PacelineError(f"there is no {weights} checkpoint", code="checkpoint-not-found", fix=fix)
    return found


def require_step(module: Any, stage: str) -> None:
    """Refuse to evaluate with a step that was not written.

    Raises:
        PacelineError: naming it.
    """
    name = STEPS[stage]
    if not is_overridden(module, name):
        raise PacelineError(
            missing_method(module, name),
            code="method-missing",
            fix=f"write def {name}(self, batch, batch_idx)",
        )


def evaluation_of(context: FitContext, dataloader: Any, name: str) -> Callable[[], dict[str, float] | None]:
    """``trainer.loop.evaluation_of``; it calls no hooks of callbacks, which belong to the validation."""
    require_step(context.module, "validate")
    check_loader(dataloader, "validation", f"Evaluator {name!r}")
    feeds = evaluation_feeds({name: dataloader}, FeedRequest(context).for_evaluation("validate"))
    for feed in feeds.values():
        context.closing.callback(feed.close)
    alone = replace(context, hooks=HookTable(context.module, ()))
    loop = EvaluationLoop(alone, "validate", feeds)

    def run() -> dict[str, float] | None:
        found: dict[str, float] = {}
        whole = loop.run(found.update)
        context.logger.publish(found)
        return found if whole else None

    return run


def collect(loop: EvaluationLoop) -> dict[str, float]:
    """Run ``validate`` or ``test``: the reduced values by full name, which are logged as a line too."""
    values: dict[str, float] = {}
    loop.run(partial(_publish, loop, values))
    if loop.feeds:
        _show(loop, values)
    return values


def _predict(loop: EvaluationLoop, sink: PredictionSink) -> Any:
    values: dict[str, float] = {}
    outputs = loop.predict(sink, partial(_publish, loop, values))
    if values:
        _show(loop, values)
    return outputs


def _publish(loop: EvaluationLoop, values: dict[str, float], found: dict[str, float]) -> None:
    values.update(found)
    loop.context.logger.latest.update(found)


def _show(loop: EvaluationLoop, values: dict[str, float]) -> None:
    shown = "  ".join(f"{name} {value:.6g}" for name, value in values.items())
    loop.context.directory.log_line(f"{loop.stage}: {shown}")


def gather(only_rank_zero: bool, keep: bool) -> Callable[[EvaluationLoop], list[Any]]:
    """Runs ``predict``, and keeps its outputs in memory unless ``keep`` is False."""
    check_arguments("predict", only_rank_zero=(only_rank_zero, SWITCH), keep=(keep, SWITCH))

    def run(loop: EvaluationLoop) -> list[Any]:
        ranks = loop.context.ranks
        sink: PredictionSink = GatheredPredictions(ranks, only_rank_zero) if keep else NoPredictions()
        outputs: list[Any] = _predict(loop, sink)
        return outputs

    return run


def write(out: str | Path) -> Callable[[EvaluationLoop], Predictions]:
    """Runs ``predict`` and writes its outputs as they come."""
    folder = as_path(out, "predict(out=...)")

    def run(loop: EvaluationLoop) -> Predictions:
        stop = loop.context.stop
        writer = PredictionWriter(loop.context.ranks, folder, lambda: stop.asked)
        try:
            predictions: Predictions = _predict(loop, writer)
        except BaseException:
            writer.drop()
            raise
        return predictions

    return run
