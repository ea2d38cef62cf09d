"""What each command prints with ``--json``, as a type: ``make_schemas.py`` makes schemas of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from paceline.compat.configs import reading
from paceline.config.describe import Setting, Shown
from paceline.doctor import finding
from paceline.plugins import Plugin
from paceline.recipes import Recipe
from paceline.strategies import RankBytes
from paceline.tools.debug.diff import MEANINGS, Difference
from paceline.tools.debug.replay import Replay
from paceline.tools.report.plain import Report
from paceline.trainer.checkpoint.listing import ListedCheckpoint
from paceline.trainer.estimate.findings import EstimateRow, Findings
from paceline.trainer.estimate.step_time import StepTime
from paceline.trainer.run.ending import STATES

LOGGED = {"type": ["number", "string"], "pattern": "^(nan|-?inf)$"}
"""A number that may be infinite or none at all, which JSON has as a word."""
Logged = Annotated[float, WithJsonSchema(LOGGED)]
NARROWER = {
    "Finding.outcome": {"enum": finding.ORDER},
    "FirstStep.a": LOGGED,
    "FirstStep.b": LOGGED,
    "FirstStep.what": {"enum": [*MEANINGS]},
    "Note.outcome": {"enum": reading.OUTCOMES},
    "Replay.gradient_norm": LOGGED,
    "Replay.losses": {"items": LOGGED},
    "ReportedRun.state": {"enum": STATES},
    "ReportedValue.last": LOGGED,
}
"""What the types of fields do not say."""


@dataclass(frozen=True)
class ListedRecipe(Recipe):
    """A recipe.

    Attributes:
        name: What ``paceline fit`` takes.
    """

    name: str


class RecipeSettings(TypedDict):
    """A recipe's settings.

    Attributes:
        name: As it was asked for.
        about: What it trains.
        settings: One for each key, without those of the Trainer.
        presets: By name, the settings that each changes.
    """

    name: str
    about: str
    settings: list[Setting]
    presets: dict[str, dict[str, Any]]


class Problem(TypedDict("Problem", {"from": str | None})):
    """What is wrong with a setting.

    Attributes:
        key: The setting's dotted name.
        from: The place that it comes from, ``file:line`` for one; None where no place is known.
        problem: In words.
    """

    key: str
    problem: str


class CheckedConfig(TypedDict):
    """Whether a configuration is right.

    Attributes:
        valid: Whether nothing is wrong.
        problems: What is wrong.
    """

    valid: bool
    problems: list[Problem]


class ReadConfiguration(TypedDict):
    """What a configuration file of another trainer became.

    Attributes:
        source: Whose file it is.
        recipe: The recipe, where the file says what is trained.
        settings: The recipe's, where there is one.
        trainer: Arguments of the Trainer.
        launch: The command for each machine, or one for all of them; empty for one machine.
        notes: One for each key of the file.
        file: What was written; None where a key prevents it.
    """

    source: Literal["Accelerate", "DeepSpeed", "LLaMA-Factory", "Axolotl"]
    recipe: NotRequired[str]
    settings: NotRequired[dict[str, Any]]
    trainer: dict[str, Any]
    launch: list[str]
    notes: list[reading.Note]
    file: str | None


class VerifiedCheckpoint(TypedDict):
    """Whether a checkpoint is as it was written.

    Attributes:
        path: Its folder.
        whole: Whether nothing is wrong.
        problem: What is wrong; "" where nothing is.
    """

    path: str
    whole: bool
    problem: str


class DescribedCheckpoint(TypedDict):
    """What is in a checkpoint.

    Attributes:
        path: Its folder.
        format: The number of its format.
        weights_only: Whether it has no training state.
        module: The class of the module, ``module:name``.
        hparams: The arguments of the module's constructor that are plain data.
        strategy: The name of what wrote it.
        ranks: How many wrote it.
        precision: The run's, by name.
        run: Counters of the run, ``global_step`` and ``epoch`` among them.
        data: Where the data was.
        metrics: The last values by full name such as ``val/loss``.
        files: The size of each file, in bytes.
        tensors: The shape of each tensor.
    """

    path: str
    format: int
    weights_only: bool
    module: str
    hparams: dict[str, Any]
    strategy: str
    ranks: int
    precision: str
    run: dict[str, Any]
    data: dict[str, Any]
    metrics: dict[str, Logged]
    files: dict[str, int]
    tensors: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Bytes(RankBytes):
    """What a rank holds when it holds most, in bytes on its device.

    Attributes:
        total: Bytes that are allocated on the device.
    """

    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Time(StepTime):
    """The modelled time of an optimizer step, in seconds.

    Attributes:
        seconds: Seconds of the step.
        communication_share: The part of it that is exposed communication, from 0 to 1.
    """

    seconds: float = 0.0
    communication_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Row(EstimateRow):
    """One strategy."""

    bytes: Bytes
    time: Time | None


@dataclass(frozen=True, kw_only=True)
class Estimated(Findings):
    """The memory and the modelled speed of each strategy.

    Attributes:
        fits: The strategies that fit; empty where none does.
        recommended: The first strategy of ``order`` that fits and uses all devices; None where none does.
        decision: In words, why each simpler one does not serve, then the one to take.
    """

    rows: tuple[Row, ...]
    fits: tuple[str, ...] = field(default=())
    recommended: str | None = None
    decision: tuple[str, ...] = field(default=())


class Doctor(TypedDict):
    """Whether training works here.

    Attributes:
        ok: Whether nothing FAILED.
        version: Of this package.
        ranks: How many ranks were started for the checks; 0 where that was not reached.
        device: The kind of device.
        seconds: How long all checks took, in seconds.
        findings: One for each check, in order.
    """

    ok: bool
    version: str
    ranks: int
    device: str
    seconds: float
    findings: list[finding.Finding]


class FoundMistake(TypedDict):
    """A mistake that raises no error.

    Attributes:
        name: Of its kind: ``"softmax-twice"``.
        evidence: What shows it, in words.
        cure: How to mend it, in words.
        step: Optimizer steps that were done when it was noticed.
    """

    name: str
    evidence: str
    cure: str
    step: int


class CheckedProgram(TypedDict):
    """What a program was found to do.

    Attributes:
        version: Of this package.
        target: What was checked.
        findings: Mistakes, each name once; empty where nothing was found.
        not_looked_at: By name of a finding, why it could not be looked for.
        steps: Optimizer steps of the short fit.
        seconds: How long all of it took, in seconds.
        is_whole_run: Whether the short fit came to the end of the run.
    """

    version: str
    target: str
    findings: list[FoundMistake]
    not_looked_at: dict[str, str]
    steps: int
    seconds: float
    is_whole_run: bool


class MigratedName(TypedDict):
    """A name of another trainer in a file.

    Attributes:
        line: Its number in the file, from 1.
        group: What becomes of it.
        library: Whose name it is.
        name: The name.
        text: What to know about it, or to do.
        automatic: Whether ``--write`` does it.
    """

    line: int
    group: Literal["runs", "changes", "rewrite"]
    library: str
    name: str
    text: str
    automatic: bool


class UnreadFile(TypedDict):
    """Why a file cannot be read.

    Attributes:
        line: Where, from 1; 0 where that is no line's.
        message: Why.
    """

    line: int
    message: str


class MigratedFile(TypedDict):
    """A file that names other trainers, or cannot be read.

    Attributes:
        file: Its path.
        libraries: The trainers that it names.
        error: Why it cannot be read; None where it can.
        findings: The names that it has, by line.
    """

    file: str
    libraries: list[str]
    error: UnreadFile | None
    findings: list[MigratedName]


class MigrationCounts(TypedDict):
    """Numbers of files, then of findings.

    Attributes:
        files: All that were looked at.
        of_libraries: Those that name other trainers.
        unreadable: Those that cannot be read.
        runs: Findings that run as they are.
        changes: Findings that change meaning.
        rewrite: Findings that have to be rewritten.
        automatic: How many of these ``--write`` does.
    """

    files: int
    of_libraries: int
    unreadable: int
    runs: int
    changes: int
    rewrite: int
    automatic: int


class Migration(TypedDict):
    """What code for other trainers needs.

    Attributes:
        files: Those that name other trainers, and those that cannot be read.
        summary: Numbers, of all files.
    """

    files: list[MigratedFile]
    summary: MigrationCounts


class ErrorCode(TypedDict):
    """A code of errors.

    Attributes:
        code: What an error names at its end.
        family: What kind of thing it is about.
        summary: What it means, in one sentence.
        text: Its page, as plain text; where one was asked for.
    """

    code: str
    family: str
    summary: str
    text: NotRequired[str]


class Skill(TypedDict):
    """A skill.

    Attributes:
        name: What ``paceline skills`` takes.
        description: What it is for.
        text: All of it, as Markdown; where one was asked for.
    """

    name: str
    description: str
    text: NotRequired[str]


class Unread(TypedDict):
    """A section that could not be read.

    Attributes:
        error: Why.
    """

    error: str


class Torch(TypedDict):
    """The build of torch.

    Attributes:
        version: Of torch.
        commit: Of its sources.
        build: For which devices, with the version of their libraries.
        cpu_capability: The vector instructions that it uses.
        backends: Of each that ranks can communicate by its version, ``available``, or ``missing``.
    """

    version: str
    commit: str | None
    build: str
    cpu_capability: str
    backends: dict[str, str]


class Platform(TypedDict):
    """The system.

    Attributes:
        host: The machine's name.
        system: ``Linux``, ``Darwin`` or ``Windows``.
        kernel: Its release.
        machine: The processor's architecture.
        libc: Of the system; None where there is none.
        container: The kind of container; None for none.
    """

    host: str
    system: str
    kernel: str
    machine: str
    libc: str | None
    container: str | None


class Processors(TypedDict):
    """The processors.

    Attributes:
        model: As the system names it; None where it does not.
        count: How many the machine has.
        affinity: How many this process may run on.
        quota: How many its control group may use at a time; None for no limit.
        usable: How many are left of all that.
    """

    model: str | None
    count: int | None
    affinity: int
    quota: float | None
    usable: int


class Memory(TypedDict):
    """The memory, in bytes.

    Attributes:
        total: Bytes of the machine.
        available: Bytes of it that are available.
        cgroup: Bytes that its control group may use; None for no limit.
    """

    total: int
    available: int
    cgroup: int | None


class Device(TypedDict):
    """An accelerator.

    Attributes:
        device: Its kind and number.
        name: As its driver names it.
        processors: How many multiprocessors it has.
        capability: Of its instructions, ``9.0``.
        memory: Bytes in all.
        free: Bytes that nobody has.
    """

    device: str
    name: NotRequired[str]
    processors: NotRequired[int | None]
    capability: NotRequired[str]
    memory: NotRequired[int]
    free: NotRequired[int]


class Interface(TypedDict):
    """A network interface that is up.

    Attributes:
        speed: In Mbit/s; None where its driver does not say.
        mtu: The largest packet, in bytes.
    """

    speed: int | None
    mtu: int


class Limits(TypedDict):
    """What this process may use; None for no limit.

    Attributes:
        open_files: How many at a time.
        processes: How many its user may have.
        locked_memory: Bytes that may be locked in memory.
        shm: Bytes of the file system of shared memory; None without one.
        shm_free: Bytes of it that are free; None without one.
    """

    open_files: NotRequired[int | None]
    processes: NotRequired[int | None]
    locked_memory: NotRequired[int | None]
    shm: int | None
    shm_free: int | None


class Commit(TypedDict):
    """The commit of the current folder; empty outside a repository.

    Attributes:
        folder: Of the repository.
        commit: Its hash; None before the first one.
        branch: Where one is checked out.
        dirty: Whether tracked files differ from it; None where that is not known.
    """

    folder: NotRequired[str]
    commit: NotRequired[str | None]
    branch: NotRequired[str]
    dirty: NotRequired[bool | None]


class Environment(TypedDict):
    """What training runs on. A section that could not be read has ``error`` alone.

    Attributes:
        versions: Of packages that are installed, by name.
        torch: Its build.
        platform: The system.
        cpu: The processors.
        memory: In bytes.
        devices: Accelerators.
        interconnect: How accelerators reach each other, by pair, and their NVLinks.
        network: Interfaces that are up, by name.
        limits: Of this process.
        git: The commit.
        variables: Of the environment, that change how a run computes; secrets are ``***``.
    """

    versions: dict[str, str]
    torch: Torch | Unread
    platform: Platform | Unread
    cpu: Processors | Unread
    memory: Memory | Unread
    devices: list[Device] | Unread
    interconnect: dict[str, str]
    network: dict[str, Interface] | Unread
    limits: Limits | Unread
    git: Commit | Unread
    variables: dict[str, str]


RESULTS: dict[str, tuple[Any, str]] = {
    "check": (CheckedProgram, ""),
    "checkpoint ls": (list[ListedCheckpoint], "Each checkpoint below a path."),
    "checkpoint show": (DescribedCheckpoint, ""),
    "checkpoint verify": (list[VerifiedCheckpoint], "Whether each checkpoint below a path is whole."),
    "config check": (CheckedConfig, ""),
    "config init": (ReadConfiguration, ""),
    "config show": (list[Shown], "Every value of a configuration, and where it comes from."),
    "diff": (Difference, ""),
    "doctor": (Doctor, ""),
    "env": (Environment, ""),
    "estimate": (Estimated, ""),
    "explain": (list[ErrorCode] | ErrorCode, "All codes of errors, or the one that was asked for."),
    "migrate": (Migration, ""),
    "plugins": (list[Plugin], "Callbacks, loggers and strategies of other packages."),
    "recipes list": (list[ListedRecipe], "The recipes."),
    "recipes show": (RecipeSettings, ""),
    "replay": (Replay, ""),
    "report": (Report, "What is known about runs, and what differs between them."),
    "skills": (list[Skill] | Skill, "The skills, or the one that was asked for."),
    "test": (dict[str, Logged], "The metrics by full name, such as ``test/loss``."),
    "validate": (dict[str, Logged], "The metrics by full name, such as ``val/loss``."),
}
"""By command its result, and what it is, where its docstring does not say."""
