"""Several training loaders, a batch of each in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...common.argument_checks import check_arguments, one_of
from ...errors import PacelineError

_PEERS = {"max_size_cycle": "cycle", "max_size": "max", "min_size": "min"}
MODE = one_of("cycle", "max", "min")


class CombinedLoader:
    """Training data from several loaders: ``training_step`` gets a batch of each, by name or as a list.

    Each loader has its own exact order, and a resumed run continues in each of them. A step takes from
    every loader what it would take from it alone. On several ranks, or with several micro-batches in a
    step, all of a loader's steps must be full ones: set ``drop_last=True``, or give it a multiple of its
    samples in a step.

    Args:
        loaders: A dict or list of DataLoaders, or of other iterables over batches. ``fit`` takes a dict or
            list in place of a ``CombinedLoader`` too.
        mode: How long an epoch is. ``"cycle"``: as the longest, shorter ones begin again, in a new order;
            ``"max"``: as the longest, and None in place of the batches of one that has ended; ``"min"``: as
            the shortest.

    Raises:
        PacelineError: without loaders, and for another mode.

    Example:
        >>> class Two(Net):
        ...     def training_step(self, batch):
        ...         return super().training_step(batch["real"]) + super().training_step(batch["made"])
        >>> data = CombinedLoader({"real": train_loader, "made": train_loader}, mode="min")
        >>> run = trainer.fit(Two(), data)
    """

    def __init__(
        self,
        loaders: Mapping[str, Any] | Sequence[Any],
        mode: Literal["cycle", "max", "min"] = "cycle",
    ) -> None:
        if isinstance(mode, str) and mode in _PEERS:
            raise PacelineError(
                f"CombinedLoader has no mode {mode!r}", code="combined-loader", fix=f"mode={_PEERS[mode]!r}"
            )
        check_arguments("CombinedLoader", mode=(mode, MODE))
        if not isinstance(loaders, (Mapping, list, tuple)) or not loaders:
            raise PacelineError(
                "CombinedLoader takes several loaders",
                code="combined-loader",
                got=type(loaders).__name__ if loaders else loaders,
                allowed="a dict or a list of DataLoaders",
            )
        for name, loader in loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders):
            if isinstance(loader, (Mapping, CombinedLoader)):
                raise PacelineError(
                    "CombinedLoader takes loaders, no loaders of loaders",
                    code="combined-loader",
                    got=f"a {type(loader).__name__} for {name!r}",
                    fix="one dict or list of all of them",
                )
        self.loaders, self.mode = loaders, mode

    @property
    def named(self) -> dict[str, Any]:
        """The loaders by name; those of a list by number."""
        loaders = self.loaders
        found = loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders)
        return {str(name): loader for name, loader in found}

    def batch(self, parts: list[Any]) -> Any:
        """The batch that a step gets: a dict or list, as the loaders were given.

        Args:
            parts: A batch of each loader, in their order.
        """
        return dict(zip(self.loaders, parts, strict=True)) if isinstance(self.loaders, Mapping) else parts
