"""Classes and functions that a config names, with arguments typed by their own signatures.

``{class: torch.optim.AdamW, lr: 1e-3}``, or only the name: a model made by pydantic from the signature
checks the arguments. Nothing is built here; ``ClassSpec`` builds.
"""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ..errors import PacelineError, nearest, shown, users_line
from ..plugins import folded
from .importing import FORMS, import_object, is_import_path
from .sources import CLASS
from .violations import Problems, booleans_as_numbers, violations

_MOST_CHOICES = 30


@dataclass(frozen=True)
class Slot:
    """What a value of a config may be, where it names a class or a function.

    Args:
        what: In words, for messages: ``an optimizer``.
        base: What a class must be a subclass of; None: anything.
        modules: Whose classes and functions can be named without their module.
        names: Others that have a name.
        provided: How many of the first arguments are given when it is called, not in the config.
        is_called: Whether it is called with its arguments; a function that is not is taken as it is.
    """

    what: str
    base: type | None = None
    modules: tuple[ModuleType, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    provided: int = 0
    is_called: bool = True

    def find(self, name: str) -> Any:
        """The class or function of this name, or at this import path.

        Raises:
            PacelineError: where there is none, and where it is no subclass of ``base``.
        """
        found = next((one for known, one in self.names.items() if folded(known) == folded(name)), None)
        for module in self.modules:
            found = getattr(module, name, None) if found is None and name.isidentifier() else found
        if found is None and is_import_path(name):
            found = import_object(name)
        if found is None:
            known = [*self.names, *(one for module in self.modules for one in self.public(module))]
            raise PacelineError(
                f"there is no {self.what.removeprefix('a ').removeprefix('an ')} {name!r}",
                allowed=(", ".join(known) + ", or " if 0 < len(known) <= _MOST_CHOICES else "")
                + f"an import path: {FORMS}",
                meant=nearest(name, known),
            )
        if self.base is not None and isinstance(found, type) and not issubclass(found, self.base):
            raise PacelineError(f"{name} is not {self.what}", got=f"the class {found.__name__}")
        if not callable(found):
            raise PacelineError(f"{name} is not {self.what}", got=found)
        return found

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
        problems.append((path, f"got {shown(value, 60)}; allowed: {allowed}"))
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
            of_items = isinstance(value, list) and any(map(takes_callable, get_args(parameter.annotation)))
            is_function = isinstance(value, str) or of_items or takes_callable(parameter.annotation)
            here = f"{path}.{name}"
            nested[name] = _read_nested(value, is_function, here, problems)
            if isinstance(nested[name], ClassSpec) and not _fits(nested[name], parameter.annotation):
                wanted = " or ".join(map(name_of, _kinds(parameter.annotation)))
                problems.append((here, f"{name_of(nested[name].target)} is no {wanted}"))
        else:
            plain[name] = value
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given and not is_partial
    ]
    if missing:
        mapping = ", ".join(f"{name}: ..." for name in (CLASS, *missing)).replace("...", name_of(target), 1)
        written = f", as {{{mapping}}}" if not given else ""
        problems.append((path, f"{name_of(target)} needs {', '.join(missing)}{written}"))
    model = model_of(target, {name: parameters[name] for name in plain})
    found: dict[str, Any] = {}
    try:
        checked = model(**plain)
    except ValidationError as error:
        problems += [(f"{path}.{key}", text) for key, text in violations(error, plain)]
    else:
        found = {name: getattr(checked, inner) for name, inner in _inner_names(plain).items()}
        problems += [(f"{path}.{key}", text) for key, text in booleans_as_numbers(plain, found)]
    if len(problems) > before:
        return None
    # pydantic gives an iterator for an Iterable, which can be read once
    found = {
        name: one if isinstance(one, Sized) or not isinstance(plain[name], list) else plain[name]
        for name, one in found.items()
    }
    return found | nested


def parameters_of(
    target: Callable[..., Any], provided: int = 0
) -> tuple[dict[str, inspect.Parameter], bool]:
    """What can be given by name, with types resolved, and whether others are taken too.

    Args:
        target: A class or a function.
        provided: How many of the first arguments are skipped.
    """
    function: Any = target
    skipped = provided
    if isinstance(target, type):
        own_init = target.__init__ is not object.__init__  # type: ignore[misc]
        function = target.__init__ if own_init else target  # type: ignore[misc]
        skipped += own_init  # self
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return {}, True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    hints = _hints(function, [p.name for p in signature.parameters.values() if p.kind not in variadic])
    found: dict[str, inspect.Parameter] = {}
    takes_more = False
    for parameter in list(signature.parameters.values())[skipped:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_more = parameter.name != "unknown"  # which our own classes refuse
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            found[parameter.name] = parameter.replace(annotation=hints.get(parameter.name, Any))
    base = _base_with_init(target) if takes_more and isinstance(target, type) else None
    if base is not None:  # ``**more`` is most often passed on to it
        inherited, _ = parameters_of(base)
        found = {name: one.replace(default=None) for name, one in inherited.items()} | found
    return found, takes_more


def _base_with_init(cls: type) -> type | None:
    """The class whose ``__init__`` follows that of a class in its order of bases."""
    having = [one for one in cls.__mro__[:-1] if "__init__" in vars(one)]
    return having[1] if len(having) > 1 else None


def _hints(function: Any, wanted: list[str]) -> dict[str, Any]:
    """Types of these parameters; Any where one cannot be resolved or is none that pydantic can check."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        function = function.func
    found: dict[str, Any] = {}
    names, annotations = getattr(function, "__globals__", {}), getattr(function, "__annotations__", {})
    for name in set(wanted) & set(annotations):
        try:
            one = SimpleNamespace(__annotations__={name: annotations[name]})
            hint = typing.get_type_hints(one, names, include_extras=True)[name]
            create_model("Probe", __config__=_CONFIG, probe=(hint, ...))
        except Exception:  # names that exist for type checkers only, and types of other libraries
            hint = Any
        found[name] = hint
    return found


_CONFIG = ConfigDict(arbitrary_types_allowed=True)


def _is_imported(value: Any, annotation: Any) -> bool:
    """Whether a string is the import path of what a parameter takes, which takes no such string itself."""
    if isinstance(value, list):
        return bool(value) and any(map(takes_callable, get_args(annotation)))
    if not isinstance(value, str):
        return False
    if takes_callable(annotation):
        return True
    if not is_import_path(value):
        return False
    probe: Any = create_model("Probe", __config__=_CONFIG, probe=(annotation, ...))
    try:
        probe(probe=value)
    except ValidationError as error:
        return any(one["type"] == "is_instance_of" for one in error.errors())
    return False


def _fits(spec: ClassSpec, annotation: Any) -> bool:
    """Whether an object of a class is what a parameter takes; True where the type does not say."""
    kinds = _kinds(annotation)
    if not isinstance(spec.target, type) or spec.is_partial:
        return True
    return not all(map(_is_plain_class, kinds)) or issubclass(spec.target, kinds)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_plain_class(kind: Any) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and not getattr(kind, "_is_protocol", False)


def takes_callable(annotation: Any) -> bool:
    """Whether a parameter of this type may be a function or a class.

    Example:
        >>> takes_callable(Callable[..., int] | None), takes_callable(int)
        (True, False)
    """
    origins = [get_origin(kind) or kind for kind in _kinds(annotation)]
    return collections.abc.Callable in origins or type in origins


def _has_class(value: Any) -> bool:
    if isinstance(value, Mapping):
        return CLASS in value or any(map(_has_class, value.values()))
    return isinstance(value, list) and any(map(_has_class, value))


def _read_nested(value: Any, is_function: bool, path: str, problems: Problems) -> Any:
    """A value with the classes that are named in it."""
    if isinstance(value, str) and is_function:
        return attempt(lambda: import_object(value), path, problems)
    if isinstance(value, Mapping) and CLASS in value:
        if not is_function:
            return read_class(value, ANYTHING, path, problems)
        found = find_target(value, ANYTHING, path, problems)
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


def name_of(target: Any) -> str:
    """What a class or function is called in messages."""
    return str(getattr(target, "__name__", type(target).__name__))


def _unknown(target: Any, name: str, parameters: Mapping[str, Any]) -> str:
    meant = nearest(name, parameters)
    hint = f"; did you mean {meant}?" if meant else f"; allowed: {', '.join(parameters) or 'none'}"
    return f"{name_of(target)} has no such argument{hint}"


def _inner_names(names: Mapping[str, Any]) -> dict[str, str]:
    """Fields by argument: an argument may have a name that a pydantic model has for itself."""
    return {name: f"argument_{number}" for number, name in enumerate(names)}


def model_of(target: Any, parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    """A pydantic model of these arguments."""
    fields: dict[str, Any] = {}
    for name, inner in _inner_names(parameters).items():
        parameter = parameters[name]
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[inner] = (parameter.annotation, Field(default, alias=name))
    return create_model(
        name_of(target),
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
        **fields,
    )
