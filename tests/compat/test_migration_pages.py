"""The programs on the pages about other trainers: before and after end with the same weights."""

from __future__ import annotations

import difflib
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import paceline

DOCS = Path(paceline.__file__).parent / "docs"


def text(page):
    return (DOCS / f"{page}.md").read_text()


def program(page, name):
    """The block of a page that begins with this comment."""
    found = re.findall(rf"^```py(?:thon)?\n(# {re.escape(name)}\n.*?)^```", text(page), re.DOTALL | re.M)
    assert len(found) == 1, name
    return found[0]


def run(source, monkeypatch, **replaced):
    """The program's variables after it ran, its classes in a module of their own."""
    module = types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)
    for old, new in replaced.items():
        assert old in source
        source = source.replace(old, new)
    exec(compile(source, "program.py", "exec"), vars(module))
    return vars(module)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(ours, theirs, prefix=""):
    theirs = {prefix + name: value for name, value in theirs.items()}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


# -- a loop ----------------------------------------------------------------------------------------


def lines_of(name):
    stripped = [line.strip() for line in program("from-a-loop", name).splitlines()[1:]]
    return [line for line in stripped if line and not line.startswith(("import ", "from "))]


def changed_lines(before, after):
    """Pairs of lines that read differently, lines that are new, lines that are gone; in any order."""
    new = [line for line in after if line not in before]
    gone = [line for line in before if line not in after]
    pairs = []
    for line in list(new):
        for near in difflib.get_close_matches(line, gone, 1, 0.6):
            pairs.append((near, line))
            new.remove(line)
            gone.remove(near)
    return pairs, new, gone


def test_the_page_about_loops_counts_its_lines():
    before, after = lines_of("before.py"), lines_of("after.py")
    pairs, new, gone = changed_lines(before, after)
    kept = len(before) - len(pairs) - len(gone)
    assert len(pairs) <= 5
    counted = (
        f"Of the {len(before)} lines of the first program (without imports) {kept} stay as they are, "
        f"{len(pairs)} change, {len(gone)} are gone, and {len(new)} are new"
    )
    assert counted in " ".join(text("from-a-loop").split())


def test_the_loop_and_the_module_end_with_the_same_weights(monkeypatch):
    before = program("from-a-loop", "before.py")
    ours = run(program("from-a-loop", "after.py"), monkeypatch)
    assert_same(weights(ours["model"]), weights(run(before, monkeypatch)["model"]))


def test_both_resume_after_an_epoch_and_end_with_the_same_weights(monkeypatch):
    before, after = program("from-a-loop", "before.py"), program("from-a-loop", "after.py")
    run(before, monkeypatch, **{"range(first_epoch, 3)": "range(1)"})
    first = weights(run(after, monkeypatch, **{"max_epochs=3": "max_epochs=1"})["model"])
    ours = run(after, monkeypatch)
    assert ours["trainer"].global_step == 60
    assert any(not torch.equal(value, first[name]) for name, value in weights(ours["model"]).items())
    assert_same(weights(ours["model"]), weights(run(before, monkeypatch)["model"]))


def test_a_shuffled_loop_has_the_same_order_under_the_epoch_s_seed(monkeypatch):
    shuffle = {"batch_size=32": "batch_size=32, shuffle=True"}
    seeded = {"model.train()": "paceline.seed_everything(paceline.order_seed(0, epoch)); model.train()"}
    ours = run(program("from-a-loop", "after.py"), monkeypatch, **shuffle)
    theirs = run(
        "import paceline\n" + program("from-a-loop", "before.py"), monkeypatch, **shuffle, **seeded
    )
    assert_same(weights(ours["model"]), weights(theirs["model"]))
