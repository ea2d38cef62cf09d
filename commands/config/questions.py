"""The questions of ``paceline config init``, and the Trainer's arguments of the answers."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...compat.configs.machines import PORT, Machines
from ...errors import PacelineError
from ..questions import Asker, Question, count, existing_file, one_of, yes_or_no

HERE, SEVERAL, SLURM = "this", "several", "slurm"
_NO, _YES = "no", "yes"


@dataclass(frozen=True)
class Here:
    """This machine.

    Args:
        kind: The type of its accelerator; None where it has none.
        devices: How many of them there are.
        bf16: Whether they compute in bfloat16.
        batch: Whether SLURM is here.
    """

    kind: str | None
    devices: int
    bf16: bool
    batch: bool


def find_here() -> Here:
    """What this machine has."""
    import torch

    from ...strategies import make_precision
    from ...strategies.machine.devices import accelerator_here

    batch = "SLURM_JOB_ID" in os.environ or shutil.which("sbatch") is not None
    device = accelerator_here()
    if device is None:
        return Here(None, 1, False, batch)
    try:
        make_precision("bf16").attach(device)
        bf16 = True
    except PacelineError:
        bf16 = False
    return Here(device.type, torch.accelerator.device_count(), bf16, batch)


@dataclass(frozen=True)
class Plan:
    """What was answered.

    Args:
        trainer: Arguments of ``Trainer``.
        machines: Where the ranks are.
        batch: Whether SLURM starts them.
    """

    trainer: dict[str, Any]
    machines: Machines
    batch: bool

    def commands(self, file: str) -> tuple[str, ...]:
        """What is run next, on each machine."""
        fit = f"paceline fit RECIPE --config {shlex.quote(file)}"
        ranks = self.machines.ranks
        if self.batch:
            tasks = f"--ntasks-per-node={ranks or 'RANKS'}"
            cpu = self.trainer["accelerator"] == "cpu"
            gpus = "" if cpu else f" --gpus-per-node={ranks or 'RANKS'}"
            return (f"srun --nodes={self.machines.count} {tasks}{gpus} {fit}",)
        return self.machines.commands(f"-m {fit}") or (fit,)


def ask_all(asker: Asker, here: Here) -> Plan:
    """Ask all questions that the answers so far leave open.

    Raises:
        PacelineError: for flags that are wrong or have no use.
    """
    where, machines, address, port = _ask_machines(asker, here)
    accelerator = asker.ask(_accelerator(here))
    cpu = accelerator == "cpu" or (accelerator == "auto" and here.kind is None)
    devices = asker.ask(_devices(here, accelerator, cpu, where))
    trainer: dict[str, Any] = {"accelerator": accelerator, "devices": devices}
    if machines > 1:
        trainer["num_nodes"] = machines
    ranks = None if devices == "auto" else devices if isinstance(devices, int) else len(devices)
    name = _ask_strategy(asker, trainer, machines, ranks)
    trainer["precision"] = asker.ask(_precision(here, name, cpu))
    trainer["compile"] = asker.ask(_COMPILE)
    if ranks is None or ranks * machines > 1:
        trainer["debug"] = asker.ask(_DEBUG)
    if not cpu and asker.ask(_NUMA):
        trainer["numa_affinity"] = True
    asker.finish()
    return Plan(trainer, Machines(machines, ranks, address, port, static=False), where == SLURM)


def _ask_machines(asker: Asker, here: Here) -> tuple[str, int, str | None, int | None]:
    several = asker.gives("machines") not in (None, "1")
    usual = SLURM if here.batch else SEVERAL if several else HERE
    help = (
        "this: one machine, whose ranks the script starts itself.\n"
        "several: the same command on each machine; they meet at an address.\n"
        "slurm: srun starts all ranks."
    )
    question = "Where does it run (this machine, several machines, slurm)"
    where = asker.ask(Question("environment", question, usual, help, _environment))
    if where == HERE:
        if asker.gives("machines") == "1":
            asker.take("machines")
        return where, 1, None, None
    known = os.environ.get("SLURM_NNODES", "1") if where == SLURM else "2"
    least = 1 if where == SLURM else 2
    help = "Machines that take part; each has as many ranks as the others."
    machines = asker.ask(Question("machines", "Number of machines", known, help, count(least, 10_000)))
    if where == SLURM:
        return where, machines, None, None
    help = "The name or the IP address of the machine with rank 0, which the others can reach."
    address = asker.ask(
        Question("address", "Address of the machine with rank 0", socket.gethostname(), help, _address)
    )
    help = "A port of that machine that is free, and that no firewall closes."
    port = asker.ask(Question("port", "Port there", str(PORT), help, count(1, 65535)))
    return where, machines, address, port


def _environment(answer: str) -> str:
    words = answer.lower().removesuffix(" machines").removesuffix(" machine")
    return str(one_of((HERE, SEVERAL, SLURM))(words))


def _address(answer: str) -> str:
    if not answer or any(c.isspace() or c in "/'\"" for c in answer):
        raise PacelineError(
            "that is no address", code="invalid-answer", got=answer, allowed="a host name or an IP address"
        )
    return answer


def _accelerator(here: Here) -> Question:
    kinds = ["auto", "cpu", "gpu", *([here.kind] if here.kind else [])]
    found = here.kind or "cpu"
    help = f"auto takes the accelerator of the machine where it runs, else the CPU; on this one: {found}."
    return Question("accelerator", f"Accelerator ({', '.join(kinds)})", "auto", help, one_of(kinds))


def _devices(here: Here, accelerator: str, cpu: bool, where: str) -> Question:
    usual = "1" if cpu else str(here.devices) if here.kind else "auto"
    usual = os.environ.get("SLURM_GPUS_ON_NODE", usual) if where == SLURM and not cpu else usual
    checked = where == HERE

    def read(answer: str) -> Any:
        from ...strategies.machine.devices import find_ids, find_kind

        parts = [part.strip() for part in answer.split(",")]
        if answer == "auto":
            return "auto"
        if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts) or answer == "0":
            allowed = 'a count, ids such as "0,1", or auto for all'
            raise PacelineError(
                "that is no number of devices", code="invalid-answer", got=answer, allowed=allowed
            )
        devices: Any = int(answer) if len(parts) == 1 else [int(part) for part in parts]
        if checked:
            find_ids(find_kind(accelerator), devices)
        return devices

    help = "Ranks on each machine, one for each device; ids choose devices, auto takes all."
    there = "" if here.kind is None or cpu else f"; this one has {here.devices} {here.kind}"
    return Question("devices", f"Ranks on each machine{there}", usual, help, read)


def _ask_strategy(asker: Asker, trainer: dict[str, Any], machines: int, ranks: int | None) -> str:
    from ...strategies import STRATEGIES
    from ...strategies.options import CHOICES, check_ranks, configured

    total = None if ranks is None else ranks * machines
    given = asker.gives("strategy")
    if given is not None and given not in CHOICES and given in STRATEGIES:  # one with its stage in its name
        trainer["strategy"] = asker.take("strategy")
        return given.partition("_")[0]

    def read(answer: str) -> str:
        name = str(one_of([*CHOICES])(answer))
        check_ranks(name, total)
        return name

    help = "\n".join(f"{name}: {about}." for name, about in CHOICES.items())
    question = f"Strategy ({', '.join(CHOICES)})"
    name: str = asker.ask(Question("strategy", question, "auto", help, read))
    trainer["strategy"] = configured(name, _ask_options(asker, name, machines, total))
    return name


def _ask_options(asker: Asker, strategy: str, machines: int, ranks: int | None) -> dict[str, Any]:
    from ...strategies.options import OPTIONS, Option, check_option, settled

    known = OPTIONS.get(strategy, ())
    further = Asker(_strategy_flags(asker, [option.name for option in known]), asker.prompts)
    answers: dict[str, Any] = {}

    def reader(option: Option) -> Callable[[str], Any]:
        by_kind = {"switch": yes_or_no, "count": count(), "file": existing_file}
        read = by_kind.get(option.kind) or one_of(option.choices)

        def checked(answer: str) -> Any:
            value = read(answer)
            check_option(option.name, value, ranks)
            return value

        return checked

    for option in known:
        if option.name in settled(answers):
            continue
        usual = _text(option.default)
        if option.kind == "count":
            usual = str(machines if machines > 1 else 2)
        flag = f"strategy-option {option.name}"
        answers[option.name] = further.ask(
            Question(flag, option.question, usual, option.help, reader(option))
        )
    further.finish()
    return answers


def _strategy_flags(asker: Asker, known: list[str]) -> dict[str, str | None]:
    """The options of ``--strategy-option NAME=VALUE``, which are given in one text, by their flags."""
    given = asker.take("strategy-option")
    found: dict[str, str | None] = {}
    for text in given.split("\n") if given else ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            allowed = ", ".join(f"{one}=..." for one in known) or "nothing: this strategy has no options"
            raise PacelineError(
                "--strategy-option is no option of the strategy",
                code="invalid-answer",
                got=text,
                allowed=allowed,
            )
        found[f"strategy-option {name}"] = value.strip()
    return found


def _text(default: Any) -> str:
    if default is None:
        return "none"
    return {True: _YES, False: _NO}[default] if isinstance(default, bool) else str(default)


def _precision(here: Here, strategy: str, cpu: bool) -> Question:
    from ...strategies.options import precisions

    choices = precisions(strategy)
    usual = "bf16" if here.bf16 and not cpu else "32"
    help = (
        "32: all in fp32. bf16, fp16: fp32 parameters with products in 16 bits, fp16 with a loss scale.\n"
        "bf16-true, fp16-true, 64: parameters too."
    )
    return Question("precision", f"Precision ({', '.join(choices)})", usual, help, one_of(choices))


def _compile(answer: str) -> Any:
    from ...trainer.runtime.compilation import BLOCKS, MODES

    words = {_NO: False, "false": False, _YES: True, "true": True}
    if answer.lower() in words:
        return words[answer.lower()]
    return one_of((_NO, _YES, BLOCKS, *MODES))(answer)


_COMPILE = Question(
    "compile",
    "torch.compile (no, yes, blocks, or a mode)",
    _NO,
    "yes compiles what a step calls; blocks compiles the model's repeated blocks, which takes less time.\n"
    "modes: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs.",
    _compile,
)
_DEBUG = Question(
    "debug",
    "Check that all ranks call the same collectives",
    _NO,
    "Names the rank and the line that differ, in place of a hang. Costs a collective for each.",
    yes_or_no,
)
_NUMA = Question(
    "numa-affinity",
    "Keep each rank on the processors nearest to its device",
    _NO,
    "On machines with several sockets, where memory of the other one is slower.",
    yes_or_no,
)
