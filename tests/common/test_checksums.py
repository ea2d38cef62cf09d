"""The checksums of checkpoints are zlib's, whoever computes them."""

import importlib
import sys
import zlib
from array import array

import numpy as np
import pytest
import torch

from paceline.common import checksums
from paceline.trainer.utils.nested import checksum
from paceline.trainer.utils.tensor_checksum import checksum_of

BUFFERS = [b"", b"paceline", bytes(range(256)) * 4099, array("q", [1, -2, 3]), np.arange(7, dtype=np.uint8)]


@pytest.fixture(params=["isal", "zlib"])
def crc32(request, monkeypatch):
    """With the package, and where it cannot be imported."""
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    yield importlib.reload(checksums).crc32
    monkeypatch.undo()
    importlib.reload(checksums)


@pytest.mark.parametrize("data", BUFFERS, ids=range(len(BUFFERS)))
def test_it_is_the_checksum_of_zlib_from_any_start(crc32, data):
    assert [crc32(data), crc32(data, 0xFFFFFFFF)] == [zlib.crc32(data), zlib.crc32(data, 0xFFFFFFFF)]


def test_it_comes_from_where_it_can(crc32, request):
    assert (crc32 is zlib.crc32) == ("zlib" in request.node.callspec.id)


def test_tensors_of_any_form_have_the_checksum_of_their_bytes():
    rows = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for tensor in (rows, rows.t(), rows[:, ::2], rows[:0], rows[0, 0], rows.to(torch.bfloat16), rows > 3):
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        shape = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}".encode()
        assert checksum_of(tensor, 5) == zlib.crc32(raw, 5)
        assert checksum(tensor) == zlib.crc32(raw, zlib.crc32(shape))
