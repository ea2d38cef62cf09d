"""Seconds and bytes of a first install of the last commit's wheel, with constraints.txt.

    python benchmarks/install.py [--only NAME] [--json FILE]      (needs the extra `release`)

Each is installed by uv twice, in two new environments, and the second is timed: packages come from uv's
cache on this disk, and a download comes on top. Bytes are the files', though uv links them to its cache.
``torch`` is what the index gives; UV_FIND_LINKS or UV_TORCH_BACKEND=cpu make it the one without CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
WITHOUT = "deepspeed; sys_platform == 'never'\n"
KINDS = {
    "without DeepSpeed": "",
    "paceline": "",
    "paceline[recipes]": "[recipes]",
    "all extras": f"[{','.join(EXTRAS)}]",
}


def uv(*arguments: str) -> str:
    return subprocess.check_output([Path(sys.executable).with_name("uv"), *arguments], text=True)


def install(kind: str, wheel: Path, folder: Path) -> dict[str, float | str]:
    """Make an environment in a folder that does not exist; what that took, and what is in it."""
    begun, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    uv("venv", "-q", str(folder))
    overrides = folder / "overrides.txt"
    overrides.write_text(WITHOUT if kind == "without DeepSpeed" else "")
    where = ["--python", str(folder), "--override", str(overrides), "-c", str(ROOT / "constraints.txt")]
    uv("pip", "install", "-q", *where, f"{wheel}{KINDS[kind]}")
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    packages = json.loads(uv("pip", "list", "-q", "--python", str(folder), "--format", "json"))
    (site,) = folder.glob("lib/python*/site-packages")
    return {
        "seconds": round(took, 1),
        "CPU seconds": round(after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime, 1),
        "packages": len(packages),
        "MB": size(site),
        "MB of torch": size(site / "torch"),
        "torch": next(package["version"] for package in packages if package["name"] == "torch"),
    }


def size(folder: Path) -> int:
    """Of all files in it, in MB."""
    return round(sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6)


def measured(kind: str, wheel: Path, work: Path) -> dict[str, float | str]:
    """The second of two installs, with the load of the machine at its start."""
    install(kind, wheel, work / "first")
    busy = round(os.getloadavg()[0], 1)
    return {**install(kind, wheel, work / "second"), "load": busy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as made:
        done = subprocess.check_output([sys.executable, str(ROOT / ".ci/build"), made], text=True)
        wheel = Path(re.findall(r"^.+\.whl$", done, re.MULTILINE)[0])
        for kind in [arguments.only] if arguments.only else KINDS:
            with tempfile.TemporaryDirectory() as work:
                result[kind] = measured(kind, wheel, Path(work))
            row = "  ".join(f"{key} {value}" for key, value in result[kind].items())
            print(f"{kind:<20}{row}", flush=True)
        found = {"cores": os.cpu_count(), "wheel kB": round(wheel.stat().st_size / 1e3), "result": result}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
