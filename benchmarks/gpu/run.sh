#!/usr/bin/env bash
# What a GPU shows: see run.py. Nothing is installed and nothing fetched: PYTHON, or python3, has torch 2.9 or
# newer, and paceline's dependencies; a peer that it does not have is a row that says so.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import paceline' 2>/dev/null; then  # the package is the repository's folder
  packages=$(mktemp -d)
  trap 'rm -rf "$packages"' EXIT
  ln -s "$root" "$packages/paceline"
  export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
fi
"$python" "$root/benchmarks/gpu/run.py" "$@"
