"""What we know about an error out of user code, added to it as notes; its type and traceback stay."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import torch
import yaml

from ...errors import PacelineError, explain_sharded, nearest, shorten_traceback
from ...other_trainers import advice
from ...strategies.launch.job_notes import note_failure
from ..faults.crash_report import replay_command, write_crash_report
from ..faults.nan_trace import forward_line
from ..faults.out_of_memory import is_out_of_memory, memory_notes, write_snapshot
from ..module import TrainModule
from ..run.config_file import run_config
from ..utils.nested import describe, tensors_of
from ..utils.paths import shown_path
from .context import StageContext
from .evaluation_loop import EvaluationLoop
from .optimizer_step import OptimizerStep

_MISREAD = (ValueError, TypeError, AttributeError)
_AS_TUPLE = r"to unpack|must be Tensor, not (str|dict)|got \((str|dict)|'(str|dict)' object|unhashable"
_AS_ONE = r"to unpack|indices must|be Tensor, not (list|tuple)|got \((list|tuple)|'(list|tuple)' object"
_ENDED = re.compile(r"Tried to step \d+ times\. The specified number of total steps is (\d+)")
_GONE = "backward through the graph a second time"
_NO_BACKWARD = (
    "fix: the Trainer calls backward, on the loss that training_step returns: leave that call out; and "
    "detach() what is kept from one step to the next"
)
_LOG_CALL = re.compile(r"\.log\(\) (missing \d+ required|takes \d+ positional)")
_FULL = "PACELINE_TRACEBACK=full shows every frame"


def explain(error: BaseException, context: StageContext) -> None:
    """Mark an error that ends a run; add notes: the step, the batch, a cure, how to see it again."""
    shorten_traceback(error)
    explain_sharded(error)
    if not context.quiet:  # of a trial whose error nobody catches, it is noted when it is printed
        note_failure(error)
    if not isinstance(error, Exception):
        return
    if isinstance(error, AttributeError) and isinstance(error.obj, TrainModule):
        hint = advice("module.", error.name or "")
        if hint:
            error.add_note(f"fix: {hint}")
    frames = _frames_by_code(error)
    step = frames.get(OptimizerStep.automatic.__code__) or frames.get(OptimizerStep.manual.__code__)
    evaluation = frames.get(EvaluationLoop._read.__code__)
    if isinstance(error, PacelineError):
        pass  # it is complete
    elif is_out_of_memory(error):
        in_update = OptimizerStep.update.__code__ in frames
        _explain_memory(
            error, context, "evaluation" if evaluation is not None else "update" if in_update else "step"
        )
    elif evaluation is not None:
        _explain_evaluation(error, evaluation)
    elif step is not None:
        _explain_step(error, step, frames)
    if step is not None or not isinstance(error, PacelineError):
        report = None if _leaves_nothing(context) else _crash_report(error, context)
        note = _FULL if report is None else f"full traceback, stacks and settings: {shown_path(report)}"
        if report is not None and step is not None:
            command = replay_command(report.parent, context.state.global_step + 1)
            note += f"; to reproduce: {command}"
        error.add_note(note)


def _leaves_nothing(context: StageContext) -> bool:
    """Whether the run's folder goes with it: all that it has of the error is on the terminal."""
    fits = context.name == "fit" and not context.state.global_step
    return fits and context.directory.is_disposable


def _crash_report(error: Exception, context: StageContext) -> Path | None:
    folder, ranks, state = context.directory.path, context.ranks, context.state
    if folder is None:
        return None
    config = run_config(context.directory.name, context.settings, context.strategy, context.module)
    where = (
        f"{context.name}, {state.step_label}, {state.position} samples into the epoch, "
        f"rank {ranks.rank} of {ranks.world_size}, process {os.getpid()}"
    )
    parts = {
        "metrics": json.dumps(context.logger.latest, indent=1),
        "configuration": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
    }
    return write_crash_report(folder, ranks.rank, error, where, parts)


def _explain_memory(
    error: Exception, context: StageContext, where: Literal["step", "update", "evaluation"]
) -> None:
    strategy, optimizers = context.strategy, context.trainer.optimizers
    error.add_note(f"in {context.name if where == 'evaluation' else context.state.step_label}")
    size = context.state.micro_batch
    for note in memory_notes(strategy, context.module, optimizers, where, size):
        error.add_note(note)
    snapshot = write_snapshot(strategy, context.directory.path)
    if snapshot is not None:
        error.add_note(f"who holds the memory: {snapshot}, for pytorch.org/memory_viz")


def _frames_by_code(error: BaseException) -> dict[CodeType, FrameType]:
    return {frame.f_code: frame for frame, _ in traceback.walk_tb(error.__traceback__)}


def _explain_evaluation(error: Exception, frame: FrameType) -> None:
    loop, batch = frame.f_locals["self"], frame.f_locals.get("batch")
    if batch is not None:
        place = f"{loop.stage}, batch {frame.f_locals['batch_idx']}"
        _explain_batch(error, place, batch)


def _explain_step(error: Exception, frame: FrameType, frames: dict[CodeType, FrameType]) -> None:
    loop = frame.f_locals["self"]
    batch = frame.f_locals.get("batch")
    if batch is None and frame.f_locals.get("batches"):
        batch = frame.f_locals["batches"][0]
    code = getattr(type(loop.context.module).training_step, "__code__", None)
    in_users_step = code in frames
    if batch is None or not (in_users_step or "modified by an inplace" in str(error)):
        error.add_note(f"in {loop.state.step_label}")
        if _GONE in str(error) and loop.context.module.automatic_optimization:
            error.add_note(_NO_BACKWARD)
        if ended := _ENDED.search(str(error)):
            error.add_note(f"fix: {_longer_schedule(int(ended[1]), loop.context)}")
        return
    if "modified by an inplace operation" in str(error):
        place = _saved_where(loop, batch) or "an operation of training_step"
        error.add_note(
            f"in {loop.state.step_label}: backward needs a tensor that was changed in place. "
            f"It was saved at {place}."
        )
        error.add_note(
            "fix: after that line, write x = x + y instead of x += y, x.add(y) instead of x.add_(y), "
            "and leave inplace=True out of activations"
        )
        return
    _explain_batch(error, loop.state.step_label, batch)


def _explain_batch(error: Exception, place: str, batch: Any) -> None:
    error.add_note(f"in {place}, on the batch {describe(batch)}")
    cure = _cure(error, batch)
    if cure:
        error.add_note(f"fix: {cure}")


def _cure(error: Exception, batch: Any) -> str | None:
    text = str(error)
    if isinstance(error, TypeError) and (call := _LOG_CALL.search(text)):
        more = ", prog_bar=True" if call[1].startswith("takes") else ""
        return f"self.log(name, value{more}), or self.log_dict({{name: value}})"
    tensors = tensors_of(batch)
    if isinstance(batch, Mapping):
        key = _missed_key(error, batch)
        if key is not None or (isinstance(error, _MISREAD) and re.search(_AS_TUPLE, text)):
            key = next(iter(batch), "key") if key is None else key
            keys = ", ".join(map(repr, list(batch)[:8])) + (", ..." if len(batch) > 8 else "")
            return f"the batch is a dict with the keys {keys}: take its values by key, batch[{key!r}]"
    if isinstance(batch, (tuple, list)) and isinstance(error, _MISREAD) and re.search(_AS_ONE, text):
        kind = type(batch).__name__
        return f"the batch is a {kind} of {len(batch)}: unpack it as {len(batch)} values"
    if "Expected more than 1 value per channel" in text and any(len(t) == 1 for t in tensors if t.ndim):
        return (
            "batch norm cannot normalise one sample: drop_last=True in the training DataLoader skips the "
            "last batch of an epoch where it is smaller than the others"
        )
    if isinstance(error, RuntimeError) and re.search(r"dtype|Byte|type|Long|Double|Half", text):
        small = [t for t in tensors if t.dtype == torch.uint8]
        if small:
            return "uint8 images go into a model as floats: images.float() / 255, in the dataset or here"
        doubles = [t for t in tensors if t.dtype == torch.float64]
        if doubles:
            return "numpy's float64 came through: x.float() in the dataset, or precision='64'"
        return "give the tensors of the batch the dtype the model takes, for instance labels.long()"
    return None


def _longer_schedule(steps: int, context: StageContext) -> str:
    """What to do about a schedule that ended before the run."""
    limits = context.limits
    if steps != limits.total_steps:
        return "total_steps=self.trainer.total_steps makes the schedule as long as the run"
    return (
        f"the run was to have {steps} steps, by the {limits.steps_in(0)} of an epoch that the data's len() "
        "gives, and it has more: __len__ must count all samples that __iter__ gives; or set max_steps"
    )


def _missed_key(error: Exception, batch: Mapping[Any, Any]) -> Any:
    """The key that was meant, where the error is a look-up that may have been of the batch."""
    wrong = error.args[0] if isinstance(error, KeyError) and error.args else None
    if wrong is None or wrong in batch:
        return None
    return next(iter(batch), None) if isinstance(wrong, int) else nearest(str(wrong), map(str, batch))


def _saved_where(loop: OptimizerStep, batch: Any) -> str | None:
    """Run the failed step's forward and backward once more under anomaly detection: it knows the line."""
    if loop.world_size > 1:  # the other ranks do not run it again
        return None
    with forward_line(check_nan=False) as found, suppress(Exception), torch.enable_grad():
        output = loop.training_step(*(batch, 0)[: 2 if loop.takes_index else 1])
        loss = output["loss"] if isinstance(output, Mapping) else output
        loss.backward()  # the same error again
    return found[0] if found else None
