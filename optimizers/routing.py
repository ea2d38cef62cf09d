"""Which parameters are hidden matrices, for Muon, and which are for AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..common.argument_checks import TEXTS, check_arguments
from ..errors import PacelineError, nearest
from ..parameter_groups import dimensions, names_of_parameters


def muon_matrices(module: nn.Module, *, muon: Sequence[str] = (), adamw: Sequence[str] = ()) -> list[str]:
    """The names of the parameters that Muon updates: the hidden matrices.

    By default these are the parameters of two dimensions with "weight" in their own name, but for those of
    embeddings, of the output head (the ``nn.Linear`` that is registered last), and what is tied to either.
    Not among them: norms, biases, convolutions, scalars, and matrices with another name, as of positions.

    Patterns are as in a shell; they match a whole name, or a part between dots: ``"wte"`` matches
    ``transformer.wte.weight``, ``"blocks.0"`` all of that block.

    Args:
        module: Its parameters are looked at.
        muon: Patterns of more matrices that Muon is to update.
        adamw: Patterns of parameters that it is not to update.

    Raises:
        PacelineError: for a pattern that matches nothing, a parameter that both match, and one for Muon
            that is no matrix.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> muon_matrices(model)
        ['1.weight']
    """
    muon, adamw = _read("muon", muon), _read("adamw", adamw)
    check_arguments("MuonWithAdamW", **{n: (p, TEXTS) for n, p in (("muon", muon), ("adamw", adamw)) if p})
    names = names_of_parameters(module)
    _refuse_unmatched(names, {"muon": muon, "adamw": adamw})
    others = _embeddings_and_head(module)
    found: list[str] = []
    for parameter, aliases in names.items():
        is_matrix = dimensions(parameter) == 2
        wanted, excluded = _matches(aliases, muon), _matches(aliases, adamw)
        if wanted and (excluded or not is_matrix):
            raise PacelineError(
                f"MuonWithAdamW: {aliases[0]} cannot be updated by Muon",
                code="optimizer-not-supported",
                got="it matches muon= and adamw=" if excluded else f"{dimensions(parameter)} dimensions",
                allowed="matrices, of two dimensions",
            )
        usual = is_matrix and parameter not in others and "weight" in aliases[0].rpartition(".")[2]
        if wanted or (usual and not excluded):
            found.append(aliases[0])
    return found


def _read(argument: str, patterns: Sequence[str]) -> list[str]:
    if isinstance(patterns, str):
        raise PacelineError(
            f"MuonWithAdamW: {argument} is one string",
            code="invalid-value",
            got=patterns,
            fix=f"{argument}=[{patterns!r}]",
        )
    return list(patterns)


def _embeddings_and_head(module: nn.Module) -> set[nn.Parameter]:
    found: set[nn.Parameter] = set()
    head: nn.Module | None = None
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            found.update(part.parameters(recurse=False))
        if isinstance(part, nn.Linear):
            head = part
    return found if head is None else found | set(head.parameters(recurse=False))


def _matches(names: list[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(part, p) for name in names for part in _parts(name) for p in patterns)


def _parts(name: str) -> list[str]:
    """All that lies between dots of a name: a.b gives a, a.b and b."""
    words = name.split(".")
    ends = range(1, len(words) + 1)
    return [".".join(words[start:end]) for end in ends for start in range(end)]


def _refuse_unmatched(names: dict[nn.Parameter, list[str]], patterns: dict[str, Sequence[str]]) -> None:
    everything = [name for aliases in names.values() for name in aliases]
    for argument, given in patterns.items():
        for pattern in given:
            if not _matches(everything, [pattern]):
                parts = dict.fromkeys(part for name in everything for part in _parts(name))
                raise PacelineError(
                    f"MuonWithAdamW: no parameter matches {argument}={pattern!r}",
                    code="part-not-found",
                    allowed=", ".join(everything[:8]) + (" ..." if len(everything) > 8 else ""),
                    meant=nearest(pattern, parts),
                )
