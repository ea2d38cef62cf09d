"""Expressions of Lightning code that one table of names cannot say: hparams, metrics, loggers, returns."""

from __future__ import annotations

import libcst as cst

from . import edits
from .context import Context
from .resolve import Kind, dotted, shown, text_of
from .tables import Entry, Group, changes, dropped, renamed, rewrite
from .translation import literal

_OF_DICT = {"items", "keys", "values", "get", "update", "pop", "setdefault", "copy", "clear", "popitem"}
_METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
_TENSOR = ("item", "cpu", "detach")
LOGGERS: dict[str, str] = {
    "add_scalar": "write self.log(name, value)",
    "add_scalars": "write self.log_dict(values)",
    "add_image": "write self.log_image(name, image)",
    "add_images": "write self.log_image(name, images)",
    "add_figure": "write self.log_image(name, figure)",
    "add_histogram": "write self.log_histogram(name, values)",
    "add_text": "write self.log_text(name, text)",
    "add_graph": "leave it out",
    "log_metrics": "write self.log_dict(values)",
    "log_image": "write self.log_image(name, image)",
    "log_table": "write self.log_table(name, columns, rows)",
    "log_hyperparams": "leave it out: hparams are in config.yaml and in the loggers",
    "log_graph": "leave it out",
    "watch": "write callbacks=[Norms()], of paceline.callbacks",
    "save_dir": "self.trainer.folder is the run's folder",
    "log_dir": "self.trainer.folder is the run's folder",
    "version": "self.trainer.folder is the run's folder",
}


def attribute(scanner: Context, node: cst.Attribute) -> bool:
    """``self.hparams.lr``, ``self.logger.experiment.add_image``: True where all is said."""
    inner = node.value
    if not isinstance(inner, cst.Attribute):
        return False
    if _is(scanner, inner, ("hparams", "hparams_initial"), "LightningModule", "LightningDataModule"):
        return _hparam(scanner, node, inner)
    logger = inner
    if isinstance(inner.value, cst.Attribute) and inner.attr.value == "experiment":
        logger = inner.value
    if node.attr.value in LOGGERS and _is(scanner, logger, ("logger",), "LightningModule", "Trainer"):
        kind = scanner.kind_of(logger.value)
        assert kind is not None
        entry = rewrite(LOGGERS[node.attr.value])
        scanner.handled(logger)
        scanner.report(node.attr, kind.library, entry, shown(node))
        return True
    callback = _is(scanner, inner, ("checkpoint_callback",), "Trainer")
    if callback and node.attr.value in ("best_model_path", "last_model_path"):
        kind = scanner.kind_of(inner.value)
        assert kind is not None
        new = "best" if node.attr.value == "best_model_path" else "latest"
        scanner.handled(inner)
        scanner.found.edit(
            node, lambda updated: updated.with_changes(value=updated.value.value, attr=cst.Name(new))
        )
        entry = renamed(f"trainer.{new}", "a path")
        scanner.report(node.attr, kind.library, entry, shown(node), True)
        return True
    return False


def _is(scanner: Context, node: cst.Attribute, names: tuple[str, ...], *owners: str) -> bool:
    """Whether this is one of these attributes, of an object of one of these classes."""
    if node.attr.value not in names:
        return False
    kind = scanner.kind_of(node.value)
    if kind is None or kind.library.name != "lightning" or kind.name not in owners:
        return False
    own = scanner.classes[-1][1].own if dotted(node.value) == "self" and scanner.classes else set()
    return node.attr.value not in own


def _hparam(scanner: Context, node: cst.Attribute, inner: cst.Attribute) -> bool:
    name = node.attr.value
    kind = scanner.kind_of(inner.value)
    assert kind is not None
    scanner.handled(inner)
    if inner.attr.value != "hparams":
        scanner.found.edit(inner, edits.attribute("hparams"))
    if name in _OF_DICT:
        return True
    title = shown(node)
    runs = Entry(Group.RUNS, "")
    if dotted(inner.value) == "self" and scanner.classes[-1][1].hparams_object:
        text = "hparams has each argument of the constructor by its name: take it from the argument"
        scanner.report(node.attr, kind.library, rewrite(text), title)
    else:
        scanner.report(node.attr, kind.library, runs, title)
    return True


def full_name(key: str) -> str | None:
    """A metric of Lightning as it is called here, where that is sure."""
    for phase in ("val", "test"):
        if key.startswith(f"{phase}_"):
            return f"{phase}/{key.removeprefix(f'{phase}_').removesuffix('_epoch')}"
    return key if key.startswith(("val/", "test/")) else None


def subscript(scanner: Context, node: cst.Subscript) -> None:
    """``trainer.callback_metrics["val_loss"]``, and ``trainer.test(...)[0]``."""
    index = node.slice[0].slice
    if not isinstance(index, cst.Index):
        return
    if isinstance(node.value, cst.Attribute) and _is(scanner, node.value, _METRICS, "Trainer"):
        key = text_of(index.value)
        if key is not None:
            _metric(scanner, index.value, key, scanner.kind_of(node.value.value), shown(node.value))
    kind = _first_of_evaluation(scanner, node)
    if kind is not None:
        scanner.found.edit(node, lambda updated: updated.value)
        entry = rewrite("it returns one dict, not a list of them", "")
        call = cst.ensure_type(node.value, cst.Call)
        scanner.report(node, kind.library, entry, f"{shown(call)}[0]", True)
        return
    inner = node.value
    kind = _first_of_evaluation(scanner, inner) if isinstance(inner, cst.Subscript) else None
    key = text_of(index.value)
    if kind is not None and key is not None:
        _metric(scanner, index.value, key, kind, shown(inner))


def _first_of_evaluation(scanner: Context, node: cst.Subscript) -> Kind | None:
    """The trainer of ``trainer.test(...)[0]``."""
    call, index = node.value, node.slice[0].slice
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if not isinstance(index, cst.Index) or literal(index.value) != 0:
        return None
    kind = scanner.kind_of(call.func.value)
    is_trainer = kind is not None and kind.key == ("lightning", "Trainer")
    return kind if is_trainer and call.func.attr.value in ("test", "validate") else None


def _metric(scanner: Context, node: cst.BaseExpression, key: str, kind: Kind | None, owner: str) -> None:
    assert kind is not None
    new = full_name(key)
    title = f'{owner}["{key}"]'
    if new is None:
        bare = (
            key.removeprefix("train_").removeprefix("train/").removesuffix("_epoch").removesuffix("_step")
        )
        text = f'"train/{bare}_epoch" is the mean of the epoch, "train/{bare}" that of the last log window'
        known = key.startswith("train")
        scanner.report(node, kind.library, rewrite(text if known else _PHASES), title)
    elif new != key:
        scanner.found.edit(node, lambda _: cst.SimpleString(f'"{new}"'))
        scanner.report(node, kind.library, rewrite(f'it is called "{new}" here'), title, True)


_PHASES = 'names begin with the phase: "train/...", "val/...", "test/..."'


def call(scanner: Context, node: cst.Call, kind: Kind | None) -> None:
    """``metrics["val_loss"].item()``, ``metrics.get("val_loss")``, and evaluations without a module."""
    assert isinstance(node.func, cst.Attribute)
    name, inner = node.func.attr.value, node.func.value
    if name in _TENSOR and isinstance(inner, cst.Subscript) and isinstance(inner.value, cst.Attribute):
        if _is(scanner, inner.value, _METRICS, "Trainer"):
            scanner.found.edit(node, lambda updated: updated.func.value)
        return
    if name == "get" and isinstance(inner, cst.Attribute) and _is(scanner, inner, _METRICS, "Trainer"):
        key = text_of(node.args[0].value) if node.args else None
        if key is not None:
            _metric(scanner, node.args[0].value, key, scanner.kind_of(inner.value), shown(inner))
        return
    if kind is not None and kind.key == ("lightning", "Trainer"):
        _trainer_call(scanner, node, kind, name, dotted(inner))


def _trainer_call(scanner: Context, node: cst.Call, kind: Kind, name: str, trainer: str) -> None:
    """Remember what is fitted, and give it to evaluations that name no module."""
    given = {arg.keyword.value: arg.value for arg in node.args if arg.keyword}
    first = next((arg.value for arg in node.args if not arg.keyword and not arg.star), given.get("model"))
    if name == "fit" and first is not None and dotted(first):
        scanner.fitted[trainer] = dotted(first)
    if name not in ("validate", "test", "predict") or any(arg.star for arg in node.args):
        return
    if first is not None and literal(first) is not None:
        return
    module, path = scanner.fitted.get(trainer), given.get("ckpt_path")
    if module is not None and path is not None and "model" not in given:
        scanner.found.edit(node, edits.arguments(None, first=module))
        scanner.report(
            node,
            kind.library,
            rewrite(f"the module comes first: {name}({module}, ...)"),
            shown(node.func),
            True,
        )
    else:
        text = f'write {name}({module or "module"}, ..., weights="best"): Lightning took the best weights'
        scanner.report(node, kind.library, rewrite(text), shown(node.func))


def assignment(scanner: Context, node: cst.Assign) -> None:
    """``trainer.should_stop = True``."""
    target = node.targets[0].target
    if not isinstance(target, cst.Attribute) or len(node.targets) > 1 or literal(node.value) is not True:
        return
    if not _is(scanner, target, ("should_stop",), "Trainer"):
        return
    kind = scanner.kind_of(target.value)
    assert kind is not None
    scanner.handled(target)

    def edit(updated: cst.Assign) -> cst.Expr:
        function = cst.ensure_type(updated.targets[0].target, cst.Attribute).with_changes(
            attr=cst.Name("stop")
        )
        return cst.Expr(cst.Call(function, [cst.Arg(cst.SimpleString('"should_stop was set"'))]))

    scanner.found.edit(node, edit)
    entry = rewrite('call trainer.stop("why")')
    scanner.report(target, kind.library, entry, f"{dotted(target)} = True", True)


def statement(scanner: Context, node: cst.Expr) -> None:
    """``self.save_hyperparameters()``."""
    value = node.value
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return
    if not _is(scanner, value.func, ("save_hyperparameters",), "LightningModule", "LightningDataModule"):
        return
    kind = scanner.kind_of(value.func.value)
    assert kind is not None
    title, facts = dotted(value.func), scanner.classes[-1][1] if scanner.classes else None
    scanner.handled(value.func)
    if facts is not None and facts.hparams_object:
        text = "hparams has each argument of the constructor by its name; leave the call out"
        scanner.report(value, kind.library, rewrite(text), title)
    else:
        scanner.found.edit(node, edits.removed)
        entry = dropped("hparams record the constructor's arguments by themselves")
        scanner.report(value, kind.library, entry, title, True)


def dictionary(scanner: Context, node: cst.Dict) -> None:
    """A key of an lr_scheduler that is none here."""
    kind = scanner.classes[-1][0] if scanner.functions and scanner.classes else None
    if kind is None or kind.key != ("lightning", "LightningModule"):
        return
    elements = [one for one in node.elements if isinstance(one, cst.DictElement)]
    found = [one for one in elements if text_of(one.key) == "reduce_on_plateau"]
    if not found:
        return
    kept = [index for index, one in enumerate(node.elements) if one not in found]

    def edit(updated: cst.Dict) -> cst.Dict:
        rest = [updated.elements[index] for index in kept]
        if rest:
            rest[-1] = rest[-1].with_changes(comma=updated.elements[-1].comma)
        return updated.with_changes(elements=rest)

    scanner.found.edit(node, edit)
    entry = dropped("a scheduler with a monitor steps after each validation")
    scanner.report(found[0], kind.library, entry, '"reduce_on_plateau"', True)


def returned(scanner: Context, node: cst.Return) -> None:
    """A mapping out of a step: its values are logged."""
    if not isinstance(node.value, cst.Dict) or not scanner.functions or not scanner.classes:
        return
    kind, step = scanner.classes[-1][0], scanner.functions[-1].name.value
    if kind is None or kind.key != ("lightning", "LightningModule"):
        return
    if step not in ("training_step", "validation_step", "test_step"):
        return
    keys = [text_of(one.key) or "?" for one in node.value.elements if isinstance(one, cst.DictElement)]
    others = [key for key in keys if key not in ("loss", "weight")]
    if others:
        text = (
            f"{', '.join(others)} is logged, and has to be a single number; return the loss alone otherwise"
        )
        scanner.report(node, kind.library, changes(text), f"return of {step}")
