"""``paceline chat``: to talk to a language model that a run has trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import PacelineError

_HELP = "/reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C ends an answer"


def chat(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, a checkpoint, or a folder that a run exported.")
    ],
    system: Annotated[str | None, typer.Option(help="The system prompt; else that of the run.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A folder or a name on the hub; else what the run exported.")
    ] = None,
    most: Annotated[int, typer.Option("--max-tokens", min=1, help="Of an answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.0,
) -> None:
    """Talk to a language model that a run has trained; of a pipe, each line is a question."""
    model, run = _model(source)
    words = _tokenizer(tokenizer or str(run / "exported" if (run / "exported").is_dir() else source))
    prompt = _system_of(run) if system is None else system
    start = [{"role": "system", "content": prompt}] if prompt else []
    settings: dict[str, Any] = {"max_new_tokens": most, "do_sample": temperature > 0}
    if temperature > 0:
        settings["temperature"] = temperature
    messages, shown = list(start), _shown(words)
    for line in _lines():
        if line in ("/exit", "/reset"):
            if line == "/exit":
                return
            messages = list(start)
            continue
        messages.append({"role": "user", "content": line})
        answer = _answer(model, words, shown, messages, settings)
        messages.append({"role": "assistant", "content": answer})


def _lines() -> Iterator[str]:
    """What the user asks, without empty lines."""
    on_terminal = sys.stdin.isatty()
    if on_terminal:
        import readline  # noqa: F401  # which gives input() its history

        typer.echo(_HELP)
    while True:
        try:
            line = input("> " if on_terminal else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            typer.echo()
            continue
        if line:
            yield line


def _shown(tokenizer: Any) -> Any:
    """Shows text as it is generated, and keeps it in ``text``."""
    from transformers import TextStreamer

    class Shown(TextStreamer):  # type: ignore[misc]
        text = ""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            self.text += text
            super().on_finalized_text(text, stream_end)

    return Shown(tokenizer, skip_prompt=True, skip_special_tokens=True)


def _answer(
    model: Any, tokenizer: Any, shown: Any, messages: list[dict[str, str]], settings: dict[str, Any]
) -> str:
    """The answer; after Ctrl-C what there is of it."""
    shown.text = ""
    try:
        given = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        model.generate(
            **given.to(model.device), streamer=shown, pad_token_id=tokenizer.pad_token_id, **settings
        )
    except KeyboardInterrupt:
        shown.end()
    return str(shown.text).strip()


def _model(source: Path) -> tuple[Any, Path]:
    """The model in evaluation mode where it computes fastest, and the folder of its run."""
    import torch

    if (source / "adapter_config.json").is_file() or (source / "config.json").is_file():
        from transformers import AutoModelForCausalLM  # which loads adapters with their base, too

        try:
            model, run = AutoModelForCausalLM.from_pretrained(source), source.parent
        except (OSError, ValueError, RuntimeError) as error:
            got = " ".join(str(error).split())[:200]
            fix = "the run itself, or a merged model: the adapter's base is not here, or has fewer tokens"
            raise PacelineError(
                "this folder cannot be loaded",
                code="model-not-loadable",
                where=str(source),
                got=got,
                fix=fix,
            ) from None
    else:
        from ..trainer.checkpoint.export import pretrained_part, stored_part
        from ..trainer.checkpoint.listing import one_checkpoint
        from ..trainer.checkpoint.merged import rebuilt

        checkpoint = one_checkpoint(source)
        run = checkpoint.parent.parent
        try:
            name = pretrained_part(checkpoint, "model")
        except PacelineError:
            raise _no_language_model(source) from None
        part = stored_part(checkpoint, name)
        model = rebuilt(part.described, part.tensors())
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not base.can_generate():
        raise _no_language_model(source)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model.to(device or "cpu").eval(), run


def _no_language_model(source: Path) -> PacelineError:
    return PacelineError(
        "there is no language model that answers",
        code="model-not-loadable",
        where=str(source),
        allowed="a run of llm-finetune, dpo or another recipe with a model of transformers named `model`",
    )


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        got = " ".join(str(error).split())
        raise PacelineError(
            "no tokenizer", code="tokenizer-mismatch", where=name, got=got, fix="--tokenizer NAME"
        ) from None
    if not found.chat_template:
        raise PacelineError(
            "the tokenizer has no chat template", code="chat-template", where=name, fix="--tokenizer NAME"
        )
    return found


def _system_of(run: Path) -> str | None:
    """The system prompt in the settings of a run."""
    import yaml

    file = run / "config.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = (content.get("config") or {}).get("system")
    return found if isinstance(found, str) else None
