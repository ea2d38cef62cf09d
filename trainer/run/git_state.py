"""The commit that a folder's files are of."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

_SECONDS = 0.3  # a large repository on a slow disk is not worth waiting for


def git_state(folder: Path) -> dict[str, Any]:
    """The repository, commit and branch of a folder, and whether tracked files differ from the commit.

    The commit is read from the files of the repository. ``git`` itself is asked only whether something
    differs: 4 ms in a repository of 1000 files; after 0.3 s that stays unknown.

    Args:
        folder: In a repository, or not.

    Returns:
        Empty outside a repository. ``dirty`` is None where it is not known.
    """
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            break
    else:
        return {}
    found: dict[str, Any] = {"folder": str(root)}
    with suppress(OSError, ValueError):
        git = _git_folder(root)
        head = (git / "HEAD").read_text().strip()
        reference = head.removeprefix("ref: ")
        if reference == head:
            found["commit"] = head
        else:
            found |= {"commit": _commit(git, reference), "branch": reference.removeprefix("refs/heads/")}
    return found | {"dirty": _is_dirty(root)}


def _git_folder(root: Path) -> Path:
    """``.git``, or where the file of that name of a worktree or submodule leads."""
    git = root / ".git"
    return git if git.is_dir() else root / git.read_text().removeprefix("gitdir:").strip()


def _commit(git: Path, reference: str) -> str | None:
    common = git / "commondir"
    folders = [git, git / common.read_text().strip()] if common.exists() else [git]
    for folder in folders:
        if (folder / reference).is_file():
            return (folder / reference).read_text().strip()
        packed = folder / "packed-refs"
        for line in packed.read_text().splitlines() if packed.is_file() else ():
            commit, _, name = line.partition(" ")
            if name == reference:
                return commit
    return None  # a new repository has none


def _is_dirty(root: Path) -> bool | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(done.stdout.strip()) if done.returncode == 0 else None
