"""Parts that transformers and peft load: exported from the process, and from a checkpoint."""

import importlib.util
import json
import warnings
from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from helpers.small_net import Net, data
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from paceline import PacelineError, Run, Trainer
from paceline.__main__ import app
from paceline.trainer.checkpoint.export import export_checkpoint
from paceline.trainer.checkpoint.files import format as files

JOB = Path(__file__).parent / "lora_job.py"


@pytest.fixture
def job():
    """The names of lora_job.py."""
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {' and '.join(missing)}")
    return load_job(JOB)


# -- with objects that have the methods of theirs ------------------------------------------------


class Config:
    def save_pretrained(self, folder):
        Path(folder, "config.json").write_text('{"model_type": "tiny"}')


class Pretrained(nn.Linear):
    config = Config()

    @classmethod
    def from_pretrained(cls, folder):
        raise NotImplementedError


class AdapterConfig:
    is_prompt_learning = False
    base_model_name_or_path = "acme/tiny"


class Adapted(nn.Module):
    """As a PeftModel: it writes the adapter under names of its own, and no base weights."""

    def __init__(self, names=("default",)):
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = Pretrained(3, 1)
        self.adapter = nn.Linear(3, 1)
        self.peft_config = self.base_model.model.peft_config = {name: AdapterConfig() for name in names}

    def forward(self, x):
        return self.base_model.model(x) + self.adapter(x)

    def get_base_model(self):
        raise NotImplementedError

    def save_pretrained(self, folder, state_dict=None):
        for name, config in self.peft_config.items():
            place = Path(folder) if name == "default" else Path(folder, name)
            place.mkdir(exist_ok=True)
            save_file({"lora": state_dict["adapter.weight"]}, place / "adapter_model.safetensors")
            content = {"base_model_name_or_path": config.base_model_name_or_path, "name": name}
            (place / "adapter_config.json").write_text(json.dumps(content))


def trained(part, tmp_path):
    class Wraps(Net):
        def __init__(self):
            super().__init__()
            self.net = part

    trainer = Trainer(
        accelerator="cpu", progress=False, loggers=False, run_dir=tmp_path / "runs", name="n", max_epochs=1
    )
    run = trainer.fit(Wraps(), data())
    return trainer, run


def test_a_part_with_a_config_of_its_own_is_the_same_from_a_checkpoint(tmp_path):
    trainer, run = trained(Pretrained(3, 1), tmp_path)
    trainer.export(tmp_path / "now", "net")
    export_checkpoint(run.latest, tmp_path / "later", "net")
    for folder in ("now", "later"):
        assert json.loads((tmp_path / folder / "config.json").read_text()) == {"model_type": "tiny"}
    first, second = (load_file(tmp_path / f / "model.safetensors") for f in ("now", "later"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_module_around_it_is_ours_whatever_its_config_is(tmp_path):
    """Its names begin with those of its parts: transformers would find no weight among them."""
    trainer, _ = trained(Pretrained(3, 1), tmp_path)
    trainer.module.config = Config()
    trainer.export(tmp_path / "out")
    assert "class" in json.loads((tmp_path / "out/config.json").read_text())


@pytest.mark.parametrize("names", [("default",), ("default", "other")])
def test_an_adapter_is_written_by_itself_now_and_from_a_checkpoint(names, tmp_path):
    trainer, run = trained(Adapted(names), tmp_path)
    trainer.export(tmp_path / "now", "net")
    export_checkpoint(run.latest, tmp_path / "later", "net")
    for name in names:
        now, later = (tmp_path / f / ("" if name == "default" else name) for f in ("now", "later"))
        for place in (now, later):
            files_there = {p.name for p in place.iterdir() if p.is_file()}
            assert files_there == {"adapter_config.json", "adapter_model.safetensors"}
            content = json.loads((place / "adapter_config.json").read_text())
            assert content == {"base_model_name_or_path": "acme/tiny", "name": name}
            assert torch.equal(
                load_file(place / "adapter_model.safetensors")["lora"], trainer.module.net.adapter.weight
            )


def test_a_model_with_adapters_inside_is_refused_with_the_part_to_export(tmp_path):
    trainer, run = trained(Adapted(), tmp_path)
    expected = (
        r"holds adapters of peft, and from_pretrained would give it random weights(.|\n)*export 'net'"
    )
    with pytest.raises(PacelineError, match=expected):
        trainer.export(tmp_path / "out", "net.base_model.model")
    with pytest.raises(PacelineError, match=expected):
        export_checkpoint(run.latest, tmp_path / "out", "net.base_model.model")
    assert not (tmp_path / "out").exists()


def test_a_part_that_cannot_be_described_costs_no_checkpoint(tmp_path):
    part = Adapted()
    part.peft_config["default"].is_prompt_learning = True
    trainer, run = trained(part, tmp_path)
    trainer.export(tmp_path / "out", "net")
    expected = (
        r"'net' cannot be exported from a checkpoint alone(.|\n)*learned prompt(.|\n)*trainer\.export"
    )
    with pytest.raises(PacelineError, match=expected):
        export_checkpoint(run.latest, tmp_path / "later", "net")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"../out": {"config": "", "tensors": {}}}, "module.pretrained.net.adapters"),
        ({"default": {"config": "", "tensors": {"a": "b"}}}, "does not hold(.|\n)*got: a"),
    ],
)
def test_a_manifest_that_was_changed_and_sealed_again_writes_nothing_elsewhere(change, expected, tmp_path):
    _, run = trained(Adapted(), tmp_path)
    manifest = files.read_manifest(run.latest)
    manifest["module"]["pretrained"]["net"]["adapters"] = change
    (run.latest / files.MANIFEST).write_bytes(files.sealed(manifest))
    with pytest.raises(files.CheckpointError, match=expected):
        export_checkpoint(run.latest, tmp_path / "later", "net")
    assert not (tmp_path / "later").exists()


# -- with the libraries --------------------------------------------------------------------------


def loaded(base, folder):
    """The base with the exported adapter; keys that are missing are an error."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys")
        return PeftModel.from_pretrained(base, str(folder)).eval()


def logits(model, tokens):
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


@pytest.mark.parametrize(
    "more", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}], ids=str
)
def test_a_peft_model_is_exported_as_peft_loads_it(job, more, tmp_path):
    module = job.Adapted(**more)
    trainer = job.fit(module, "single", tmp_path)
    trainer.export(tmp_path / "now", "model")
    done = CliRunner().invoke(
        app, ["export", str(trainer.folder), str(tmp_path / "later"), "--submodule", "model"]
    )
    assert done.exit_code == 0, done.output
    expected = logits(module.model, job.tokens())
    assert not torch.allclose(expected, logits(job.base(), job.tokens()))
    for folder in ("now", "later"):
        assert not (tmp_path / folder / "model.safetensors").exists()
        assert torch.equal(logits(loaded(job.base(), tmp_path / folder), job.tokens()), expected)
    texts = [json.loads((tmp_path / f / "adapter_config.json").read_text()) for f in ("now", "later")]
    assert texts[0] == texts[1]


def test_the_inner_model_of_a_peft_model_is_refused_until_it_is_merged(job, tmp_path):
    from transformers import AutoModelForCausalLM

    module = job.Adapted()
    trainer = job.fit(module, "single", tmp_path)
    with pytest.raises(PacelineError, match="export 'model'"):
        trainer.export(tmp_path / "out", "model.base_model.model")
    expected = logits(module.model, job.tokens())
    module.model = module.model.merge_and_unload()
    trainer.export(tmp_path / "out", "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(found, job.tokens()), expected)


def test_the_command_exports_a_model_that_automodel_loads(job, tmp_path):
    from transformers import AutoModelForCausalLM

    module = job.Plain()
    trainer = job.fit(module, "single", tmp_path)
    trainer.export(tmp_path / "now", "model")
    done = CliRunner().invoke(
        app, ["export", str(trainer.folder), str(tmp_path / "later"), "--submodule", "model"]
    )
    assert done.exit_code == 0, done.output
    texts = [json.loads((tmp_path / f / "config.json").read_text()) for f in ("now", "later")]
    assert texts[0] == texts[1]
    assert texts[0]["model_type"] == "llama"
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "later")
    assert torch.equal(logits(found, job.tokens()), logits(module.model, job.tokens()))


def test_the_only_model_is_found_for_hugging_face(job, tmp_path):
    from transformers import AutoModelForCausalLM

    module = job.Plain()
    trainer = job.fit(module, "single", tmp_path)
    done = CliRunner().invoke(app, ["export", str(trainer.folder), str(tmp_path / "out"), "--to", "hf"])
    assert done.exit_code == 0, done.output
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(found, job.tokens()), logits(module.model, job.tokens()))


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("deepspeed_stage_3", marks=pytest.mark.soak)])
def test_a_sharded_peft_model_is_exported_whole(job, strategy, tmp_path):
    from transformers import AutoModelForCausalLM

    done = run_ranks(JOB, 2, strategy, tmp_path, folder=tmp_path, transformers=True)
    assert done.codes == [0, 0], done.output
    trained_module = job.Adapted.load_from_checkpoint(tmp_path / "runs/n/1")
    export_checkpoint(Run(tmp_path / "runs/n/1").latest, tmp_path / "later", "model")
    expected = logits(trained_module.model, job.tokens())
    assert not torch.allclose(expected, logits(job.base(), job.tokens()))
    for folder in ("adapter", "later"):
        assert torch.equal(logits(loaded(job.base(), tmp_path / folder), job.tokens()), expected)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged, job.tokens()), expected)
    assert "merged in float32, saved as float32" in done.output


def test_a_model_with_its_own_loss_is_trained_by_its_batches_alone(tmp_path):
    """``TrainModule.of`` of a transformers model: the numbers of a loop, and an export that it reads."""
    transformers = pytest.importorskip("transformers")
    from functools import partial

    from torch.utils.data import DataLoader

    from paceline import Trainer, TrainModule

    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0

    def model():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config)

    tokens = torch.randint(32, (8, 8), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": one, "labels": one} for one in tokens]
    module = TrainModule.of(model(), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = Trainer(max_epochs=1, run_dir=None, progress=False)
    trainer.fit(module, DataLoader(rows, 4))
    by_loop = model()
    optimizer = torch.optim.SGD(by_loop.parameters(), lr=0.1)
    for batch in DataLoader(rows, 4):
        by_loop(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for ours, theirs in zip(module.model.parameters(), by_loop.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    trainer.export(tmp_path / "out", "model")
    read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert torch.equal(read(tokens).logits, by_loop.eval()(tokens).logits)
