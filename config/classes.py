"""Classes and functions that a config names, with arguments typed by their own signatures.

``{class: torch.optim.AdamW, lr: 1e-3}``, or only the name: a model made by pydantic from the signature
checks the arguments. Nothing is built here; ``ClassSpec`` builds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, get_args

from pydantic import ValidationError, create_model

from ..errors import PacelineError, nearest, shown, users_line
from ..plugins import folded
from ..trainer.utils.secrets import masked
from .importing import FORMS, OfLibrary, import_object, is_import_path
from .kinds import acts_by_itself, is_subclass, returned
from .signatures import (
    CONFIG,
    fields_of,
    is_plain_class,
    kinds_of,
    model_of,
    name_of,
    parameters_of,
    takes_callable,
)
from .sources import CLASS
from .violations import Problems, booleans_as_numbers, violations

_MOST_CHOICES = 30


@dataclass(frozen=True)
class Slot:
    """What a value of a config may be, where it names a class or a function.

    Args:
        what: In words, for messages: ``an optimizer``.
        base: What a class must be a subclass of, and a function annotated to return; None: anything.
        modules: Whose classes and functions can be named without their module.
        names: Others that have a name; those of other libraries as ``OfLibrary``.
        provided: How many of the first arguments are given when it is called, not in the config.
        serves: Whether objects of a type that is no subclass of ``base`` may be here too.
        is_function: Whether a function is what is needed here, and not called to make it.
    """

    what: str
    base: type | None = None
    modules: tuple[ModuleType, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    provided: int = 0
    serves: Callable[[Any], bool] | None = None
    is_function: bool = False

    def find(self, name: str) -> Any:
        """The class or function of this name, or at this import path.

        Raises:
            PacelineError: where there is none, and where it is of another kind than this place needs.
        """
        found = next((one for known, one in self.names.items() if folded(known) == folded(name)), None)
        for module in self.modules:
            found = getattr(module, name, None) if found is None and name.isidentifier() else found
        for module in self.modules if found is None else ():  # adamw is AdamW
            same = [one for one in self.public(module) if folded(one) == folded(name)]
            found = getattr(module, same[0]) if same and found is None else found
        if isinstance(found, OfLibrary):
            found = found.load()
        if found is None and is_import_path(name):
            found = import_object(name)
        if found is None:
            known = [*self.names, *(one for module in self.modules for one in self.public(module))]
            raise PacelineError(
                f"there is no {self.what.removeprefix('a ').removeprefix('an ')} {name!r}",
                code="unknown-choice",
                allowed=(", ".join(known) + ", or " if 0 < len(known) <= _MOST_CHOICES else "")
                + f"an import path: {FORMS}",
                meant=nearest(name, known),
            )
        if not callable(found):
            raise PacelineError(f"{name} is not {self.what}", code="class-not-suitable", got=found)
        self._check_kind(name, found)
        return found

    def _takes(self, kind: Any) -> bool:
        if self.base is not None and is_subclass(kind, self.base):
            return True
        return self.serves(kind) if self.serves is not None else self.base is None

    def _check_kind(self, name: str, found: Any) -> None:
        """See that a class is of the kind that is needed here, and that a function makes one."""
        is_class = isinstance(found, type)
        if self.base is None and acts_by_itself(found):
            raise PacelineError(
                f"{name} of Python's own does more than hold or compute a value: no config may call it",
                code="class-not-suitable",
                fix="a class or function of your own that calls it",
            )
        kinds = (found,) if is_class else returned(found)
        if (is_class or not self.is_function) and kinds and not any(map(self._takes, kinds)):
            gives = " or ".join(map(name_of, kinds))
            is_duck = is_class and hasattr(found, "train_dataloader")
            raise PacelineError(
                f"{name} is not {self.what}",
                code="class-not-suitable",
                got=f"the class {gives}" if is_class else f"a function that returns {gives}",
                fix=f"class {gives}(paceline.DataModule)" if is_duck else None,
            )
        if not kinds and not self.is_function:
            made = "THE TYPE" if self.base is None else self.base.__name__
            raise PacelineError(
                f"{name} is a function that does not say what it returns, so it is not called to make "
                + self.what,
                code="class-not-suitable",
                fix=f"def {name_of(found)}(...) -> {made}:",
            )

    def public(self, module: ModuleType) -> list[str]:
        """The names of the classes of a module that fit, without those that it has imported."""
        return [
            name
            for name, one in vars(module).items()
            if isinstance(one, type)
            and not name.startswith("_")
            and one.__module__.startswith(module.__name__)
            and self._fits(one)
        ]

    def _fits(self, one: type) -> bool:
        return self.base is None or (issubclass(one, self.base) and one is not self.base)


ANYTHING = Slot("a class or function")
FUNCTION = Slot("a class or function", is_function=True)


@dataclass(frozen=True)
class ClassSpec:
    """A class or function with checked arguments.

    Attributes:
        target: It.
        arguments: By name; those that are classes with arguments themselves are ``ClassSpec`` objects.
        is_partial: Whether it is to be built as a function that takes the rest of its arguments.
    """

    target: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    is_partial: bool = False

    def build(self, *provided: Any) -> Any:
        """Call it.

        Args:
            *provided: Its first arguments.
        """
        arguments = {name: _built(value) for name, value in self.arguments.items()}
        if self.is_partial:
            return partial(self.target, **arguments) if arguments else self.target
        return self.target(*provided, **arguments)


def _built(value: Any) -> Any:
    if isinstance(value, ClassSpec):
        return value.build()
    if isinstance(value, list):
        return [_built(one) for one in value]
    return {key: _built(one) for key, one in value.items()} if isinstance(value, dict) else value


def read_class(value: Any, slot: Slot, path: str, problems: Problems) -> ClassSpec | None:
    """The class and its checked arguments, or None after adding to ``problems``.

    Args:
        value: A name or an import path, or a mapping with one under ``class`` and its arguments.
        slot: What it may be.
        path: The dotted key that it has, for problems.
        problems: Takes what is wrong.
    """
    found = find_target(value, slot, path, problems)
    if found is None:
        return None
    target, given = found
    arguments = check_call(target, given, slot.provided, path, problems)
    return None if arguments is None else ClassSpec(target, arguments)


def find_target(
    value: Any, slot: Slot, path: str, problems: Problems
) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The class or function that a value names, and its arguments, which are not checked.

    Args:
        value: As ``read_class`` takes it; so are the others.
        slot: See there.
        path: See there.
        problems: See there.
    """
    given = dict(value) if isinstance(value, Mapping) else {CLASS: value}
    name = given.pop(CLASS, None)
    if not isinstance(name, str):
        allowed = "a name, or a mapping with a class and its arguments"
        problems.append(
            (path, f"got {shown(masked(value, path.rpartition('.')[2]), 60)}; allowed: {allowed}")
        )
        return None
    found = attempt(lambda: slot.find(name), path, problems)
    return None if found is None else (found, given)


def attempt(find: Callable[[], Any], path: str, problems: Problems) -> Any:
    """What code of the user gives, or None after adding what it raised to ``problems``."""
    try:
        return find()
    except (Exception, SystemExit) as error:  # the latter of a script that parses its arguments
        problems.append((path, in_one_line(error)))
        return None


def in_one_line(error: BaseException) -> str:
    """An error's message on one line; of the user's code, with its type and line."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    if isinstance(error, PacelineError):
        return text
    where = users_line(error)
    return f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")


def check_call(
    target: Callable[..., Any],
    given: Mapping[str, Any],
    provided: int,
    path: str,
    problems: Problems,
    is_partial: bool = False,
) -> dict[str, Any] | None:
    """The arguments as the signature has them, or None after adding to ``problems``.

    Args:
        target: What is to be called.
        given: Its arguments by name, from a config.
        provided: How many of the first arguments it gets besides.
        path: The dotted key of the call.
        problems: Takes what is wrong.
        is_partial: Whether others may follow later.
    """
    parameters, takes_more = parameters_of(target, provided)
    before = len(problems)
    nested: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, value in given.items():
        parameter = parameters.get(name)
        if parameter is None:
            if not takes_more:
                problems.append((f"{path}.{name}", _unknown(target, name, parameters)))
            nested[name] = _read_nested(value, False, f"{path}.{name}", problems)
        elif _has_class(value) or _is_imported(value, parameter.annotation):
            nested[name] = _read_argument(value, parameter.annotation, f"{path}.{name}", problems)
        else:
            plain[name] = value
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given and not is_partial
    ]
    if missing:
        mapping = ", ".join([f"{CLASS}: {name_of(target)}", *(f"{name}: ..." for name in missing)])
        written = f", as {{{mapping}}}" if not given else ""
        problems.append((path, f"{name_of(target)} needs {', '.join(missing)}{written}"))
    found = _checked(target, {name: parameters[name] for name in plain}, plain, path, problems)
    return found | nested if len(problems) == before else None


def _read_argument(value: Any, annotation: Any, path: str, problems: Problems) -> Any:
    """An argument that names classes or functions."""
    is_function = (
        isinstance(value, str) or _lists_functions(value, annotation) or takes_callable(annotation)
    )
    found = _read_nested(value, is_function, path, problems)
    if isinstance(found, ClassSpec) and not _fits(found, annotation):
        wanted = " or ".join(map(name_of, kinds_of(annotation)))
        problems.append((path, f"{name_of(found.target)} is no {wanted}"))
    return found


def _checked(
    target: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    path: str,
    problems: Problems,
) -> dict[str, Any]:
    """Arguments that name nothing, of the types that their parameters have."""
    try:
        model = model_of(target, parameters)(**given)
    except ValidationError as error:
        problems += [(f"{path}.{key}", text) for key, text in violations(error, given)]
        return {}
    found = {name: getattr(model, inner) for name, inner in fields_of(given).items()}
    problems += [(f"{path}.{key}", text) for key, text in booleans_as_numbers(given, found)]
    # pydantic gives an iterator for an Iterable, which can be read once
    return {
        name: one if isinstance(one, Sized) or not isinstance(given[name], list) else given[name]
        for name, one in found.items()
    }


def _lists_functions(value: Any, annotation: Any) -> bool:
    """Whether a value is a list for a parameter that takes a list of functions or classes."""
    return isinstance(value, list) and any(map(takes_callable, get_args(annotation)))


def _is_imported(value: Any, annotation: Any) -> bool:
    """Whether a string is the import path of what a parameter takes, which takes no such string itself."""
    if not isinstance(value, str):
        return _lists_functions(value, annotation)
    if takes_callable(annotation):
        return True
    if not is_import_path(value):
        return False
    probe: Any = create_model("Probe", __config__=CONFIG, probe=(annotation, ...))
    try:
        probe(probe=value)
    except ValidationError as error:
        return any(one["type"] == "is_instance_of" for one in error.errors())
    return False


def _fits(spec: ClassSpec, annotation: Any) -> bool:
    """Whether an object of a class is what a parameter takes; True where the type does not say."""
    kinds = kinds_of(annotation)
    if spec.is_partial or Any in kinds or not all(map(is_plain_class, kinds)):
        return True
    made = (spec.target,) if isinstance(spec.target, type) else returned(spec.target)
    return any(is_subclass(one, kinds) for one in made)


def _has_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return CLASS in value or any(map(_has_class, value.values()))
    return isinstance(value, list) and any(map(_has_class, value))


def _read_nested(value: Any, is_function: bool, path: str, problems: Problems) -> Any:
    """A value with the classes that are named in it."""
    if isinstance(value, str) and is_function:
        return attempt(lambda: _imported(value), path, problems)
    if isinstance(value, Mapping) and CLASS in value:
        if not is_function:
            return read_class(value, ANYTHING, path, problems)
        found = find_target(value, FUNCTION, path, problems)
        if found is None:
            return None
        target, given = found
        arguments = check_call(target, given, 0, path, problems, is_partial=True)
        return None if arguments is None else ClassSpec(target, arguments, is_partial=True)
    if isinstance(value, Mapping):
        return {
            key: _read_nested(one, is_function, f"{path}.{key}", problems) for key, one in value.items()
        }
    if isinstance(value, list):
        return [_read_nested(one, is_function, f"{path}.{n}", problems) for n, one in enumerate(value)]
    return value


def _imported(path: str) -> Any:
    """A function or class that is not called here, or another object."""
    found = import_object(path)
    return FUNCTION.find(path) if callable(found) else found


def _unknown(target: Any, name: str, parameters: Mapping[str, Any]) -> str:
    meant = nearest(name, parameters)
    hint = f"; did you mean {meant}?" if meant else f"; allowed: {', '.join(parameters) or 'none'}"
    return f"{name_of(target)} has no such argument{hint}"
