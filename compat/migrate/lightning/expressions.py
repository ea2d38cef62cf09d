"""Expressions of Lightning code that one table of names cannot say: hparams, metrics, loggers, returns."""

from __future__ import annotations

import libcst as cst

from .. import edits
from ..context import Context
from ..resolve import Kind, code_of, dotted, is_steady, shown, text_of
from ..tables import Entry, Group, changes, dropped, rewrite
from ..translation import literal
from . import checkpoints, files, results
from .scalars import is_scalar, returns_of

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


_TIMES = ("time_elapsed", "time_remaining")
_SECONDS = rewrite('Timer of paceline.callbacks has seconds("train"); max_time ends a run')


def attribute(scanner: Context, node: cst.Attribute) -> bool:
    """``self.hparams.lr``, ``self.logger.experiment.add_image``: True where all is said."""
    inner = node.value
    if node.attr.value in _TIMES and "Timer" in scanner.code and scanner.found.libraries:
        scanner.report(node, scanner.found.libraries[0], _SECONDS, shown(node))
    if node.attr.value == "log_dir" and _folder_of_logger(scanner, node):
        return True
    if not isinstance(inner, cst.Attribute):
        return checkpoints.path(scanner, node)
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
        if node.attr.value == "log_dir" and logger is inner:
            files.folder(scanner, node, kind, inner.value)
        else:
            scanner.report(node.attr, kind.library, entry, shown(node))
        return True
    kind = scanner.kind_of(inner.value)
    if kind is not None and _is(scanner, inner, ("checkpoint_callback",), "Trainer"):
        return checkpoints.of_trainer(scanner, node, inner, kind)
    return checkpoints.path(scanner, node)


def _folder_of_logger(scanner: Context, node: cst.Attribute) -> bool:
    """``logger.log_dir`` of a logger in a variable, beside the one Trainer of a function."""
    kind, trainers = scanner.kind_of(node.value), scanner.named("Trainer")
    loggers = ("CSVLogger", "TensorBoardLogger")
    if kind is None or kind.library.name != "lightning" or kind.name not in loggers or len(trainers) != 1:
        return False
    files.folder(scanner, node, kind, cst.Name(trainers[0]))
    return True


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


def subscript(scanner: Context, node: cst.Subscript) -> None:
    """``trainer.callback_metrics["val_loss"]``, and what an evaluation returned."""
    index = node.slice[0].slice
    if not isinstance(index, cst.Index):
        return
    if isinstance(node.value, cst.Attribute) and _is(scanner, node.value, _METRICS, "Trainer"):
        key = text_of(index.value)
        if key is not None:
            results.metric(scanner, index.value, key, scanner.kind_of(node.value.value), shown(node.value))
    results.subscript(scanner, node)
    checkpoints.subscript(scanner, node)


def contains(scanner: Context, node: cst.Comparison) -> None:
    """``"val_loss" in trainer.callback_metrics``, and in what an evaluation returned."""
    key, target = text_of(node.left), node.comparisons[0].comparator
    if key is not None and isinstance(target, cst.Attribute) and _is(scanner, target, _METRICS, "Trainer"):
        results.metric(scanner, node.left, key, scanner.kind_of(target.value), shown(target))
    results.contains(scanner, node)


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
            results.metric(scanner, node.args[0].value, key, scanner.kind_of(inner.value), shown(inner))
        return
    if kind is not None and kind.key == ("lightning", "Trainer"):
        _trainer_call(scanner, node, kind, name, dotted(inner))
    facts = scanner.facts.get(dotted(inner))
    if kind is not None and name == "load_from_checkpoint" and facts and _LOADED in facts.methods:
        text = f"{_LOADED} is called only when a run resumes: set here what it would"
        scanner.report(node, kind.library, rewrite(text), shown(node.func))


_LOADED = "on_load_checkpoint"


def _trainer_call(scanner: Context, node: cst.Call, kind: Kind, name: str, trainer: str) -> None:
    """Remember what is fitted, and give it to evaluations that name no module."""
    given = {arg.keyword.value: arg.value for arg in node.args if arg.keyword}
    first = next((arg.value for arg in node.args if not arg.keyword and not arg.star), given.get("model"))
    if name in ("fit", "validate", "test", "predict"):
        scanner.started.add(trainer)
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
    """``self.save_hyperparameters()`` and ``module.freeze()``."""
    value = node.value
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return
    if _is(scanner, value.func, ("freeze", "unfreeze"), "LightningModule") and not value.args:
        _freeze(scanner, node, value.func)
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
        return
    only = value.args[0] if len(value.args) == 1 and value.args[0].keyword is None else None
    if only is not None and not only.star and text_of(only.value) is None:
        code = f"self.hparams.update({_mapping(scanner, only.value)})"
        scanner.found.edit(node, lambda _: cst.Expr(cst.parse_expression(code)))
        entry = rewrite("hparams have the constructor's arguments; what one of them holds is added")
    else:
        scanner.found.edit(node, edits.removed)
        entry = dropped("hparams record the constructor's arguments by themselves")
    scanner.report(value, kind.library, entry, title, True)


def _freeze(scanner: Context, node: cst.Expr, function: cst.Attribute) -> None:
    thaws, kind = function.attr.value == "unfreeze", scanner.kind_of(function.value)
    assert kind is not None
    call = f"requires_grad_({thaws}).{'train' if thaws else 'eval'}()"

    def edit(updated: cst.Expr) -> cst.Expr:
        module = cst.ensure_type(cst.ensure_type(updated.value, cst.Call).func, cst.Attribute).value
        return cst.Expr(cst.parse_expression(f"{code_of(module)}.{call}"))

    scanner.handled(function)
    scanner.found.edit(node, edit)
    entry = rewrite(f"write {call} of the module, or Freeze of paceline.callbacks in a fit")
    scanner.report(function.attr, kind.library, entry, shown(function), True)


def _mapping(scanner: Context, node: cst.BaseExpression) -> str:
    """The code of a mapping with what an object holds: a dictionary, a namespace, a configuration."""
    code = code_of(node)
    function = dotted(node.func).rpartition(".")[2] if isinstance(node, cst.Call) else ""
    if isinstance(node, (cst.Dict, cst.DictComp)) or function in ("dict", "vars", "asdict"):
        return code
    for parameter in scanner.functions[-1].params.params if scanner.functions else ():
        if parameter.name.value == code and parameter.annotation is not None:
            name = dotted(parameter.annotation.annotation).rpartition(".")[2]
            if name == "Namespace":
                return f"vars({code})"
    return f'{code} if hasattr({code}, "keys") else vars({code})' if is_steady(node) else code


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
    """A mapping out of a step, or out of the method that it calls: its values are logged."""
    if not scanner.functions or not scanner.classes:
        return
    (kind, facts), function = scanner.classes[-1], scanner.functions[-1]
    step, values = function.name.value, [node.value] if node.value is not None else []
    if kind is None or kind.key != ("lightning", "LightningModule"):
        return
    if step not in ("training_step", "validation_step", "test_step"):
        return
    if isinstance(node.value, cst.Call) and dotted(node.value.func).startswith("self."):
        other = facts.methods.get(dotted(node.value.func).removeprefix("self."))
        if other is not None:
            function, values = other, returns_of(other)
    found = [one for value in values if isinstance(value, cst.Dict) for one in value.elements]
    others = [
        one
        for one in found
        if isinstance(one, cst.DictElement) and text_of(one.key) not in ("loss", "weight")
    ]
    wide = [one for one in others if not is_scalar(one.value, function)]
    title = f"return of {step}"
    if wide:
        instead = "keep it in an attribute, and return the loss alone"
        if step != "training_step":
            instead = "return a tuple, of which nothing is, and read outputs[0] in hooks"
        scanner.report(node, kind.library, rewrite(f"{_named(wide)} would be logged: {instead}"), title)
    elif others:
        text = f"{_named(others)} is logged, and has to be a single number; return the loss alone otherwise"
        scanner.report(node, kind.library, changes(text), title)


def _named(elements: list[cst.DictElement]) -> str:
    return ", ".join(text_of(one.key) or "?" for one in elements)
