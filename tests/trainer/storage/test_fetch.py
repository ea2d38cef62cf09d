"""Copies of data in an object store; ``memory://`` is one without a server."""

import fsspec
import pytest

import paceline
from paceline import PacelineError
from paceline.common.remote_paths import cached_path, is_remote, url_of
from paceline.trainer.storage.remote import Remote


@pytest.fixture
def files(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    found = fsspec.filesystem("memory")
    found.pipe({"/data/digits/a.bin": b"one", "/data/digits/sub/b.bin": b"two"})
    yield found
    found.rm("/data", recursive=True)


def test_a_folder_is_fetched_once_and_what_changed_again(files, monkeypatch):
    fetched = []
    usual = Remote.fetch
    monkeypatch.setattr(
        Remote, "fetch", lambda self, wanted: (fetched.append(set(wanted)), usual(self, wanted))
    )
    path = paceline.fetch("memory://data/digits")
    assert (path / "a.bin").read_bytes() == b"one"
    assert (path / "sub" / "b.bin").read_bytes() == b"two"
    assert paceline.fetch("memory://data/digits") == path
    files.pipe("/data/digits/a.bin", b"six")  # of the same size
    files.rm("/data/digits/sub/b.bin")
    paceline.fetch("memory://data/digits")
    assert (path / "a.bin").read_bytes() == b"six"
    assert not (path / "sub" / "b.bin").exists()
    assert fetched == [{"a.bin", "sub/b.bin"}, set(), {"a.bin"}]


def test_a_file_is_fetched(files):
    path = paceline.fetch("memory://data/digits/a.bin")
    assert path.read_bytes() == b"one"
    assert path.name == "a.bin"


def test_what_was_deleted_here_is_fetched_again(files):
    path = paceline.fetch("memory://data/digits")
    (path / "a.bin").unlink()
    assert (paceline.fetch("memory://data/digits") / "a.bin").read_bytes() == b"one"


def test_nothing_at_the_address_is_an_error(files):
    with pytest.raises(PacelineError, match="there is nothing at this address"):
        paceline.fetch("memory://data/nothing")


def test_addresses_and_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert cached_path("s3://bucket/a/b") == tmp_path / "s3" / "bucket" / "a" / "b"
    assert url_of(tmp_path / "s3" / "bucket" / "a" / "b") == "s3://bucket/a/b"
    assert url_of(tmp_path.parent) is None
    assert is_remote("s3:/bucket/a")  # what pathlib makes of it
    assert cached_path("s3:/bucket/a") == cached_path("s3://bucket/a")
    assert not is_remote("/tmp/s3")
    assert not is_remote("c:/runs")
    for wrong in ("s3://bucket/../other", "s3://bucket/a?x=1"):
        with pytest.raises(PacelineError, match="this is no address of a folder"):
            cached_path(wrong)
    with pytest.raises(PacelineError) as caught:
        cached_path("s3://key:pa55word@bucket/runs")
    assert "pa55word" not in str(caught.value)
