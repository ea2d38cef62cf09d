"""``paceline checkpoint ls | verify | show | consolidate`` and ``paceline export``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import PacelineError
from .output import JSON, bytes_bar, print_json, print_table
from .targets import load_target, require_own_folder

_SOURCE = Annotated[
    Path, typer.Argument(help="A checkpoint, or a run: its best, else its latest checkpoint.")
]


_CONVERTER = "convert_hf_to_gguf.py"


class _Form(StrEnum):
    SAFETENSORS = "safetensors"
    HF = "hf"
    TORCH = "torch"
    DCP = "dcp"


class _Program(StrEnum):
    ONNX = "onnx"
    TORCH = "torch"


class _Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def export(
    source: _SOURCE,
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    submodule: Annotated[str | None, typer.Option(help="Only this part, by its dotted name.")] = None,
    to: Annotated[
        _Form, typer.Option(help="For whom: hf: from_pretrained; torch, dcp: with the optimizer's state.")
    ] = _Form.SAFETENSORS,
    program: Annotated[
        _Program | None,
        typer.Option(
            "--format", help="In place of weights: forward as a program, model.onnx or model.pt2."
        ),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="The base with its adapter merged in, for from_pretrained.")
    ] = False,
    dtype: Annotated[
        _Dtype | None, typer.Option(help="Of merged weights in the file; else that of the base.")
    ] = None,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Convert it by convert_hf_to_gguf.py of llama.cpp, too.")
    ] = False,
    hub: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Send the folder to the Hugging Face hub, too.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="A new repository of --hub can be seen by all; else by you.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --hub: show what would be sent, and send nothing.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --format: build what another user's or host's run names.")
    ] = False,
) -> None:
    """Write a checkpoint's weights, its training state, or its forward, for use without this package."""
    if program is not None:
        if to is not _Form.SAFETENSORS or any((merged, dtype, gguf, hub, public, dry_run)):
            raise PacelineError(
                "--format writes a program, and other options are for weights", code="options-conflict"
            )
        _export_program(source, folder, program, submodule, trust)
        return
    from ..trainer.checkpoint.export import export_checkpoint, export_merged, pretrained_part
    from ..trainer.checkpoint.listing import one_checkpoint

    if (merged and to not in (_Form.SAFETENSORS, _Form.HF)) or (dtype and not merged):
        raise PacelineError("--merged is for --to hf, and --dtype is for --merged", code="options-conflict")
    if hub is not None:
        _check_hub(hub, folder, merged or to is _Form.HF)
    elif dry_run or public:
        raise PacelineError("--dry-run and --public are for --hub", code="options-conflict")
    converter = _converter(merged or to is _Form.HF) if gguf else None
    checkpoint = one_checkpoint(source)
    if merged or to is _Form.HF:
        submodule = pretrained_part(checkpoint, submodule)
    with bytes_bar("verifying", _bytes_below(checkpoint)) as compared:
        if to in (_Form.TORCH, _Form.DCP):
            from ..trainer.checkpoint.training_state import export_training_state

            form: Literal["torch", "dcp"] = "torch" if to is _Form.TORCH else "dcp"
            export_training_state(checkpoint, folder, form, submodule, compared)
        elif merged:
            typer.echo(export_merged(checkpoint, folder, str(submodule), dtype, compared), err=True)
        else:
            export_checkpoint(checkpoint, folder, submodule, compared)
    if merged or to is _Form.HF:
        _copy_tokenizer(checkpoint, folder)
    if converter is not None:
        _convert(converter, folder)
    typer.echo(str(folder))
    if hub is not None:
        _send(folder, hub, private=not public, dry_run=dry_run)


def _converter(is_model: bool) -> str:
    """The path of llama.cpp's converter."""
    if not is_model:
        raise PacelineError(
            "--gguf is for --merged, and of a run without adapters for --to hf", code="options-conflict"
        )
    found = os.environ.get("LLAMA_CPP_CONVERTER") or shutil.which(_CONVERTER)
    if found is None or not Path(found).is_file():
        raise PacelineError(
            f"--gguf needs {_CONVERTER} of llama.cpp",
            code="package-missing",
            got=found,
            fix="git clone https://github.com/ggml-org/llama.cpp, pip install -r its requirements.txt, "
            f"and LLAMA_CPP_CONVERTER=llama.cpp/{_CONVERTER}",
        )
    return found


def _convert(converter: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise PacelineError(
            "--gguf converts whole models, and this is an adapter",
            code="export-not-possible",
            fix="--merged",
        )
    file = folder / "model.gguf"
    done = subprocess.run([sys.executable, converter, str(folder), "--outfile", str(file)], check=False)
    if done.returncode != 0 or not file.is_file():
        raise PacelineError(
            f"{converter} failed with exit code {done.returncode}",
            code="export-not-possible",
            where=str(folder),
        )


def _check_hub(repository: str, folder: Path, is_model: bool) -> None:
    try:
        from huggingface_hub.utils import validate_repo_id
    except ImportError:
        raise PacelineError(
            "--hub needs huggingface_hub", code="package-missing", fix="pip install 'paceline[hf]'"
        ) from None
    try:
        validate_repo_id(repository)
    except ValueError as error:
        raise PacelineError(
            "--hub: no name of a repository", code="invalid-value", got=repository, fix=str(error)
        ) from None
    if not is_model:
        raise PacelineError("--hub is for --to hf and --merged", code="options-conflict")
    if folder.is_dir() and any(folder.iterdir()):
        raise PacelineError(
            "--hub sends all that is in the folder, which is not empty",
            code="file-exists",
            where=str(folder),
        )


def _send(folder: Path, repository: str, private: bool, dry_run: bool) -> None:
    from ..trainer.utils.text import shown_size

    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sizes = [file.stat().st_size for file in files]
    verb = "would send" if dry_run else "sends"
    kind = "private" if private else "public"
    typer.echo(
        f"{verb} {len(files)} files, {shown_size(sum(sizes))}, to {repository}, {kind} if it is new:"
    )
    print_table(
        ("file", "size"),
        [(file.relative_to(folder), shown_size(size)) for file, size in zip(files, sizes, strict=True)],
    )
    if dry_run:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        sent = api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, OSError) as error:
        raise PacelineError(
            "the hub did not take the folder",
            code="remote-failed",
            where=repository,
            got=" ".join(str(error).split()),
            fix=f"hf auth login, and hf upload {repository} {folder}",
        ) from None
    typer.echo(str(sent))


def _export_program(source: Path, folder: Path, form: _Program, submodule: str | None, trust: bool) -> None:
    """Build a run's module and its data as ``paceline validate`` does, and write its forward.

    Args:
        source: A run, or one of its checkpoints.
        folder: Where the file goes.
        form: Which file.
        submodule: Only this part, by its dotted name.
        trust: Whether the folder may be of another user.

    Raises:
        PacelineError: where the run cannot be built again, and where the program is not the module's.
    """
    from ..tools.exported_program import export_program, find_call
    from ..trainer.checkpoint.listing import one_checkpoint

    checkpoint = one_checkpoint(source)
    run = checkpoint.parent.parent
    require_own_folder(str(run), trust)
    with redirect_stdout(sys.stderr):  # the lines of the evaluation
        experiment = _experiment(run)
        part, call = find_call(experiment.module, submodule, lambda: _evaluate(experiment, checkpoint))
        done = export_program(experiment.module, part, call, folder, form.value)
    typer.echo(str(done.file))
    what = f"{type(experiment.module).__name__}{'.' * bool(part)}{part}({done.inputs})"
    typer.echo(
        f"{what}: batches of {', '.join(map(str, done.sizes))} samples differ from the module's output "
        f"by at most {done.difference:.2g}",
        err=True,
    )
    if done.fixed:
        typer.echo(f"the batch size is fixed: {done.fixed}", err=True)


def _experiment(run: Path) -> Any:
    """What was trained, with a Trainer that evaluates one batch and writes nothing."""
    from .. import Trainer

    if not (run / "config.yaml").is_file():
        raise PacelineError(
            "there is no config.yaml beside the checkpoint", code="run-damaged", where=str(run)
        )
    loaded = load_target(str(run), None, ["trainer.devices=1"])
    experiment = loaded.recipe.build_experiment(loaded.checked())
    quiet = Trainer(
        accelerator="cpu",
        devices=1,
        limit_val_batches=1,
        limit_test_batches=1,
        limit_predict_batches=1,
        progress=False,
        loggers=False,
        checkpoint=False,
        run_dir=None,
    )
    return replace(experiment, trainer=quiet)


def _evaluate(experiment: Any, checkpoint: Path) -> None:
    """Load the weights that evaluations use, and call a step on its first batch."""
    from ..trainer.module import is_overridden
    from ..trainer.phases import STEPS

    for verb, step in STEPS.items():
        if is_overridden(experiment.module, step):
            experiment.evaluate(verb, checkpoint)
            return
    raise PacelineError(
        f"{type(experiment.module).__name__} has no validation_step, which shows how forward is called",
        code="method-missing",
    )


def _copy_tokenizer(checkpoint: Path, folder: Path) -> None:
    """What a recipe wrote beside the weights at the end of the run."""
    written = checkpoint.parent.parent / "exported"
    for name in ("tokenizer*", "chat_template*", "special_tokens_map.json", "preprocessor_config.json"):
        for file in written.glob(name):
            shutil.copy(file, folder)


def ls(
    path: Annotated[Path, typer.Argument(help="A run, or any folder above.")] = Path("runs"),
    as_json: JSON = False,
) -> None:
    """List checkpoints."""
    from ..trainer.checkpoint.listing import list_checkpoints
    from ..trainer.utils.text import shown_size

    found = list(list_checkpoints(path))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    rows = [
        (
            one.path,
            one.step,
            one.epoch,
            shown_size(one.bytes or 0),
            f"{one.strategy} x {one.ranks}",
            one.saved,
            ", ".join(one.marks),
        )
        if not one.problem
        else (one.path, "", "", "", "", "", one.problem)
        for one in found
    ]
    print_table(("checkpoint", "step", "epoch", "size", "written by", "at", ""), rows)


def verify(
    path: Annotated[Path, typer.Argument(help="A checkpoint, a run, or any folder above.")],
    as_json: JSON = False,
) -> None:
    """Read every file and compare its checksums; exit code 1 when one is damaged."""
    from ..trainer.checkpoint.listing import find_checkpoints, problem_of

    folders = find_checkpoints(path)
    problems: dict[str, str] = {}
    with bytes_bar("verifying", sum(map(_bytes_below, folders))) as compared:
        for folder in folders:
            problems[str(folder)] = problem = problem_of(folder, compared)
            if not as_json:
                typer.echo(f"{folder}: {problem or 'whole'}")
    if as_json:
        print_json([{"path": path, "whole": not text, "problem": text} for path, text in problems.items()])
    raise typer.Exit(1 if any(problems.values()) else 0)


def show(
    path: Annotated[Path, typer.Argument(help="A checkpoint, or a run: its newest one.")],
    as_json: JSON = False,
) -> None:
    """Show what is in a checkpoint."""
    from ..trainer.checkpoint.listing import describe_checkpoint
    from ..trainer.utils.text import shown_size

    found = describe_checkpoint(path)
    if as_json:
        print_json(found)
        return
    hparams = ", ".join(f"{name}={value!r}" for name, value in found["hparams"].items())
    ranks = f"{found['ranks']} rank{'s' if found['ranks'] > 1 else ''}"
    typer.echo(found["path"])
    for name, text in (
        ("format", f"{found['format']}{', weights only' if found['weights_only'] else ''}"),
        ("module", f"{found['module']}({hparams})"),
        ("written by", f"{found['strategy']}, {ranks}, precision {found['precision']}"),
        *((name, _pairs(found[name])) for name in ("run", "data", "metrics")),
        *(("file", f"{name}  {shown_size(size)}") for name, size in found["files"].items()),
        *(("tensor", f"{name}  {shape}") for name, shape in found["tensors"].items()),
    ):
        typer.echo(f"  {name:<10}  {text}")


def consolidate(
    source: _SOURCE,
    target: Annotated[Path, typer.Argument(help="The new checkpoint's folder.")],
) -> None:
    """Write a checkpoint of many ranks again as one device would have."""
    from ..trainer.checkpoint.export import consolidate as write
    from ..trainer.checkpoint.listing import one_checkpoint

    checkpoint = one_checkpoint(source)
    with bytes_bar("verifying", _bytes_below(checkpoint)) as compared:
        written = write(checkpoint, target, compared)
    typer.echo(str(written))


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _pairs(values: dict[str, Any]) -> str:
    shown = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in values.items()}
    return "  ".join(f"{name} {value}" for name, value in shown.items()) or "none"
