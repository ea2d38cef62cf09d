"""Text for language models: English that Python carries, folders of tokens, rows packed from both."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from paceline import PacelineError
from paceline.recipes.networks.document_attention import starts_of
from paceline.recipes.networks.head_loss import IGNORED

MEASURED_TEXT = "2a95af4ac93f5b71"
"""Of which text the recipes' figures were measured; it differs between versions of Python."""
_LOOKED_AT = 2**20  # tokens of a file of any size
GPT2 = {"vocabulary": 50304, "end": 50256}
"""What a folder without tokens.json holds: tokens of GPT-2, rounded up to a multiple of 128."""


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and to validate on, and what they are.

    Args:
        train: The tokens, or the file of uint16 that holds them.
        val: Likewise.
        vocabulary: Different tokens.
        end: The token before each document, and after the last.
        bytes_per_token: Of the text of ``val``; None where that is unknown.
        about: A line for the log.
    """

    train: NDArray[np.unsignedinteger] | Path
    val: NDArray[np.unsignedinteger] | Path
    vocabulary: int
    end: int
    bytes_per_token: float | None
    about: str


class PackedText(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows of ``length`` tokens, one after another: long documents span rows, short ones share one.

    A sample is the tokens, the token that follows each (``IGNORED`` after the last) and a number for the
    document of each, all of int64 (length). Of a file only what a row needs is read.

    Args:
        tokens: uint16 or uint8, or the file of uint16 that holds them.
        length: Tokens in a row.
        end: The token before each document.
        shift: Begin each row up to ``length - 1`` tokens later, at random: other rows in each epoch.

    Example:
        >>> tokens, targets, documents = PackedText(np.array([0, 7, 8, 0, 9], np.uint8), 3, end=0)[0]
        >>> tokens.tolist(), targets.tolist(), documents.tolist()
        ([0, 7, 8], [7, 8, 0], [1, 1, 1])
    """

    def __init__(
        self, tokens: NDArray[np.unsignedinteger] | Path, length: int, end: int, shift: bool = False
    ) -> None:
        self.tokens, self.length, self.end, self.shift = tokens, length, end, shift
        self.targets = len(self._all()) - 1
        if self.targets < length:
            raise PacelineError(
                "the text is shorter than one row",
                code="too-few-samples",
                got=f"{self.targets + 1} tokens",
                fix=f"length <= {self.targets}",
            )

    def _all(self) -> NDArray[np.unsignedinteger]:
        """A file is opened for each row, so that it is not copied to processes that read."""
        return np.memmap(self.tokens, "<u2", "r") if isinstance(self.tokens, Path) else self.tokens

    def __len__(self) -> int:
        return self.targets // self.length if self.shift else math.ceil(self.targets / self.length)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        begin = index * self.length
        if self.shift:
            begin = min(begin + int(torch.randint(self.length, ())), self.targets - self.length)
        row = torch.from_numpy(self._all()[begin : begin + self.length + 1].astype(np.int64))
        tokens, targets = torch.full((2, self.length), self.end)
        tokens[: len(row) - 1], targets[: len(row) - 1] = row[:-1], row[1:]
        targets[len(row) - 1 :] = IGNORED
        documents = (tokens == self.end).cumsum(0)
        documents[len(row) - 1 :] = documents.max() + 1  # what fills a row up is one
        return tokens, targets, documents


def collate_packed(rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of ``PackedText`` as tokens and targets, (rows, length), and where documents begin in each.

    Example:
        >>> rows = PackedText(np.array([0, 7, 0, 8, 9, 4, 0], np.uint8), 3, end=0)
        >>> collate_packed([rows[0], rows[1]])[2]  # as ``starts_of`` gives it
        tensor([[0, 2],
                [0, 3]], dtype=torch.int32)
    """
    tokens, targets, documents = zip(*rows, strict=True)
    return torch.stack(tokens), torch.stack(targets), starts_of(documents)


def english_documents() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Names and texts of the reference of the Python language (``pydoc_data.topics``).

    466,117 bytes in 79 documents with Python 3.11.7, of which the last are to validate on, from the one
    on that reaches into the last tenth. They repeat parts of each other.
    """
    from pydoc_data.topics import topics

    documents = list(topics.items())
    sizes = list(accumulate(len(text.encode()) + 1 for _, text in documents))
    first = next(number for number, read in enumerate(sizes) if read >= 0.9 * sizes[-1])
    return documents[:first], documents[first:]


def english() -> Corpus:
    """The bytes of ``english_documents``."""
    train, val = ([text.encode() for _, text in part] for part in english_documents())
    whole, held_out = b"\n".join(train + val), b"\n".join(val)
    bits = 8 * len(gzip.compress(held_out, 9)) / len(held_out)
    about = (
        f"English: {len(whole):,} bytes; the last {len(held_out):,} are held out, "
        f"and gzip -9 needs {bits:.3f} bits per byte for them"
    )
    if hashlib.sha256(whole).hexdigest()[:16] != MEASURED_TEXT:
        about += "; another text than the one that figures were measured on, of another version of Python"
    tokens = [np.frombuffer(b"\0" + b"\0".join(part) + b"\0", np.uint8) for part in (train, val)]
    return Corpus(tokens[0], tokens[1], 256, 0, 1.0, about)


def write_tokens(file: Path, documents: Iterable[Sequence[int]], end: int) -> int:
    """Write a file of uint16, document by document, and return how many tokens it has.

    Args:
        file: ``train.bin`` or ``val.bin`` in a folder for ``read_tokens``.
        documents: The tokens of each, below 65,536.
        end: The token before each, and after the last.

    Raises:
        PacelineError: for a token that does not fit.
    """
    count = 0
    with file.open("wb") as out:
        for document in documents:
            tokens = np.asarray([end, *document], np.int64)
            if tokens.min() < 0 or tokens.max() > 65535:
                raise PacelineError(
                    "a token does not fit into uint16",
                    code="tokenizer-mismatch",
                    got=f"{tokens.min()} to {tokens.max()}",
                )
            count += out.write(tokens.astype("<u2").tobytes())
        count += out.write(np.asarray([end], "<u2").tobytes())
    return count // 2


def read_tokens(folder: Path) -> Corpus:
    """A folder with ``train.bin`` and ``val.bin``, files of uint16, and ``tokens.json`` about them.

    ``tokens.json`` has ``vocabulary``, ``end`` and ``val_bytes``, the length of the text of ``val.bin``.
    Without it they hold tokens of GPT-2, as nanoGPT's ``prepare.py`` writes them.

    Raises:
        PacelineError: where one of the files is missing, or begins with tokens beyond the vocabulary.
    """
    folder = folder.expanduser()
    train, val = folder / "train.bin", folder / "val.bin"
    for file in (train, val):
        if not file.exists():
            raise PacelineError(
                f"{file} does not exist",
                code="file-not-found",
                allowed="a folder with train.bin and val.bin, tokens of uint16",
                fix="data=english trains on a text that Python carries",
            )
    described = folder / "tokens.json"
    its = json.loads(described.read_text()) if described.exists() else GPT2
    for file in (train, val):
        most = int(np.fromfile(file, np.uint16, count=_LOOKED_AT).max(initial=0))
        if most >= its["vocabulary"]:
            source = described.name if described.exists() else "GPT-2's vocabulary"
            raise PacelineError(
                f"{file} has tokens that {source} does not count",
                code="tokenizer-mismatch",
                got=f"token {most}, and a vocabulary of {its['vocabulary']}",
                fix=f"the vocabulary of the tokenizer that wrote them, in {described}",
            )
    tokens = [file.stat().st_size // 2 for file in (train, val)]
    per_token = its["val_bytes"] / tokens[1] if "val_bytes" in its else None
    about = f"{folder}: {tokens[0]:,} tokens, and {tokens[1]:,} to validate on"
    return Corpus(train, val, its["vocabulary"], its["end"], per_token, about)
