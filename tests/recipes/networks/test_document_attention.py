"""Attention that keeps documents apart: the same numbers each way, whatever shares a row."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.networks import decoder, document_attention
from paceline.recipes.networks.decoder import Decoder
from paceline.recipes.networks.document_attention import (
    attend,
    documents_in,
    fastest,
    numbers_of,
    positions_in,
    starts_of,
)

LENGTHS = {"whole": [[12]], "two rows": [[5, 7], [12]], "many": [[1, 1, 3, 2, 5], [4, 4, 4], [11, 1]]}


def numbered(lengths) -> torch.Tensor:
    return torch.tensor([[n for n, size in enumerate(row) for _ in range(size)] for row in lengths])


def varlen(query, key, value, bounds, others, most, most_of_others, *, scale, window_size):
    """What torch's documentation says of ``varlen_attn``, sequence by sequence; it runs on GPUs only."""
    assert (scale, window_size) == (None, (-1, 0))
    assert query.dtype == key.dtype == value.dtype
    assert (bounds is others, most, bounds.dtype) == (True, most_of_others, torch.int32)
    found = torch.empty_like(query)
    for begin, end in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        assert 0 <= end - begin <= most
        its = [part[begin:end].transpose(0, 1) for part in (query, key, value)]
        found[begin:end] = F.scaled_dot_product_attention(*its, is_causal=True).transpose(0, 1)
    return found


@pytest.fixture
def with_varlen(monkeypatch):
    monkeypatch.setattr(document_attention, "varlen_attn", varlen)


def attended(kind, lengths):
    """What each token has seen, and the gradients of queries, keys and values."""
    draw = torch.Generator().manual_seed(0)
    shape = (3, len(lengths), 12, 2, 8)
    parts = torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()
    found = attend(*parts, documents_in(starts_of(numbered(lengths)), 12, kind))
    found.backward(torch.randn(shape[1:], generator=draw, dtype=torch.float64))
    return found, parts.grad


def alone(lengths):
    """The same, document by document."""
    draw = torch.Generator().manual_seed(0)
    shape = (3, len(lengths), 12, 2, 8)
    parts = torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_()
    rows = []
    for row, sizes in enumerate(lengths):
        its = (part.transpose(2, 3) for part in parts[:, row : row + 1].split(sizes, 2))
        seen = [F.scaled_dot_product_attention(*one, is_causal=True).transpose(1, 2) for one in its]
        rows.append(torch.cat(seen, 1))
    found = torch.cat(rows)
    found.backward(torch.randn(shape[1:], generator=draw, dtype=torch.float64))
    return found, parts.grad


@pytest.mark.usefixtures("with_varlen")
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kind", ["mask", "varlen"])
def test_each_way_is_attention_within_documents(kind, lengths):
    for found, expected in zip(attended(kind, lengths), alone(lengths), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.fit  # for its length
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_block_masks_are_attention_within_documents(lengths):
    query, key, value = torch.randn(3, len(lengths), 12, 2, 8, dtype=torch.float64)
    found, expected = (  # without gradients: flex_attention has none on a CPU
        attend(query, key, value, documents_in(starts_of(numbered(lengths)), 12, kind))
        for kind in ("flex", "mask")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("with_varlen")
@pytest.mark.parametrize("kind", ["mask", "varlen"])
def test_the_decoder_has_one_dtype_under_autocast(kind, monkeypatch):
    torch.manual_seed(0)
    model = Decoder(vocabulary=32, width=32, depth=2, heads=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens, starts = torch.randint(32, (2, 12)), starts_of(numbered(LENGTHS["two rows"]))
    expected = model(tokens, starts)
    monkeypatch.setattr(decoder, "fastest", lambda *_: kind)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens, starts)
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_rows_without_starts_are_one_document():
    query, key, value = torch.randn(3, 2, 12, 2, 8, dtype=torch.float64)
    whole = documents_in(starts_of(numbered([[12], [12]])), 12, "mask")
    for kind in ("mask", "varlen", "flex"):
        found = attend(query, key, value, documents_in(None, 12, kind))
        torch.testing.assert_close(found, attend(query, key, value, whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_starts_say_where_each_token_is(lengths):
    starts, numbers = starts_of(numbered(lengths)), numbered(lengths)
    assert starts.dtype == torch.int32
    assert numbers_of(starts, 12).equal(numbers)
    assert positions_in(starts, 12).tolist() == [
        [p for size in row for p in range(size)] for row in lengths
    ]


def test_few_shapes_are_compiled():
    widths = [starts_of(torch.arange(length)[None]).shape[1] for length in range(1, 10)]
    assert widths == [1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_rows_of_very_many_documents_are_not_packed():
    usual = starts_of(torch.arange(1024)[None] // 64)
    assert documents_in(usual, 1024, "varlen").kind == "varlen"
    assert documents_in(starts_of(torch.arange(1024)[None]), 1024, "varlen").kind == "mask"
    short = starts_of(torch.arange(32)[None] // 16)
    assert documents_in(short.expand(16_384, -1), 32, "varlen").kind == "varlen"
    assert documents_in(short.expand(32_768, -1), 32, "varlen").kind == "mask"


# -- which way -----------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A device that says what GPUs say; nothing runs on it."""

    def made(major, compiled):
        its = SimpleNamespace(major=major)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: its)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
        return torch.device("cuda")

    return made


@pytest.mark.usefixtures("with_varlen")
@pytest.mark.parametrize(
    ("major", "dtype", "width", "compiled", "expected"),
    [
        (9, torch.bfloat16, 64, True, "varlen"),
        (9, torch.bfloat16, 100, True, "flex"),
        (9, torch.bfloat16, 512, False, "mask"),
        (9, torch.bfloat16, 12, True, "mask"),
        (8, torch.float16, 64, False, "varlen"),
        (7, torch.float16, 64, True, "flex"),
        (9, torch.float32, 64, True, "flex"),
        (9, torch.float32, 64, False, "mask"),
    ],
)
def test_the_fastest_that_a_gpu_has_is_taken(major, dtype, width, compiled, expected, on_a_gpu):
    assert fastest(on_a_gpu(major, compiled), dtype, width) == expected


def test_a_torch_without_packed_attention_takes_another(monkeypatch, on_a_gpu):
    monkeypatch.setattr(document_attention, "varlen_attn", None)
    assert fastest(on_a_gpu(9, True), torch.bfloat16, 64) == "flex"


def test_a_cpu_takes_the_mask():
    assert fastest(torch.device("cpu"), torch.bfloat16, 64) == "mask"


@pytest.mark.skipif(document_attention.varlen_attn is None, reason="torch has it since 2.11")
def test_packed_attention_takes_the_arguments_of_this_torch():
    signature = inspect.signature(document_attention.varlen_attn)
    signature.bind(*range(7), scale=None, window_size=(-1, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
@pytest.mark.parametrize("kind", ["varlen", "flex"])
def test_on_a_gpu_each_way_is_the_dense_mask_in_bf16(kind):
    sizes = [[500, 12, 1, 511], [1024], [1] * 24 + [1000]]
    starts = starts_of(numbered(sizes)).cuda()
    parts = torch.randn(3, 3, 1024, 4, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()

    def step(kind):
        return attend(*parts, documents_in(starts, 1024, kind))

    results = []
    for one in (torch.compile(step, fullgraph=True), step):
        parts.grad = None
        found = one("mask" if one is step else kind)
        found.float().square().sum().backward()
        results += [found.detach(), parts.grad]
    for found, expected in zip(results[:2], results[2:], strict=True):
        assert (found - expected).norm() < 0.02 * expected.norm()
