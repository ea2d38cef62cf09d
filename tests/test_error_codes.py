"""Each error of the package has a code, and each code a page, which ``paceline explain`` prints."""

import ast
import copy
import functools
import json
import pickle
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import paceline
from paceline import PacelineError, Trainer
from paceline.__main__ import app
from paceline.commands.pages import files, read
from paceline.errors import explained, report, users_traceback
from paceline.trainer.checkpoint.files.json_codec import NotPlainError

ROOT = Path(paceline.__file__).parent
ELSEWHERE = {"tests", "benchmarks", "docs", "build"}
FORM = r"[a-z0-9]+(-[a-z0-9]+){1,3}"
PASSED_ON = {  # how often a code is that of another error, or of a caller
    "errors.py": 1,
    "recipes/language/data/loading.py": 1,
    "strategies/launch/forked_ranks.py": 1,
    "strategies/ranks/collectives.py": 1,
    "trainer/config/validation.py": 1,
}
PAGES = {page.code: page for page in map(read, files())}


@functools.cache
def nodes():
    """By file, the nodes of its tree; files that make no error are skipped."""
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    ours = sorted(p for p in paths if p.parts[0] not in ELSEWHERE and not p.parts[0].startswith("."))
    texts = {str(path): (ROOT / path).read_text() for path in ours}
    made = {path: text for path, text in texts.items() if "Error(" in text or "report(" in text}
    return {path: [*ast.walk(ast.parse(text))] for path, text in made.items()}


def name_of(node):
    return getattr(node, "id", None) or getattr(node, "attr", None)


@functools.cache
def kinds():
    """The classes of errors, by name, with the code that a class has itself."""
    classes = [n for found in nodes().values() for n in found if isinstance(n, ast.ClassDef)]
    found = {"PacelineError": None}
    for _ in range(3):  # a subclass of a subclass
        for one in classes:
            if any(name_of(base) in found for base in one.bases):
                given = [
                    n for n in one.body if isinstance(n, ast.Assign) and name_of(n.targets[0]) == "code"
                ]
                found[one.name] = given[0].value.value if given else None
    return found


def imports_report(node):
    is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").endswith("errors")
    return is_ours and "report" in {alias.name for alias in node.names}


class Site(NamedTuple):
    """A call that makes an error: its code (None without one, False for that of another error)."""

    place: str
    code: str | bool | None
    what: ast.expr | None
    is_report: bool


@functools.cache
def sites():
    found = []
    for path, all_nodes in nodes().items():
        has_report = any(map(imports_report, all_nodes))
        for node in all_nodes:
            name = name_of(node.func) if isinstance(node, ast.Call) else None
            is_report = has_report and name == "report" and isinstance(node.func, ast.Name)
            if name not in kinds() and not is_report:
                continue
            given = next((k.value for k in node.keywords if k.arg == "code"), None)
            code = kinds().get(name) if given is None else getattr(given, "value", None)
            if isinstance(given, (ast.Name, ast.Attribute)) and name_of(given) == "code":
                code = False
            what = node.args[0] if node.args and not is_report and kinds()[name] is None else None
            found.append(Site(f"{path}:{node.lineno}", code, what, is_report))
    return found


@functools.cache
def sentences():
    """All texts of those files that may be a message."""
    texts = {
        pattern(n)
        for found in nodes().values()
        for n in found
        if isinstance(n, (ast.Constant, ast.JoinedStr))
    }
    return [text for text in texts if text.count("\\ ") > 2 and "\n" not in text]


def pattern(node):
    """What a message looks like, as a regular expression."""
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(map(pattern, node.values))
    if isinstance(node, ast.BinOp):
        return pattern(node.left) + pattern(node.right)
    if isinstance(node, ast.IfExp):
        return f"({pattern(node.body)}|{pattern(node.orelse)})"
    return ".*"


def test_every_error_of_the_package_has_a_code():
    without = [site.place for site in sites() if site.code is None]
    assert not without, 'PacelineError(..., code="..."), one of docs/errors'
    passed = [site.place.partition(":")[0] for site in sites() if site.code is False]
    assert {path: passed.count(path) for path in passed} == PASSED_ON
    assert len(sites()) > 650


def test_every_code_has_a_page_and_every_page_a_code():
    used = {site.code for site in sites() if site.code}
    assert used == {*PAGES}
    assert all(re.fullmatch(FORM, code) for code in used)


@pytest.mark.parametrize("code", PAGES)
def test_a_page_says_what_its_error_says(code):
    text = (ROOT / "docs" / "errors" / f"{code}.md").read_text()
    assert text.startswith(f"# {code}\n\n")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Why it happens", "How to mend it"]
    (example,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    what = re.split(r"\n  (?:where|got|allowed|did you mean|fix):", example.rstrip("\n"))[0]
    here = [site for site in sites() if site.code == code]
    forms = {r".+: \d+ invalid .+" if site.is_report else pattern(site.what) for site in here}
    if ".*" in forms:  # made elsewhere
        forms = {*forms, *sentences()} - {".*"}
    assert any(re.fullmatch(form, what, re.DOTALL) for form in forms), what


def test_the_index_is_up_to_date():
    made = runpy.run_path(str(ROOT / "tests" / "make_errors.py"))
    assert made["INDEX"].read_text() == made["index"](), "python tests/make_errors.py"


# -- an error ------------------------------------------------------------------------------------


def printed(error):
    return "".join(traceback.format_exception(error)).splitlines()


def test_a_message_is_as_before_and_the_code_is_printed_below_it():
    error = PacelineError("no", code="no-data", fix="yes")
    assert str(error) == "no\n  fix: yes"
    assert error.code == "no-data"
    assert printed(error)[-1] == explained("no-data") == "  more: paceline explain no-data"
    assert users_traceback(error).splitlines()[-1] == explained("no-data")
    assert error._render_traceback_()[-1] == explained("no-data")


def test_a_users_error_needs_no_code():
    error = PacelineError("no")
    error.add_note("a note")
    assert error.code is None
    assert printed(error)[-2:] == ["paceline.errors.PacelineError: no", "a note"]


def test_notes_stand_above_the_code_which_is_printed_once():
    error = PacelineError("no", code="no-data")
    error.add_note("one")
    error.add_note("two")
    assert printed(error)[-3:] == ["one", "two", explained("no-data")]
    assert printed(error).count(explained("no-data")) == 1


@pytest.mark.parametrize("count", [1, 7, 8, 40])
def test_a_report_has_at_most_12_lines_with_its_code(count):
    with pytest.raises(PacelineError) as raised:
        raise report("Trainer", [f"one{n}: got 0" for n in range(count)], code="invalid-arguments")
    lines = users_traceback(raised.value).splitlines()
    assert len(lines) <= 12
    named = [line for line in lines if line.endswith(": got 0")]
    rest = [line for line in lines if line == f"  and {count - len(named)} more"]
    assert len(named) == count or rest


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "make", [lambda: PacelineError("no", code="no-data"), lambda: NotPlainError("here", "a set")]
)
def test_another_process_is_given_the_code_too(make, again):
    error = make()
    error.add_note("a note")
    got = again(error)
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))
    assert printed(got)[-2:] == ["a note", explained(error.code)]


@pytest.mark.launch
def test_python_and_the_command_line_print_it_last_and_once(tmp_path):
    script = "import paceline; raise paceline.PacelineError('no', code='no-data')"
    shown = ["-c", script], ["-m", "paceline", "recipes", "show", "digit"]
    for command, code in zip(shown, ("no-data", "unknown-recipe"), strict=True):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == explained(code)
        assert done.stderr.count(explained(code)) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"strategy": "dpp"}, "unknown-strategy"),
        ({"precision": "bf61"}, "unknown-precision"),
        ({"accelerator": "abacus"}, "device-not-found"),
        ({"callbacks": ["none-such"]}, "plugin-not-usable"),
        ({"max_steps": -1}, "invalid-arguments"),
        ({"strategy": "dpp", "precision": "bf61"}, "invalid-arguments"),
    ],
)
def test_a_report_of_one_argument_has_the_code_of_its_mistake(arguments, code):
    with pytest.raises(PacelineError) as raised:
        Trainer(**arguments)
    assert raised.value.code == code


# -- paceline explain ----------------------------------------------------------------------------


def explain(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_explain_prints_a_page_as_text():
    lines = explain("not-finite").output.splitlines()
    assert lines[0] == "not-finite"
    assert lines[2] == PAGES["not-finite"].summary
    assert "    the loss is nan; nothing was updated" in lines
    assert lines[-1].startswith("More: Failures")
    assert explain("Not_Finite").output.splitlines() == lines


def test_no_page_has_marks_of_links_or_blocks():
    for page in PAGES.values():
        assert not re.search(r"\]\(|```|^#", page.text, re.MULTILINE), page.code


def test_explain_lists_all_codes_by_family():
    lines = explain().output.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] != []
    assert {line.split()[0] for line in lines if line.startswith("  ")} == {*PAGES}
    families = [line for line in lines if not line.startswith("  ")]
    assert families == sorted({page.family for page in PAGES.values()})


def test_explain_gives_json():
    found = json.loads(explain("not-finite", "--json").output)
    assert found == {
        "code": "not-finite",
        "summary": PAGES["not-finite"].summary,
        "family": PAGES["not-finite"].family,
        "text": PAGES["not-finite"].text,
    }
    every = json.loads(explain("--json").output)
    assert {one["code"]: one["summary"] for one in every} == {c: p.summary for c, p in PAGES.items()}


def test_an_unknown_code_is_answered_with_the_nearest():
    error = explain("not-finit").exception
    assert isinstance(error, PacelineError)
    assert "did you mean: not-finite?" in str(error)
