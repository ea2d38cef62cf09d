"""What we know about an error out of user code, added to it as notes; its type and traceback stay."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch

from ..errors import PacelineError, is_users_frame, mark_told, nearest
from ..strategies.job import note_failure
from .batch import describe, tensors_of
from .evaluation import EvaluationLoop
from .loop import TrainLoop

_MISREAD = (ValueError, TypeError, AttributeError)
_AS_TUPLE = r"to unpack|must be Tensor, not (str|dict)|got \((str|dict)|'(str|dict)' object|unhashable"
_AS_ONE = r"to unpack|indices must|be Tensor, not (list|tuple)|got \((list|tuple)|'(list|tuple)' object"
_FULL = "PACELINE_TRACEBACK=full shows every frame"


def explain(error: BaseException) -> None:
    """Mark an error that ends a run, and add notes: the step, the batch, and a cure where one is known."""
    mark_told(error)
    note_failure(error)
    if isinstance(error, PacelineError) or not isinstance(error, Exception):
        return
    frames = _frames_by_code(error)
    step = frames.get(TrainLoop.step.__code__) or frames.get(TrainLoop.manual_step.__code__)
    evaluation = frames.get(EvaluationLoop._read.__code__)
    if evaluation is not None:
        _explain_evaluation(error, evaluation)
    elif step is not None:
        _explain_step(error, step, frames)
    error.add_note(_FULL)


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
    code = getattr(type(loop.trainer.module).training_step, "__code__", None)
    in_users_step = code in frames
    if batch is None or not (in_users_step or "modified by an inplace" in str(error)):
        error.add_note(f"in {loop.trainer.place}")
        return
    if "modified by an inplace operation" in str(error):
        place = _saved_where(loop, batch) or "an operation of training_step"
        error.add_note(
            f"in {loop.trainer.place}: backward needs a tensor that was changed in place. "
            f"It was saved at {place}."
        )
        error.add_note(
            "fix: after that line, write x = x + y instead of x += y, x.add(y) instead of x.add_(y), "
            "and leave inplace=True out of activations"
        )
        return
    _explain_batch(error, loop.trainer.place, batch)


def _explain_batch(error: Exception, place: str, batch: Any) -> None:
    error.add_note(f"in {place}, on the batch {describe(batch)}")
    cure = _cure(error, batch)
    if cure:
        error.add_note(f"fix: {cure}")


def _cure(error: Exception, batch: Any) -> str | None:
    text = str(error)
    tensors = tensors_of(batch)
    if isinstance(batch, Mapping):
        key = _missed_key(error, batch)
        if key is not None or (isinstance(error, _MISREAD) and re.search(_AS_TUPLE, text)):
            key = next(iter(batch), "key") if key is None else key
            return f"the batch is a dict: take its values by key, batch[{key!r}]"
    if isinstance(batch, (tuple, list)) and isinstance(error, _MISREAD) and re.search(_AS_ONE, text):
        kind = type(batch).__name__
        return f"the batch is a {kind} of {len(batch)}: unpack it as {len(batch)} values"
    if isinstance(error, RuntimeError) and re.search(r"dtype|Byte|type|Long|Double|Half", text):
        small = [t for t in tensors if t.dtype == torch.uint8]
        if small:
            return "uint8 images go into a model as floats: images.float() / 255, in the dataset or here"
        doubles = [t for t in tensors if t.dtype == torch.float64]
        if doubles:
            return "numpy's float64 came through: x.float() in the dataset, or precision='64'"
        return "give the tensors of the batch the dtype the model takes, for instance labels.long()"
    return None


def _missed_key(error: Exception, batch: Mapping[Any, Any]) -> Any:
    """The key that was meant, where the error is a look-up that may have been of the batch."""
    wrong = error.args[0] if isinstance(error, KeyError) and error.args else None
    if wrong is None or wrong in batch:
        return None
    return next(iter(batch), None) if isinstance(wrong, int) else nearest(str(wrong), map(str, batch))


def _saved_where(loop: TrainLoop, batch: Any) -> str | None:
    """Run the failed step's forward and backward once more under anomaly detection: it knows the line."""
    if loop.world > 1:  # the other ranks do not run it again
        return None
    with warnings.catch_warnings(record=True) as caught, torch.enable_grad():
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly(check_nan=False):
                output = loop.training_step(*(batch, 0)[: 2 if loop.takes_index else 1])
                loss = output["loss"] if isinstance(output, Mapping) else output
                loss.backward()
        except Exception:  # the same error again; what it says is in the warnings
            pass
    for warning in caught:
        text = str(warning.message)
        if "Traceback of forward call" not in text:
            continue
        found = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', text)
        users = [f for f in found if is_users_frame(f[0])]
        if users:
            file, line, code = users[-1]
            return f"{file}:{line}: {code.strip()}"
    return None
