"""Causal attention over rows of several documents, of which none sees another, by what a device has."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

varlen_attn: Any
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None
_ARGUMENTS = inspect.signature(varlen_attn).parameters if varlen_attn else {}
if "window_size" not in _ARGUMENTS:
    varlen_attn = None  # of torch 2.10, which takes no scale

Kind = Literal["varlen", "flex", "mask"]


def starts_of(documents: Sequence[Tensor] | Tensor) -> Tensor:
    """Where documents begin in each row, from a number for the document of each token, on the CPU.

    Args:
        documents: Rows of one length; a document is a run of the same number.

    Returns:
        int32 (rows, most), ascending, filled up with the length. ``most`` is a power of two, so that few
        shapes are compiled.

    Example:
        >>> starts_of([torch.tensor([3, 3, 4, 4, 4]), torch.tensor([7, 8, 9, 9, 9])])
        tensor([[0, 2, 5, 5],
                [0, 1, 2, 5]], dtype=torch.int32)
    """
    found = [F.pad((row[1:] != row[:-1]).nonzero()[:, 0] + 1, (1, 0)) for row in documents]
    most = 1 << (max(map(len, found)) - 1).bit_length()
    starts = torch.full((len(found), most), len(documents[0]), dtype=torch.int32)
    for row, its in zip(starts, found, strict=True):
        row[: len(its)] = its
    return starts


def numbers_of(starts: Tensor, length: int) -> Tensor:
    """The number of each token's document in its row, from 0: int64 (rows, length).

    Example:
        >>> numbers_of(torch.tensor([[0, 2, 5, 5]]), 5)
        tensor([[0, 0, 1, 1, 1]])
    """
    counts = torch.zeros(len(starts), length + 1, dtype=torch.int64, device=starts.device)
    return counts.scatter_add(1, starts.long(), torch.ones_like(starts).long())[:, :length].cumsum(1) - 1


def positions_in(starts: Tensor, length: int) -> Tensor:
    """The position of each token in its document: int64 (rows, length).

    Example:
        >>> positions_in(torch.tensor([[0, 2, 5, 5]]), 5)
        tensor([[0, 1, 0, 1, 2]])
    """
    return torch.arange(length, device=starts.device) - starts.long().gather(1, numbers_of(starts, length))


def fits_packed(width: int) -> bool:
    """Whether FlashAttention takes heads of so many numbers.

    Example:
        >>> fits_packed(64), fits_packed(100), fits_packed(512)
        (True, False, False)
    """
    return width % 8 == 0 and width <= 256


def dtype_of_products(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """What products are computed in: what autocast says, where it is on."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


def fastest(device: torch.device, dtype: torch.dtype, width: int) -> Kind:
    """Which way of computing attention a device has for tensors of a type.

    ``varlen``: FlashAttention over packed sequences (``torch.nn.attention.varlen``), of 16 bits on an
    NVIDIA GPU since Ampere, since torch 2.11. ``flex``: ``flex_attention`` with a block mask, in code that
    is compiled on a GPU, for heads of 16 numbers or more. ``mask``: scaled dot-product attention with a
    dense mask, which needs length times length bytes for each row.

    Args:
        device: Of the tensors.
        dtype: Likewise.
        width: Numbers of a head.

    Example:
        >>> fastest(torch.device("cpu"), torch.bfloat16, 64)
        'mask'
    """
    if device.type != "cuda":
        return "mask"
    of_nvidia = torch.version.hip is None and torch.cuda.get_device_properties(device).major >= 8
    half = dtype in (torch.bfloat16, torch.float16)
    if varlen_attn is not None and of_nvidia and half and fits_packed(width):
        return "varlen"
    return "flex" if torch.compiler.is_compiling() and width >= 16 else "mask"


class Documents(NamedTuple):
    """What attention needs to know of the documents in rows; the same for all layers.

    Attributes:
        kind: As ``fastest`` says.
        extent: ``varlen``: int32, where each begins in all rows one after another, and the end; ``flex``: a
            ``BlockMask``; ``mask``: which tokens see which, bool (rows, 1, length, length), or None where
            each row is one document.
    """

    kind: Kind
    extent: Any


def documents_in(starts: Tensor | None, length: int, kind: Kind) -> Documents:
    """The documents of rows for ``attend``. To be called once for all layers.

    Args:
        starts: As ``starts_of`` gives them; None: each row is one document.
        length: Of the rows.
        kind: As ``fastest`` says; rows of very many documents have the mask in place of ``varlen``.
    """
    if starts is None:
        return Documents("mask", None)
    # Each sequence takes as much memory in the backward pass as 128 tokens, and a GPU 65,535 of them.
    if kind == "varlen" and (128 * starts.shape[1] > 8 * length or starts.numel() > 65_535):
        kind = "mask"
    if kind == "varlen":
        rows = torch.arange(len(starts) + 1, dtype=torch.int32, device=starts.device) * length
        # What fills a row of starts up is where the next row begins: sequences of no token.
        return Documents(kind, torch.cat([(starts + rows[:-1, None]).flatten(), rows[-1:]]))
    numbers = numbers_of(starts, length)
    if kind == "flex":
        return Documents(kind, _block_mask(numbers))
    same = numbers[:, None, :, None] == numbers[:, None, None, :]
    return Documents(kind, same.tril())


def attend(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, scale: float | None = None
) -> Tensor:
    """Causal attention within documents.

    Args:
        query: (rows, length, heads, numbers).
        key: Likewise, or with fewer heads, which divide those of the queries.
        value: As ``key``.
        documents: Of ``documents_in``.
        scale: Of the products; none: 1 over the square root of ``numbers``.

    Returns:
        Of the shape of ``query``.

    Example:
        >>> query, key, value = torch.randn(3, 1, 5, 2, 8)
        >>> two = documents_in(torch.tensor([[0, 2]]), 5, "mask")
        >>> alone = documents_in(None, 3, "mask")
        >>> last = attend(query[:, 2:], key[:, 2:], value[:, 2:], alone)
        >>> bool(attend(query, key, value, two)[:, 2:].allclose(last, atol=1e-6))
        True
    """
    kind, extent = documents
    query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves norms in float32
    if kind == "varlen":
        groups, length, more = query.shape[2] // key.shape[2], query.shape[1], {}
        if groups > 1 and "enable_gqa" in _ARGUMENTS:
            more = {"enable_gqa": True}
        elif groups > 1:  # before torch 2.12
            key, value = (part.repeat_interleave(groups, 2) for part in (key, value))
        flat = (part.flatten(0, 1) for part in (query, key, value))
        packed: Tensor = varlen_attn(
            *flat, extent, extent, length, length, scale=scale, window_size=(-1, 0), **more
        )
        return packed.view_as(query)
    shared: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[2] != key.shape[2]}
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if kind == "flex":
        from torch.nn.attention.flex_attention import flex_attention

        found: Any = flex_attention(query, key, value, block_mask=extent, **shared)
    else:
        causal = extent is None
        found = F.scaled_dot_product_attention(query, key, value, extent, is_causal=causal, **shared)
    attended: Tensor = found.transpose(1, 2)
    return attended


def _block_mask(numbers: Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(row: Tensor, head: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return (numbers[row, one] == numbers[row, other]) & (one >= other)

    rows, length = numbers.shape
    return create_block_mask(sees, rows, None, length, length, device=str(numbers.device))
