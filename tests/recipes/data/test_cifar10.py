"""Reading CIFAR-10's own files, and fetching them, against small files of the same form."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import pickle
import tarfile
import threading

import numpy as np
import pytest

from paceline import PacelineError
from paceline.recipes.data import cifar10

IMAGES = 6


@pytest.fixture
def published(monkeypatch):
    """Files of six images a batch, published with their own checksums."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6 * IMAGES, 3072), dtype=np.uint8)
    labels = generator.integers(0, 10, 6 * IMAGES)
    names = list(cifar10.FILE_MD5)
    python, binary = {}, {}
    for index, name in enumerate(names):
        part = slice(index * IMAGES, (index + 1) * IMAGES)
        content = {"data": pixels[part], "labels": labels[part].tolist(), "batch_label": name}
        python[name] = pickle.dumps(content, protocol=2)
        binary[name] = np.concatenate([labels[part, None].astype(np.uint8), pixels[part]], 1).tobytes()
    monkeypatch.setattr(cifar10, "FILE_MD5", {n: hashlib.md5(b).hexdigest() for n, b in python.items()})
    monkeypatch.setattr(cifar10, "_IMAGES", IMAGES)
    return pixels.reshape(-1, 3, 32, 32), labels, python, binary


def write(folder, kind, files):
    folder = folder / f"cifar-10-batches-{kind}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / (name if kind == "py" else f"{name}.bin")).write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", ["py", "bin"])
def test_reads_both_versions(kind, published, tmp_path):
    pixels, labels, python, binary = published
    assert not cifar10.is_present(tmp_path)
    write(tmp_path, kind, python if kind == "py" else binary)
    assert cifar10.is_present(tmp_path)
    images, found = cifar10.load(tmp_path, train=True)
    assert np.array_equal(images, pixels[: 5 * IMAGES])
    assert np.array_equal(found, labels[: 5 * IMAGES])
    images, found = cifar10.load(tmp_path, train=False)
    assert np.array_equal(images, pixels[5 * IMAGES :])


def test_a_changed_file_is_refused(published, tmp_path):
    folder = write(tmp_path, "py", published[2])
    changed = bytearray(published[2]["data_batch_3"])
    changed[200] ^= 1
    (folder / "data_batch_3").write_bytes(changed)
    with pytest.raises(PacelineError, match=r"data_batch_3(.|\n)*md5"):
        cifar10.load(tmp_path, train=True)


def test_a_cut_binary_file_and_a_wrong_label_are_refused(published, tmp_path):
    folder = write(tmp_path, "bin", published[3])
    (folder / "test_batch.bin").write_bytes(published[3]["test_batch"][:-1])
    with pytest.raises(PacelineError, match="bytes"):
        cifar10.load(tmp_path, train=False)
    (folder / "test_batch.bin").write_bytes(b"\x0b" + published[3]["test_batch"][1:])
    with pytest.raises(PacelineError, match="label of 11"):
        cifar10.load(tmp_path, train=False)


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_that_would_run_code_is_refused(published, tmp_path, monkeypatch):
    folder = write(tmp_path, "py", published[2])
    canary = tmp_path / "canary"
    hostile = pickle.dumps({"data": Canary(str(canary)), "labels": []})
    (folder / "test_batch").write_bytes(hostile)
    monkeypatch.setitem(cifar10.FILE_MD5, "test_batch", hashlib.md5(hostile).hexdigest())
    with pytest.raises(PacelineError, match=r"would run code(.|\n)*open"):
        cifar10.load(tmp_path, train=False)
    assert not canary.exists()


def test_missing_files_are_named(published, tmp_path):
    folder = write(tmp_path, "py", published[2])
    (folder / "data_batch_4").unlink()
    with pytest.raises(PacelineError, match="no data_batch_4"):
        cifar10.load(tmp_path, train=True)


class Ranged(http.server.SimpleHTTPRequestHandler):
    """Serves byte ranges, and notes what was asked for."""

    asked: list[str | None] = []

    def do_GET(self):
        asked = self.headers.get("Range")
        type(self).asked.append(asked)
        content = (type(self).folder / self.path.lstrip("/")).read_bytes()
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(published, tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / "archive.tar.gz", "w:gz") as tar:
        for name, content in published[2].items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    handler = type("Handler", (Ranged,), {"folder": folder, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler)) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        archive = (folder / "archive.tar.gz").read_bytes()
        yield f"http://127.0.0.1:{running.server_port}/archive.tar.gz", archive, handler
        running.shutdown()
        thread.join(timeout=10)


@pytest.mark.fit  # for its length
def test_download_resumes_where_it_broke_off(server, tmp_path):
    url, archive, handler = server
    data = tmp_path / "data"
    data.mkdir()
    (data / "cifar-10-python.tar.gz.part").write_bytes(archive[:1000])
    cifar10.download(data, url, hashlib.md5(archive).hexdigest())
    assert handler.asked == ["bytes=1000-"]
    assert cifar10.is_present(data)
    cifar10.load(data, train=True)
    cifar10.download(data, url, hashlib.md5(archive).hexdigest())  # it is there: nothing is asked for
    assert handler.asked == ["bytes=1000-"]


@pytest.mark.fit  # for its length
def test_of_several_processes_one_downloads(server, tmp_path):
    url, archive, handler = server
    given = tmp_path / "data", url, hashlib.md5(archive).hexdigest()
    ranks = [threading.Thread(target=cifar10.download, args=given, daemon=True) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
        assert not rank.is_alive()
    assert handler.asked == [None]
    cifar10.load(tmp_path / "data", train=True)


@pytest.mark.fit  # for its length
def test_a_damaged_download_is_removed(server, tmp_path):
    url, _, _ = server
    with pytest.raises(PacelineError, match="damaged"):
        cifar10.download(tmp_path / "data", url, "0" * 32)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".download.lock"]


def test_no_network_is_a_clear_error(tmp_path):
    with pytest.raises(PacelineError, match=r"could not be downloaded(.|\n)*data=digits"):
        cifar10.download(tmp_path, "http://127.0.0.1:9/archive.tar.gz", "0" * 32)
