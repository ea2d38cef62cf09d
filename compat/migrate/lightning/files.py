"""Files of a program: configurations, and what it reads back of a run: values, events, names of files."""

from __future__ import annotations

import re

import libcst as cst

from ..context import Context
from ..resolve import Kind, code_of, dotted, shown, text_of
from ..tables import Library, renamed, rewrite
from ..translation import full_name

_PATHS = ("best_model_path", "last_model_path")
_PARTS = ("basename", "dirname", "split", "splitext")
_TABLE = rewrite("columns are train/loss, val/loss of val_loss, lr/SGD of lr-SGD, and step counts from 1")
_EVENTS = rewrite(
    "event files are in tb/ of the run's folder; names are train/loss, val/loss, and steps count from 1"
)
_NAME = rewrite(
    "a checkpoint is a folder checkpoints/step-00000500 of the run's, whatever dirpath and filename were"
)
_NO_FOLDER = rewrite("trainer.folder is None until fit begins: make what is in it in on_fit_start")
_TARGETS = rewrite(
    "a _target_ of lightning in its configuration becomes one of paceline, with the arguments of here"
)
_OWN = re.compile(r"model|module|data|net|optim|sched|loss|metric", re.IGNORECASE)  # classes of the program
_TAKE_PATHS = ("Path", "join", "open", "makedirs", "mkdir", "listdir", "exists", "isdir", "print", "str")
_NO_TEXT = rewrite("it is a pathlib.Path, checkpoints/step-00000500 in the run's folder")


def text(scanner: Context, node: cst.SimpleString | cst.FormattedStringText) -> None:
    """``"metrics.csv"``, whose columns have other names here; ``"val_loss/dataloader_idx_1"``."""
    library = _lightning(scanner)
    value = node.value if isinstance(node, cst.FormattedStringText) else text_of(node)
    if library is None or value is None:
        return
    if value.rpartition("/")[2] == "metrics.csv" and "CSVLogger" in scanner.code:
        scanner.report(node, library, _TABLE, "metrics.csv")
    elif isinstance(node, cst.SimpleString) and node not in scanner.found.edits:
        new = full_name(value) if "/dataloader_idx_" in value else None
        if new is not None:
            scanner.found.edit(node, lambda _: cst.SimpleString(f'"{new}"'))
            scanner.report(node, library, rewrite(f'it is called "{new}" here'), f'"{value}"', True)


def call(scanner: Context, node: cst.Call) -> None:
    """``EventAccumulator(folder)``, and ``os.path.basename(best.best_model_path)``."""
    library, full = _lightning(scanner), dotted(node.func)
    name, first = full.rpartition(".")[2], node.args[0].value if node.args else None
    if library is None:
        return
    scanner.started |= {dotted(arg.value) for arg in node.args}  # a trainer that another function may fit
    if name in _TAKE_PATHS:
        scanner.path_like |= {arg.value for arg in node.args}
    is_hydra = name == "instantiate" and "hydra" in scanner.code
    if name in ("EventAccumulator", "SummaryReader"):
        scanner.report(node, library, _EVENTS, name)
    elif first is not None and is_hydra and not _OWN.search(code_of(first)):
        scanner.report(node, library, _TARGETS, full)
    elif first is not None and full.startswith("os.path.") and name in _PARTS and _is_path(first):
        scanner.report(node, library, _NAME, f"{full}({code_of(first)})")


def attribute(scanner: Context, node: cst.Attribute) -> None:
    """``Path(best.best_model_path).name``, and methods of text of such a path."""
    library, inner, name = _lightning(scanner), node.value, node.attr.value
    if library is None:
        return
    if _is_path(inner):
        scanner.report(node, library, _NO_TEXT, shown(node))
    elif isinstance(inner, cst.Call) and name in ("name", "stem", "parent", "suffix", "parts"):
        given = inner.args[0].value if inner.args else inner
        if dotted(inner.func).rpartition(".")[2] == "Path" and _is_path(given):
            scanner.report(node, library, _NAME, f"{code_of(inner)}.{name}")


def folder(scanner: Context, node: cst.Attribute, kind: Kind, holder: cst.BaseExpression) -> None:
    """``trainer.log_dir``, and that of its logger: text there, a path here, and None before a run.

    Args:
        scanner: Takes what is found.
        node: The whole expression.
        kind: Whose attribute it is.
        holder: What has the folder: a trainer, or a module, whose trainer has it.
    """
    name, owner = code_of(holder), scanner.kind_of(holder)
    if owner is not None and owner.name == "LightningModule":
        name += ".trainer"
    given = {one.name.value for one in scanner.functions[-1].params.params} if scanner.functions else set()
    if name in scanner.named("Trainer") and name not in scanner.started | given:
        scanner.report(node.attr, kind.library, _NO_FOLDER, shown(node))
        return
    code = f"{name}.folder" if node in scanner.path_like else f"str({name}.folder)"
    scanner.found.edit(node, lambda _: cst.parse_expression(code))
    scanner.report(node.attr, kind.library, renamed(code, "a path"), shown(node), True)


def _is_path(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in _PATHS


def _lightning(scanner: Context) -> Library | None:
    return next((one for one in scanner.found.libraries if one.name == "lightning"), None)
