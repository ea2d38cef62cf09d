"""The public packages, as docs/api/README.md has them."""

import runpy
from pathlib import Path

import paceline

PACKAGES = runpy.run_path(str(Path(paceline.__file__).parent / "tests" / "make_api.py"))["PACKAGES"]
