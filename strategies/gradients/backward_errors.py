"""What torch and DeepSpeed say of a backward that a strategy cannot do, with the parameter and the way."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from ...errors import PacelineError


def second_backward(strategy: str) -> PacelineError:
    """A backward has been there since the forward."""
    return PacelineError(
        f"strategy {strategy!r} takes one backward for each forward: the second would be computed with "
        "weights that are in shards again, and its gradients not reduced",
        code="backward-twice",
        fix="add the losses, and go backward once; or strategy='ddp'",
    )


def gradient_in_parts(strategy: str, names: Sequence[str]) -> PacelineError:
    """The gradients of these parameters have come more than once within a backward."""
    return PacelineError(
        f"strategy {strategy!r} takes a gradient once in a backward, and this one comes in parts, as "
        "of a block that is used twice in a reentrant checkpoint",
        code="backward-twice",
        got=", ".join(names) or None,
        fix="checkpoint(..., use_reentrant=False), or use the block once in each forward",
    )


def of_ddp(error: RuntimeError, trained: Sequence[str], options: str) -> PacelineError | None:
    """DDP's reducer has met a gradient twice, or one that another backward has left undefined.

    Args:
        error: Torch's.
        trained: The names of the trained parameters, in the module's order.
        options: What the user gave, for the message.
    """
    text = str(error)
    if "ready only once" not in text and "still allreduced by DDP" not in text:
        return None
    index = re.search(r"arameter at index (\d+)", text)
    return PacelineError(
        "DDP's reducer met a gradient that does not come in one piece in the first backward of a step: "
        "of a reentrant checkpoint, or of a second backward",
        code="backward-twice",
        got=f"{options}{'; ' + trained[int(index[1])] if index else ''}",
        fix="leave find_unused_parameters out: step 1 shows it; or checkpoint(..., use_reentrant=False)",
    )


@contextmanager
def of_deepspeed(strategy: str, named: Callable[[], Mapping[Tensor, str]]) -> Iterator[None]:
    """Inside, ZeRO goes backward: from stage 2 on it reduces each gradient once.

    Args:
        strategy: The name, for the message.
        named: Gives the names of the parameters.

    Raises:
        PacelineError: in the place of DeepSpeed's error for a gradient that comes in parts, and for a
            second backward that needs weights which are in shards again.
    """
    try:
        yield
    except RuntimeError as error:
        if "size of tensor a (0)" not in str(error):
            raise
        raise second_backward(strategy) from error
    except AssertionError as error:
        called = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
        reduced = "has already been reduced" in str(error)
        if not reduced and not any("reduce" in name for name in called):
            raise
        raise gradient_in_parts(strategy, _refused(error, named())) from error


def _refused(error: AssertionError, names: Mapping[Tensor, str]) -> list[str]:
    """The names of the parameters that the frame which raised has reduced before, or has twice in a bucket.

    DeepSpeed's message has a name only until an earlier engine of the process is collected: that clears
    the names of all engines.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    held = {} if trace is None else trace.tb_frame.f_locals
    ids = [id(p) for p in held.get("params_in_bucket", [])]
    refused = {one for one in ids if ids.count(one) > 1} or {id(held.get("param"))}
    return sorted(name for p, name in names.items() if id(p) in refused)
