"""Runs a script whose fits do not scan what is imported.

python -m helpers.frozen_imports SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import runpy
import sys

from .collector import freeze_imports

if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # the largest that programs import, 300,000 objects
        import torchmetrics  # noqa: F401
    freeze_imports()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
