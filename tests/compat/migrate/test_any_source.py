"""Any Python is read without a traceback, and what is written of it is Python.

The sources are Python's own library and the programs of these tests, with names of the other libraries
sown into them. Each case has a seed, which a failure prints.
"""

import ast
import io
import keyword
import random
import sysconfig
import tokenize
import warnings
from pathlib import Path

import pytest

from paceline.compat.migrate.analysis import analyse
from paceline.compat.migrate.libraries import LIBRARIES
from paceline.compat.migrate.lightning.names import HOOKS

from .programs import PROGRAMS

LIBRARY = Path(sysconfig.get_path("stdlib"))
HERE = Path(__file__).resolve().parents[1] / "lightning" / "programs"
TOO_DEEP = (None, "its expressions are nested too deeply")
IMPORTS = {
    "lightning": "import lightning as L\nfrom lightning import *\nfrom pytorch_lightning import Trainer",
    "accelerate": "import accelerate\nfrom accelerate import Accelerator",
    "transformers": "import transformers\nfrom transformers import Trainer, TrainingArguments",
    "composer": "import composer\nfrom composer import Trainer, ComposerModel",
}
ROOTS = {
    "lightning": "L",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "composer": "composer",
}


def library():
    """Files of Python's library, without its tests and tools."""
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
    found = sorted(LIBRARY.rglob("*.py"))
    return [path for path in found if not left_out & set(path.relative_to(LIBRARY).parts)]


def programs():
    """The programs of these tests."""
    return [
        *(path.read_bytes() for path in sorted(HERE.glob("*.py"))),
        *(source.encode() for source, _ in PROGRAMS.values()),
    ]


def names_of(library):
    """What may stand for a class, a method, an attribute and an argument."""
    owners = library.owners
    root = ROOTS[library.name]
    classes = [f"{root}.{name}" for name in owners] + [name for name in owners if name.isidentifier()]
    methods = [*HOOKS, *(name for owner in owners.values() for name in owner.methods)]
    members = [n for o in owners.values() for n in (*o.members, *o.calls)]
    arguments = [
        n for o in owners.values() for n in (*o.arguments, *(a for c in o.calls.values() for a in c))
    ]
    return [[name for name in kind if name] for kind in (classes, methods, members, arguments)]


def sown(source, chance):
    """A source with the names of a library in some places; None where it has no tokens."""
    library = chance.choice([one for one in LIBRARIES if one.name in ROOTS])
    classes, methods, members, arguments = names_of(library)
    rate = chance.choice([0.02, 0.1, 0.4])
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return None
    lines = source.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    depth, edits = 0, []
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        depth += {"(": 1, ")": -1}.get(token.string, 0) if token.type == tokenize.OP else 0
        if token.type != tokenize.NAME or keyword.iskeyword(token.string) or chance.random() > rate:
            continue
        if before.string == "def":
            new = chance.choice(methods)
        elif before.string == ".":
            new = chance.choice(members)
        elif before.string in "(," and after.string == "=" and depth:
            new = chance.choice(arguments)
        elif after.string == "(" and before.string != "class":
            new = chance.choice([*classes, "Trainer", "self.trainer.fit", "trainer.test", "self.log"])
        else:
            continue
        edits.append((token.start, token.end, new))
    for (row, start), (_, end), new in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + new + line[end:]
    text = "".join(lines)
    tree_bases = f"({chance.choice(classes)}):"
    text = (
        text.replace("(object):", tree_bases)
        if chance.random() < 0.5
        else text.replace("():", tree_bases, 3)
    )
    head = f"{IMPORTS[library.name]}\n" if "from __future__" not in text else ""
    tail = "" if head else f"\n{IMPORTS[library.name]}\n"
    return (head + text + tail).encode("utf-8", "surrogateescape")


def is_python(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError):
            return False
    return True


def read(path, source, seed):
    path.write_bytes(source)
    try:
        report = analyse(path)
    except Exception as error:
        error.add_note(f"seed {seed}: {path}")
        raise
    if report.error == TOO_DEEP:  # tables of 256 strings in a row, which libcst nests
        return report
    assert report.error is None, (seed, report.error)
    assert is_python(report.rewritten), seed
    return report


@pytest.mark.fit  # for its length
def test_any_source_is_read_and_what_is_written_of_it_is_python(tmp_path):
    short = [path for path in sorted(LIBRARY.glob("*.py")) if path.stat().st_size < 5_000]
    texts = [text for text in programs() if len(text) < 4_000]
    tried = 0
    for seed in range(12):
        chance = random.Random(seed)
        text = chance.choice(texts) if seed % 2 else chance.choice(short).read_bytes()
        tried += read_sown(tmp_path / "source.py", text, seed, chance)
    assert tried > 6


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_every_source_is_read_as_it_is_and_sown(part, tmp_path):
    texts = [*(path.read_bytes() for path in library()), *programs()]
    tried = 0
    for number, text in enumerate(texts[part::20]):
        if is_python(text):
            read(tmp_path / "source.py", text, "as it is")
        chance = random.Random(f"{part} {number}")
        tried += read_sown(tmp_path / "source.py", text, (part, number), chance)
    assert tried > 12


def read_sown(path, text, seed, chance):
    """Read a source with names sown into it, and what is written of it; False: it is no Python then."""
    text = sown(text, chance)
    if text is None or not is_python(text):
        return False
    report = read(path, text, seed)
    if report.error is None:
        read(path, report.rewritten, seed)
    return report.error is None
