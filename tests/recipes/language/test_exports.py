"""What a run leaves for transformers and peft: adapters for the base as it was, and merged weights."""

import json
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from paceline import PacelineError
from paceline.__main__ import app

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.recipes.data.tiny_models import tiny_llama, tiny_tokenizer
from paceline.recipes.llm_finetune import Config, build

RUN = {"length": 64, "batch_size": 2, "epochs": 1, "learning_rate": 2e-3, "method": "lora", "lora_rank": 4}
TRAINER = {"max_steps": 2, "limit_val_batches": 1, "accelerator": "cpu", "loggers": False}
TOKENS = torch.arange(40).reshape(2, 20) * 7
KINDS = [
    {},
    {"lora_dora": True},
    {"lora_rslora": True},
    {"modules_to_save": ["lm_head"]},
    {"modules_to_save": ["embed_tokens"]},
    {"lora_init": "pissa"},
    {"added_tokens": ["<think>", "</think>"]},
    {"added_tokens": ["<think>", "</think>"], "lora_init": "pissa"},
    {"added_tokens": ["<think>", "</think>"], "modules_to_save": ["embed_tokens", "lm_head"]},
    {"lora_init": "olora", "lora_rslora": True},
    {"lora_init": "pissa_niter_4", "lora_dora": True},
]
KINDS_SHOWN = [" ".join(map(str, kind.values())) or "plain" for kind in KINDS]
SEEN = torch.tensor([[1024, 5, 1025, 9] * 5])
"""With the tokens that are added."""


@pytest.fixture(scope="module", params=["tied", "untied"])
def base(request, tmp_path_factory):
    """A model in a folder, as from_pretrained takes it."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    model = tiny_llama()
    if request.param == "untied":
        model.config.tie_word_embeddings = False
        model = type(model)(model.config)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def fit(folder, **settings):
    trainer = TRAINER | {"run_dir": folder / "runs", "name": "n"}
    experiment = build(Config(**RUN | settings, trainer=trainer))
    return experiment.fit(), experiment.module.model.eval()


def logits(model):
    tokens = SEEN if model.config.vocab_size > 1024 else TOKENS
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


def in_full(folder, **more):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **more)


def resized(model, count):
    """With rows for added tokens, of which none is right by itself."""
    if count > model.config.vocab_size:
        model.resize_token_embeddings(count, mean_resizing=False)
    return model


@pytest.mark.fit
@pytest.mark.parametrize("kind", KINDS, ids=KINDS_SHOWN)
def test_the_adapter_is_for_the_base_as_it_was_and_merged_weights_are_the_same_model(base, kind, tmp_path):
    from peft import PeftModel
    from transformers import AutoTokenizer

    run, trained = fit(tmp_path, model=str(base), export_merged=True, **kind)
    expected = logits(trained)
    count = trained.config.vocab_size
    plain = logits(resized(in_full(base), count))
    assert (expected - plain).abs().max() > 1e-3
    commands = {"adapter": ["--submodule", "model"], "whole": ["--merged"]}
    for name, words in commands.items():
        done = CliRunner().invoke(app, ["export", str(run.folder), str(tmp_path / name), *words])
        assert done.exit_code == 0, done.output
    assert "merged in float32, saved as float32" in done.output
    for folder in (run.folder / "exported", tmp_path / "adapter"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*adapter keys")
            adapted = PeftModel.from_pretrained(resized(in_full(base), count), str(folder))
        torch.testing.assert_close(logits(adapted), expected, rtol=1e-4, atol=1e-5)
    now, later = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (run.folder / "exported", tmp_path / "adapter")
    )
    assert later.keys() <= now.keys()
    if "modules_to_save" not in kind:  # else peft may write the base's embeddings, too
        assert now.keys() == later.keys()
    for folder in (run.folder / "merged", tmp_path / "whole"):
        torch.testing.assert_close(logits(in_full(folder)), expected, rtol=1e-4, atol=1e-5)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.chat_template == tiny_tokenizer().chat_template
        assert len(tokenizer) == count
        for token in kind.get("added_tokens", []):
            assert len(tokenizer.encode(token, add_special_tokens=False)) == 1


@pytest.mark.fit
def test_sums_are_computed_in_32_bits_and_stored_as_the_base_is(base, tmp_path):
    run, trained = fit(tmp_path, model=str(base), dtype="bfloat16", export_merged=True)
    exact = trained.float().merge_and_unload().state_dict()
    found = in_full(run.folder / "merged")
    assert {parameter.dtype for parameter in found.parameters()} == {torch.bfloat16}
    for name, value in found.state_dict().items():
        assert torch.equal(value, exact[name].bfloat16()), name
    words = ["--merged", "--dtype", "float32"]
    done = CliRunner().invoke(app, ["export", str(run.folder), str(tmp_path / "out"), *words])
    assert "merged in float32, saved as float32" in done.output
    assert torch.equal(in_full(tmp_path / "out").state_dict()[name], exact[name])


@pytest.mark.fit
def test_what_has_no_adapter_is_not_merged(tmp_path):
    config = {name: value for name, value in RUN.items() if name not in ("method", "lora_rank")}
    trainer = TRAINER | {"run_dir": tmp_path / "runs", "name": "n"}
    run = build(Config(**config, trainer=trainer)).fit()
    done = CliRunner().invoke(app, ["export", str(run.folder), str(tmp_path / "out"), "--merged"])
    assert isinstance(done.exception, PacelineError)
    assert "no adapter of peft to be merged" in str(done.exception)
    with pytest.raises(PacelineError, match="export_merged: it is for method=lora"):
        Config(export_merged=True).check("llm-finetune")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run that has trained an adapter."""
    return fit(tmp_path_factory.mktemp("adapted"))[0]


def export(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


@pytest.mark.fit
def test_a_dry_run_shows_what_the_hub_would_get(adapted, tmp_path, monkeypatch):
    import socket

    def refuse(*_):
        raise AssertionError("no network in a dry run")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    done = export(adapted.folder, tmp_path / "out", "--merged", "--hub", "me/small", "--dry-run")
    assert done.exit_code == 0, done.output
    shown = done.output.partition("would send ")[2]
    files = list((tmp_path / "out").iterdir())
    assert f"{len(files)} files" in shown
    assert "to me/small, private if it is new" in shown
    assert all(f"{file.name} " in shown for file in files)
    assert "tokenizer.json" in shown


class Hub(BaseHTTPRequestHandler):
    """Notes what it is asked for, and refuses it."""

    asked: ClassVar[list] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.fit
@pytest.mark.parametrize("more", [[], ["--public"]])
def test_the_hub_is_asked_for_a_private_repository_and_its_refusal_is_shown(
    adapted, more, tmp_path, monkeypatch
):
    import huggingface_hub.constants

    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    Hub.asked.clear()
    done = export(adapted.folder, tmp_path / "out", "--to", "hf", "--hub", "me/small", *more)
    server.shutdown()
    server.server_close()
    (asked,) = Hub.asked
    assert asked[:2] == ("/api/repos/create", "Bearer hf_secret")
    assert (asked[2]["name"], asked[2]["visibility"]) == ("small", "public" if more else "private")
    assert "the hub did not take the folder" in str(done.exception)
    assert "hf_secret" not in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--hub", "me/small"], "--hub is for --to hf and --merged"),
        (["--to", "hf", "--hub", "me/small/more"], "no name of a repository"),
        (["--merged", "--hub", "me/small"], "which is not empty"),
        (["--dry-run"], "are for --hub"),
    ],
)
def test_what_the_hub_cannot_get_is_an_error(words, expected, tmp_path):
    (tmp_path / "file").touch()
    done = export(tmp_path, tmp_path, *words)
    assert expected in str(done.exception)


CONVERTER = """
import pathlib, sys
folder, option, file = sys.argv[1:]
assert option == "--outfile"
assert (pathlib.Path(folder) / "tokenizer.json").is_file()
size = (pathlib.Path(folder) / "model.safetensors").stat().st_size
pathlib.Path(file).write_text(f"GGUF {size}")
"""


@pytest.mark.launch
def test_gguf_is_written_by_the_converter_of_llama_cpp(adapted, tmp_path, monkeypatch):
    monkeypatch.delenv("LLAMA_CPP_CONVERTER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = export(adapted.folder, tmp_path / "out", "--merged", "--gguf")
    assert "needs convert_hf_to_gguf.py of llama.cpp" in str(done.exception)
    assert not (tmp_path / "out").exists()
    converter = tmp_path / "convert.py"
    converter.write_text(CONVERTER)
    monkeypatch.setenv("LLAMA_CPP_CONVERTER", str(converter))
    assert export(adapted.folder, tmp_path / "out", "--merged", "--gguf").exit_code == 0
    assert (tmp_path / "out/model.gguf").read_text().startswith("GGUF ")
    done = export(adapted.folder, tmp_path / "adapter", "--to", "hf", "--gguf")
    assert "this is an adapter" in str(done.exception)
    converter.write_text("raise SystemExit(3)")
    done = export(adapted.folder, tmp_path / "again", "--merged", "--gguf")
    assert "failed with exit code 3" in str(done.exception)


def test_the_reference_of_adapters_that_take_from_the_base_is_refused():
    from paceline.recipes import dpo

    with pytest.raises(PacelineError, match=r"pissa(.|\n)*lora_init=default"):
        dpo.build(dpo.Config(method="lora", lora_init="pissa"))


def test_an_adapter_that_does_not_change_its_base_is_written_as_it_is(tmp_path):
    """Also where another one has the name that is kept for beginnings."""
    from paceline.trainer.checkpoint.pretrained import refer_to_base

    for folder in (tmp_path, tmp_path / "initial"):
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"init_lora_weights": True}))
        (folder / "adapter_model.safetensors").touch()
    refer_to_base(tmp_path)
    assert (tmp_path / "initial/adapter_config.json").exists()
