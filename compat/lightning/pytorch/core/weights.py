"""What a ``LightningModule`` does with its weights: frozen, loaded, exported."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import nn

from ..... import PacelineError
from .....trainer.checkpoint.weights import build_from_checkpoint
from ...translation.configured import build
from ...translation.hooks import ModuleHooks, overrides
from ...translation.saved import Loaded, unwritten_arguments

T = TypeVar("T", bound=nn.Module)


class Weights(nn.Module):
    """Methods of a ``LightningModule``."""

    example_input_array: Any

    def freeze(self: T) -> T:
        """Train no parameter, in eval mode."""
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        return self.eval()

    def unfreeze(self: T) -> T:
        """Train every parameter, in train mode."""
        for parameter in self.parameters():
            parameter.requires_grad_(True)
        return self.train()

    @classmethod
    def load_from_checkpoint(
        cls: type[T],
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> T:
        """Build the module from a checkpoint of this package's, or a Lightning ``.ckpt``, with its weights.

        Args:
            checkpoint_path: A checkpoint, or a run folder: its best one, else its latest; or an open file.
            map_location: The device to put the module on; the CPU unless given.
            hparams_file: A YAML file of constructor arguments; those in the checkpoint come first.
            strict: Whether both must have the same names; False loads what both have in the
                same shape, and warns of the rest. The module's ``strict_loading`` unless given.
            weights_only: False: hyperparameters of a ``.ckpt`` file may be objects of any class, which
                runs code of theirs; else nothing in a pickle is run.
            **kwargs: Constructor arguments that replace the recorded ones.

        Raises:
            PacelineError: for a damaged checkpoint, missing arguments, and weights of another model.
        """
        if hasattr(checkpoint_path, "read"):
            with TemporaryDirectory() as folder:
                path = Path(folder, "open.ckpt")
                path.write_bytes(checkpoint_path.read())
                given = (path, map_location, hparams_file, strict, weights_only)
                return Weights.load_from_checkpoint.__func__(cls, *given, **kwargs)  # type: ignore[attr-defined, no-any-return]
        if hparams_file is not None:
            import yaml

            kwargs = (yaml.safe_load(Path(hparams_file).read_text()) or {}) | kwargs
        loaded = Loaded(checkpoint_path, weights_only)
        kwargs = unwritten_arguments(loaded.path) | loaded.objects(cls) | kwargs

        def weights(module: Any) -> Any:
            content = loaded.content()
            module.on_load_checkpoint(content)
            return content["state_dict"]

        adjusted = weights if overrides(cls, "on_load_checkpoint", ModuleHooks) else None
        module = build_from_checkpoint(cls, loaded.path, kwargs, strict, build, adjusted, loaded.is_safe)
        return module if map_location is None else module.to(map_location)

    def to_onnx(self, file_path: Any, input_sample: Any = None, **kwargs: Any) -> Any:
        """``torch.onnx.export`` of ``forward``; ``example_input_array`` is the input unless given."""
        sample = self.example_input_array if input_sample is None else input_sample
        return torch.onnx.export(
            self.eval(), sample if isinstance(sample, tuple) else (sample,), file_path, **kwargs
        )

    def to_torchscript(
        self, file_path: Any = None, method: str = "script", example_inputs: Any = None, **kwargs: Any
    ) -> Any:
        """TorchScript is deprecated by torch.

        Raises:
            PacelineError: always.
        """
        raise PacelineError(
            "to_torchscript is not offered: torch has deprecated TorchScript",
            code="not-offered",
            fix="torch.export.export(model, args), or model.to_onnx(path, sample)",
        )
