"""Every option that users can give is listed in ``options.txt``, which changes when one does."""

import runpy
from pathlib import Path


def test_options_are_those_of_the_list():
    written = runpy.run_path(str(Path(__file__).with_name("options.py")))
    assert written["FILE"].read_text().splitlines() == written["text"]().splitlines(), (
        "an option is new, renamed, or gone: python tests/options.py, and an entry in CHANGELOG.md"
    )
