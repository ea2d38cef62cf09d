"""``--rest`` takes what a run left out, and ``--cost`` orders files by what they take."""

import json
from types import SimpleNamespace

import pytest
from helpers import cost, left_out


class Item:
    def __init__(self, nodeid, *marks, config=None):
        self.nodeid, self.config = nodeid, config
        self._marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self._marks.get(name)


def config_of(noted, rest=True, soak=False, **more):
    options = {"--rest": rest, "--soak": soak}
    cache = SimpleNamespace(get=lambda key, default: noted, set=more.pop("set", None))
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    return SimpleNamespace(getoption=options.__getitem__, cache=cache, hook=hook, **more)


def test_the_rest_is_the_launch_tier_and_what_was_skipped():
    items = [
        Item("tests/a.py::test_ran"),
        Item("tests/a.py::test_skipped[1]"),
        Item("tests/b.py::test_of_a_file_that_was_skipped"),
        Item("tests/c.py::test_launched", pytest.mark.launch.mark),
    ]
    left_out.select(config_of(["tests/a.py::test_skipped[1]", "tests/b.py"]), items)
    names = [item.nodeid.partition("::")[2] for item in items]
    assert names == ["test_skipped[1]", "test_of_a_file_that_was_skipped", "test_launched"]


def test_all_are_kept_where_the_rest_is_not_asked_for():
    items = [Item("tests/a.py::test_ran")]
    left_out.select(config_of(None, rest=False), items)
    assert len(items) == 1


def test_without_a_run_before_the_rest_is_not_known():
    with pytest.raises(pytest.UsageError, match="no run has noted its skips"):
        left_out.select(config_of(None), [])


@pytest.mark.parametrize(
    ("mark", "options", "runs"),
    [
        (pytest.mark.soak, {}, False),
        (pytest.mark.soak, {"soak": True, "rest": False}, True),
        (pytest.mark.soak(ci=True), {}, True),
        (pytest.mark.soak(ci=True), {"rest": False}, False),
        (pytest.mark.unit, {"rest": False}, True),
    ],
)
def test_long_tests_run_where_they_are_asked_for(mark, options, runs):
    item = Item("tests/a.py::test", mark.mark, config=config_of([], **options))
    assert left_out.is_run(item) is runs


def test_skips_of_tests_files_and_workers_are_noted_by_a_run_of_all_tests():
    noted = {}
    all_of_them = pytest.Config.ArgsSource.TESTPATHS
    config = config_of(None, rest=False, set=noted.__setitem__, args_source=all_of_them)
    skips = left_out.Skips(config)
    skips.pytest_runtest_logreport(SimpleNamespace(nodeid="a.py::test", skipped=True))
    skips.pytest_runtest_logreport(SimpleNamespace(nodeid="a.py::ran", skipped=False))
    skips.pytest_collectreport(SimpleNamespace(nodeid="b.py", skipped=True))
    worker = SimpleNamespace(config=SimpleNamespace(workeroutput={}))
    of_worker = left_out.Skips(worker.config)
    of_worker.pytest_collectreport(SimpleNamespace(nodeid="c.py", skipped=True))
    of_worker.pytest_sessionfinish(SimpleNamespace())
    skips.pytest_testnodedown(SimpleNamespace(workeroutput=worker.config.workeroutput), None)
    skips.pytest_sessionfinish(SimpleNamespace(testscollected=3))
    assert list(noted.values()) == [["a.py::test", "b.py", "c.py"]]
    noted.clear()
    config.args_source = pytest.Config.ArgsSource.ARGS
    skips.pytest_sessionfinish(SimpleNamespace())
    assert noted == {}


def test_files_that_take_longest_are_begun_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "DURATIONS", tmp_path / "durations.json")
    cost.DURATIONS.write_text(json.dumps({"tests/b.py": 3.0, "tests/c/d.py": 9.5}))
    items = [Item(f"tests/{name}") for name in ("a.py::1", "b.py::1", "b.py::2", "c/d.py::1")]
    config = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), workerinput={})
    cost.keep_order(config)
    cost.begin_with_the_longest(config, items)
    assert [item.nodeid for item in items] == [
        f"tests/{name}" for name in ("c/d.py::1", "b.py::1", "b.py::2", "a.py::1")
    ]
    assert config.option.loadscopereorder is False


def report(nodeid, when, seconds, outcome, why=None):
    return pytest.TestReport(nodeid, ("a.py", 1, nodeid), {}, outcome, why, when, duration=seconds)


def test_what_a_run_took_is_written(tmp_path, capsys):
    recorder = cost.Recorder(tmp_path / "cost")
    for when, seconds in (("setup", 0.5), ("call", 2.0), ("teardown", 0.1)):
        recorder.pytest_runtest_logreport(report("a.py::t", when, seconds, "passed"))
    assert capsys.readouterr().out == ""
    recorder.pytest_runtest_logreport(report("a.py::bad", "call", 1.0, "failed", "assert 2 == 3"))
    assert capsys.readouterr().out == "\nFAILED a.py::bad (call)\nassert 2 == 3\n"
    params = SimpleNamespace(args=["-q"])
    config = SimpleNamespace(invocation_params=params, option=SimpleNamespace(numprocesses=2))
    recorder.pytest_sessionfinish(SimpleNamespace(config=config))
    (path,) = (tmp_path / "cost").iterdir()
    found = json.loads(path.read_text())
    passed = {"setup": 0.5, "call": 2.0, "teardown": 0.1}
    assert found["tests"] == {"a.py::t": passed, "a.py::bad": {"call": 1.0}}
    assert (found["workers"], found["outcomes"]) == (2, {"passed": 1, "failed": 1})
