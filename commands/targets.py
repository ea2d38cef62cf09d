"""What commands that train or evaluate take: a target, settings and config files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..errors import PacelineError
from ..recipes import RECIPES

if TYPE_CHECKING:
    from ..config import Experiment
    from ..config.load import Loaded
    from ..config.recipe import Recipe


def _names(incomplete: str) -> list[str]:
    """For completion of the shell."""
    found = [*RECIPES, *(str(one) for suffix in ("py", "yaml") for one in Path().glob(f"*.{suffix}"))]
    return [name for name in found if name.startswith(incomplete)]


TARGET = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A recipe (`paceline recipes`), file.py, my_project:Net, a config.yaml, or a run's folder.",
        autocompletion=_names,
    ),
]
SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="preset=tiny epochs=5 trainer.precision=bf16 callbacks+=ema ..."
    ),
]
CONFIG = Annotated[
    list[Path] | None,
    typer.Option(help="A YAML file of the same keys. Repeatable: a later one takes precedence."),
]


class WithSettings(TyperCommand):
    """A command with settings, which are no options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; how settings are written is a part of the error of an unknown option."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's NoSuchOption, of which newer versions of typer have their own
            if type(error).__name__ == "NoSuchOption":
                option = vars(error)["option_name"]
                key, value = option.lstrip("-").replace("-", "_"), _value_of(option, given)
                vars(error)["message"] += (
                    f". Settings are KEY=VALUE: {key}={value} or trainer.{key}={value}"
                )
            raise


def _value_of(option: str, given: list[str]) -> str:
    """The value of an option, in the same word or the next one."""
    for word, following in zip(given, [*given[1:], ""], strict=True):
        if word.partition("=")[0] == option:
            value = word.partition("=")[2] or following
            return value if value and not value.startswith("-") else "..."
    return "..."


def is_script(target: str) -> bool:
    """Whether this is a Python file that is no recipe."""
    if not target.endswith(".py"):
        return False
    from ..config.recipe import is_recipe_file

    return not is_recipe_file(Path(target))


def require_own_folder(target: str, trust: bool) -> None:
    """See that a folder of a run, which is only looked at, names no code that others may have chosen.

    Args:
        target: Of the command line.
        trust: Whether the user has said that it may.

    Raises:
        PacelineError: where another user or another host wrote it.
    """
    path = Path(target)
    folder = path.parent if path.name == "config.yaml" else path
    if trust or not (folder / "config.yaml").is_file() or not (folder / "env.json").is_file():
        return
    from ..tools.debug.started_command import doubt_about
    from ..trainer.run.directory import read_environment

    doubt = doubt_about(folder, read_environment(folder))
    if doubt:
        raise PacelineError(
            f"this would build the module and the data that a run's folder names: {doubt}",
            code="not-trusted",
            where=str(folder),
            fix="read its config.yaml and the code that it names, then give --trust",
        )


def load_target(target: str | None, config: list[Path] | None, settings: list[str] | None) -> Loaded:
    """What the user wrote, read and checked."""
    from ..config.load import load

    try:
        loaded = load(target, config or [], settings or [], recipe_modules())
    except PacelineError:
        _refuse_others(target)
        raise
    if loaded.problems:
        _refuse_others(target)
    return loaded


def _refuse_others(target: str | None) -> None:
    """Of a target that is not right: if it is a file of LLaMA-Factory or Axolotl, say how to read it."""
    if target is None or Path(target).suffix not in (".yaml", ".yml") or not Path(target).is_file():
        return
    from ..compat.configs.recognise import AXOLOTL, LLAMA_FACTORY, source_of
    from ..trainer.config.yaml_reader import read_yaml_file

    content = read_yaml_file(Path(target)).content
    if not isinstance(content, dict) or "recipe" in content or "module" in content:
        return
    source = source_of(content)
    if source in (AXOLOTL, LLAMA_FACTORY):
        raise PacelineError(
            f"{target} is a file of {source}",
            code="config-of-others",
            fix=f"paceline config init run.yaml --from {target}; then paceline fit run.yaml",
        ) from None


def recipe_of_target(target: str) -> Recipe:
    """The recipe whose settings a target has."""
    from ..config.load import recipe_for

    return recipe_for(target, recipe_modules())


def recipe_modules() -> dict[str, str]:
    """The modules of the recipes by name."""
    return {name: f"paceline.recipes.{recipe.module}" for name, recipe in RECIPES.items()}


def weights_for(experiment: Experiment, given: str | None, run: Path | None) -> Path:
    """The weights to evaluate with.

    Args:
        experiment: What is evaluated.
        given: A path of the command line.
        run: The run that is the target, where it is one.

    Raises:
        PacelineError: where none are given, and there is no run of this name.
    """
    from ..common.remote_paths import url_of
    from ..trainer.checkpoint.weights import find_weights
    from ..trainer.run.directory import run_name
    from ..trainer.run.numbering import runs_of_name

    chosen = given or run
    if chosen is not None:
        return find_weights(chosen)
    settings = experiment.trainer.settings
    name = run_name(settings.name, experiment.module)
    folder = None if settings.run_dir is None else Path(settings.run_dir) / name
    for newest in runs_of_name(folder) if folder is not None else []:
        try:
            return find_weights(url_of(newest) or newest)
        except PacelineError:
            continue
    raise PacelineError(
        "there are no weights to evaluate with",
        code="checkpoint-not-found",
        where=str(folder),
        fix="--weights PATH, with the folder of a checkpoint or of a run",
    )
