"""Everything between ``validate(...)``, ``test(...)`` or ``predict(...)`` and its result, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import PacelineError
from ..checkpoint.weights import find_weights, load_weights
from ..data.sources import evaluation_feeds, find_data, require_step
from .evaluation_loop import PHASES, EvaluationLoop
from .predictions import GatheredPredictions, Predictions, PredictionWriter

if TYPE_CHECKING:
    from ..trainer import Trainer


def prepare(
    trainer: Trainer, stage: str, dataloader: Any, datamodule: Any, weights: str | Path | None
) -> EvaluationLoop:
    """Data, the module on its device, weights: a loop that is ready to run."""
    module = trainer.module
    require_step(trainer, stage)
    kind = PHASES[stage]
    data = find_data(dataloader, kind, datamodule, module)
    if data is None:
        raise PacelineError(
            f"there is no data to {stage} with",
            allowed=f"{stage}(module, dataloader), a DataModule, or {kind}_dataloader on the module",
        )
    trainer.strategy.setup(module, lambda: None)
    if weights is not None:
        named = {"best": lambda: trainer.best, "latest": lambda: trainer.latest}
        found = trainer.on_rank_zero(named.get(str(weights), lambda: find_weights(weights)))
        if found is None:
            fix = "Checkpoint(monitor=...)" if weights == "best" else "fit first, or give a path"
            raise PacelineError(f"there is no {weights} checkpoint", fix=fix)
        load_weights(module, found, trainer.strategy)
    feeds = evaluation_feeds(trainer, stage, data)
    trainer.feeds = list(feeds.values())
    return EvaluationLoop(trainer, stage, feeds)


def collect(trainer: Trainer, loop: EvaluationLoop) -> dict[str, float]:
    """Run ``validate`` or ``test``: the reduced values by full name, which are said too."""
    values: dict[str, float] = {}

    def publish(found: dict[str, float]) -> None:
        values.update(found)
        trainer.metrics.update(found)

    loop.run(publish)
    shown = "  ".join(f"{name} {value:.6g}" for name, value in values.items())
    trainer.say(f"{loop.stage}: {shown}")
    return values


def gather(only_rank_zero: bool) -> Callable[[Trainer, EvaluationLoop], list[Any]]:
    """Runs ``predict`` and keeps its outputs in memory."""

    def run(trainer: Trainer, loop: EvaluationLoop) -> list[Any]:
        outputs: list[Any] = loop.predict(GatheredPredictions(trainer, only_rank_zero))
        return outputs

    return run


def write(out: Path) -> Callable[[Trainer, EvaluationLoop], Predictions]:
    """Runs ``predict`` and writes its outputs as they come."""

    def run(trainer: Trainer, loop: EvaluationLoop) -> Predictions:
        writer = PredictionWriter(trainer, out)
        try:
            predictions: Predictions = loop.predict(writer)
        except BaseException:
            writer.drop()
            raise
        return predictions

    return run
