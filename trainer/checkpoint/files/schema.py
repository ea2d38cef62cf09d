"""The form of a manifest and of a state file, checked before anything of them is used.

What a user's own objects saved (hparams, callbacks, schedulers) has any form; all else has the one here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ....errors import shown
from ..pretrained import ADAPTER_NAME
from .format import MANIFEST, STATE, CheckpointError

_Whole = Annotated[int, Field(ge=0)]
_Count = Annotated[int, Field(ge=1)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", arbitrary_types_allowed=True)


class _World(_Form):
    size: _Count
    strategy: str
    tensor: _Count = 1


class _Adapter(_Form):
    config: str
    tensors: dict[str, str]


class _Base(_Form):
    config: str
    class_: str = Field(alias="class")


class _Pretrained(_Form):
    config: str | None = None
    base: _Base | None = None
    adapters: dict[Annotated[str, Field(pattern=ADAPTER_NAME)], _Adapter] | None = None
    why_not: str | None = None


class _Module(_Form):
    class_: str = Field(alias="class")
    hparams: dict[str, Any]
    not_plain: list[str]
    pretrained: dict[str, _Pretrained] = {}


class _Counters(_Form):
    global_step: _Whole
    epoch: _Whole
    position: _Whole
    epoch_start: _Whole
    batch_idx: _Whole
    samples: _Whole
    elapsed: Annotated[float, Field(ge=0)]
    skipped_steps: _Whole
    weight_reference: Annotated[float, Field(gt=0)] | None
    validated_step: Annotated[int, Field(ge=-1)]
    global_batch: _Whole
    validating: str = ""
    overflowed_steps: _Whole = 0
    steps_without_loss: _Whole = 0
    tokens: Annotated[float, Field(ge=0)] = 0.0
    decay_start: Annotated[int, Field(ge=-1)] = -1
    decay_steps: _Whole = 0
    epoch_lengths: list[Annotated[list[_Whole | None], Field(min_length=2, max_length=2)]] = []


class _Manifest(_Form):
    weights_only: bool
    counters: _Counters
    world: _World
    evaluation_weights: str | None = None
    precision: str
    module: _Module
    config: dict[str, Any]
    metrics: dict[str, float | str]
    data: dict[str, Any]


class _Group(_Form):
    params: list[str]


class _Quantised(_Form):
    class_: str = Field(alias="class")
    parts: list[str]
    context: list[Any]


class _Optimizer(_Form):
    class_: str = Field(alias="class")
    groups: list[_Group]
    values: dict[str, Any]
    own_dtype: list[str]
    quantised: dict[str, _Quantised] = Field(default_factory=dict)
    configured: list[dict[str, Any]] | None = None


class _Schedule(_Form):
    class_: str = Field(alias="class")
    state: dict[str, Any]
    validations: _Whole = 0


class _MetricObject(_Form):
    state: dict[str, Any]
    count: _Whole
    logged_as: str | None


def _are_sums(value: list[Any]) -> list[Any]:
    """Of the log window, and of the epoch before it: how it is reduced, total, weight and count."""
    if len(value) != 2 or not all(isinstance(sums, list) and len(sums) == 4 for sums in value):
        raise ValueError("these are no sums of logged values")
    for reduce, total, weight, count in value:
        numbers = all(
            isinstance(n, float) or (isinstance(n, int) and abs(n) < 2**63) for n in (total, weight)
        )
        if str(reduce) not in ("mean", "sum", "min", "max") or not numbers or type(count) is not int:
            raise ValueError("these are no sums of logged values")
    return value


_Logged = dict[str, Annotated[list[Any], AfterValidator(_are_sums)]]


class _Rank(_Form):
    rng: dict[str, Any]
    metric_objects: dict[str, _MetricObject]
    logged: _Logged
    data: dict[str, Any]


class _Metrics(_Form):
    latest: dict[str, float]
    train: _Logged


def _is_dtype(value: str | None) -> str | None:
    if value is not None and not isinstance(getattr(torch, value, None), torch.dtype):
        raise ValueError("this is no dtype of torch")
    return value


class _Changes(_Form):
    unfrozen: list[str]
    frozen: list[str]
    buffers: dict[str, Annotated[str | None, AfterValidator(_is_dtype)]]


class _State(_Form):
    module: _Changes | None = None
    counters: _Counters
    ranks: Annotated[list[_Rank], Field(min_length=1)]
    optimizers: dict[str, _Optimizer]
    schedulers: list[_Schedule]
    precision: dict[str, Any]
    strategy: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]
    metrics: _Metrics
    datamodule: Any
    extra_state: dict[str, Any]
    hooks: dict[str, Any]


class _WeightsOnly(_Form):
    module: _Changes | None = None
    extra_state: dict[str, Any]


def check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """See that a manifest is one of a checkpoint.

    Raises:
        CheckpointError: naming the first key that is missing or of another form.
    """
    if "kind" in manifest:
        raise CheckpointError(
            f"this folder holds {manifest['kind']}, and no checkpoint",
            code="checkpoint-not-found",
            where=str(folder),
        )
    _check(_Manifest, manifest, folder / MANIFEST)


def check_state(folder: Path, state: Any, weights_only: bool) -> None:
    """See that a decoded state file has the form that a run resumes from.

    Raises:
        CheckpointError: naming the first key that is missing or of another form.
    """
    _check(_WeightsOnly if weights_only else _State, state, folder / STATE)


def _check(form: type[_Form], content: Any, file: Path) -> None:
    try:
        form.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CheckpointError(
            "this file of the checkpoint is not of the form that is written",
            code="checkpoint-damaged",
            where=f"{file}, key {'.'.join(map(str, first['loc'])) or 'none'}",
            got=shown(first["input"], 80) if first["type"] != "missing" else "nothing",
            allowed=first["msg"],
        ) from None
