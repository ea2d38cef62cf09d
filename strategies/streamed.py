"""Validation, test and prediction of a model that is larger than its device: one block at a time there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..common.argument_checks import check_arguments, one_of
from ..errors import PacelineError, listed
from .blocks.materialise import materialise
from .blocks.repeated_blocks import find_units
from .blocks.streamed_blocks import Blocks, Values
from .dtypes.precision import Precision
from .launch.environment import Environment
from .module_checks import refuse_sharded
from .single import Single
from .tensors import stored_tensors
from .tensors.stored_tensors import Part, Stored
from .weights import Weights

T = TypeVar("T")
_HOST, _DISK = "host", "disk"


class StreamedWeights(Weights):
    """Weights that are copied to the device block by block.

    Args:
        on_disk: The blocks stay in the files that ``load_tensors`` finds.
    """

    def __init__(self, on_disk: bool) -> None:
        super().__init__()
        self._on_disk = on_disk
        self._blocks: Blocks | None = None
        self._described: dict[Tensor, Stored] = {}

    def begin(self, blocks: Blocks) -> None:
        """These blocks of a module are streamed from here on, until ``end``."""
        self._blocks = blocks

    def end(self) -> None:
        """Forget them."""
        self._blocks = None
        self._described.clear()

    def load_tensors(
        self, files: Sequence[Path], names: Iterable[str], like: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Find them: memory-mapped, or those in parts as meta tensors that ``load_module`` knows."""
        stored = stored_tensors.find_stored(files)
        found = {}
        for name in names:
            parts = stored[name]
            found[name] = parts[0].values if len(parts) == 1 else stored_tensors.description(parts)
            if len(parts) > 1:
                self._described[found[name]] = parts
        return found

    def load_module(self, module: nn.Module, values: dict[str, Any]) -> None:
        assert self._blocks is not None
        mine = module.state_dict(keep_vars=True)
        given: Values = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                whole = [Part((), value)]
                given[mine[name]] = self._described.pop(value, whole)
            else:
                module.get_submodule(name.rpartition(".")[0]).set_extra_state(value)
        self._blocks.load(given, on_disk=self._on_disk)

    def full_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
            raise PacelineError(
                f"{type(module).__name__} has no values to export: they stayed in their files",
                code="weights-missing",
                fix='Streamed(keep="host"), or of the checkpoint: paceline export CHECKPOINT FOLDER',
            )
        return super().full_tensors(module)


class Streamed(Single):
    """Brings the model's repeated blocks to the device one after another, each for its own forward.

    For ``validate``, ``test`` and ``predict`` on one device. Parameters outside the blocks (embeddings, the
    head) and all buffers stay on the device during the pass. The blocks are those that ``fsdp`` shards,
    or what ``shard_units(self)`` of the module returns, and must be called as modules. Results equal those
    of ``Single``.

    Args:
        keep: Where the blocks are meanwhile. ``"host"``: all in the host's memory, and on an accelerator
            the next one is copied while this one computes. ``"disk"``: in the safetensors files of
            ``weights=``, of which each block is read for each of its forwards; for a module that is built
            in ``configure_model``. Afterwards such a module is without values again.

    Example:
        >>> strategy = Streamed(keep="disk")
        >>> strategy.name  # Trainer(strategy=strategy).predict(module, loader, weights="llama")
        'streamed'
    """

    name = "streamed"
    weights: StreamedWeights

    def __init__(self, *, keep: str = _HOST) -> None:
        check_arguments("Streamed", keep=(keep, one_of(_HOST, _DISK)))
        super().__init__()
        self.keep = keep
        self._blocks: Blocks | None = None

    def attach(self, environment: Environment, precision: Precision) -> None:
        super().attach(environment, precision)
        self.weights = StreamedWeights(on_disk=self.keep == _DISK)

    def check_training(self) -> None:
        raise PacelineError(
            f"strategy {self.name!r} is for validate, test and predict, and trains nothing",
            code="strategy-not-suited",
            fix='to train what does not fit: strategy="fsdp", or "deepspeed_stage_3_offload"',
        )

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        refuse_sharded(module)
        units = find_units(module)
        if not units:
            raise PacelineError(
                f"strategy {self.name!r} found no repeated blocks in the module",
                code="repeated-blocks",
                got=type(module).__name__,
                fix="def shard_units(self): return self.blocks",
            )
        self.precision.convert_module(module)
        self._blocks = Blocks(module, units, self.device)
        if self.keep == _DISK and not all(p.is_meta for p in self._blocks.parameters()):
            raise PacelineError(
                'keep="disk" reads the blocks from files, and this module has them in memory already',
                code="strategy-not-suited",
                got=type(module).__name__,
                fix='build them in configure_model(self), or use Streamed(keep="host")',
            )
        _initialise_unsaved(module)
        self._blocks.place()
        self.weights.begin(self._blocks)
        return build_optimizers()

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        assert self._blocks is not None
        missing = self._blocks.without_values()
        if missing:
            raise PacelineError(
                f"{type(module).__name__} was built in configure_model, and nothing gave it values",
                code="weights-missing",
                got=listed(missing, 3),
                fix="weights=PATH: a checkpoint, a safetensors file, or a folder with them",
            )
        return super().step_function(module, name)

    def close(self) -> None:
        super().close()
        blocks, self._blocks = self._blocks, None
        self.weights.end()
        if blocks is not None:
            blocks.give_back(empty=self.keep == _DISK)


def _initialise_unsaved(module: nn.Module) -> None:
    """Give buffers that no state dict has their values: by the ``reset_parameters()`` of their owners."""
    saved = {id(value) for value in module.state_dict(keep_vars=True).values()}
    for part in module.modules():
        parameters = part.named_parameters(recurse=False, remove_duplicate=False)
        own = [*parameters, *part.named_buffers(recurse=False)]
        if any(value.is_meta and id(value) not in saved for _, value in own):
            kept = [(key, value) for key, value in own if id(value) in saved]
            materialise(module, part, alone=True)
            for key, value in kept:
                setattr(part, key, value)
