"""LLaMA-Factory's and Axolotl's files: what they become, key by key, and that it runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.environment import clean_environment

import paceline
from paceline import PacelineError
from paceline.callbacks.loggers.series import read_rows
from paceline.commands.config.init import _settings_of
from paceline.commands.targets import recipe_modules
from paceline.compat.configs.finetuning import axolotl_names, axolotl_settings, llama_factory_names
from paceline.compat.configs.finetuning.run import TRAINER
from paceline.compat.configs.reading import OUTCOMES, REFUSED, UNKNOWN
from paceline.compat.configs.recognise import read_configuration
from paceline.config.load import load
from paceline.other_trainers.fine_tuning import OF_RECIPES

from .finetuning_examples import AXOLOTL, FILES, INFO, LLAMA_FACTORY

RECIPES = ("llm-finetune", "dpo", "kto", "reward-model")
ZERO = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": False},
}


def read(folder, text, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/dataset_info.json").write_text(json.dumps(INFO))
    (folder / "data/ds_z3.json").write_text(json.dumps(ZERO))
    Path("theirs.yaml").write_text(text)
    return read_configuration(Path("theirs.yaml"), settings_of=_settings_of)


def ours(reading):
    settings = {"recipe": reading.recipe, **reading.settings, "trainer": reading.trainer}
    Path("ours.yaml").write_text(yaml.safe_dump(settings))
    return load("ours.yaml", recipes=recipe_modules())


@pytest.mark.parametrize("name", FILES)
def test_the_recipe_its_settings_and_the_trainer(name, tmp_path, monkeypatch):
    example = FILES[name]
    reading = read(tmp_path, example.text, monkeypatch)
    assert reading.refused == []
    assert reading.recipe == example.recipe
    assert reading.source == name.partition(",")[0]
    assert {key: reading.settings.get(key) for key in example.settings} == example.settings
    assert reading.trainer == example.trainer


@pytest.mark.parametrize("name", FILES)
def test_our_recipes_take_all_of_them(name, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    loaded = ours(read(tmp_path, FILES[name].text, monkeypatch))
    assert loaded.problems == []
    loaded.checked()


def keys_of(content, path=""):
    for key, value in content.items():
        here = f"{path}.{key}" if path else str(key)
        deeper = value if isinstance(value, list) else [value]
        if not any(isinstance(one, dict) for one in deeper) or key in ("special_tokens",):
            yield here
        elif key not in ("gradient_checkpointing_kwargs",):
            for number, one in enumerate(deeper):
                yield from keys_of(one, f"{here}.{number}" if isinstance(value, list) else here)
        if isinstance(value, list) and here not in ("data",) and any(isinstance(o, dict) for o in value):
            yield here


@pytest.mark.parametrize("name", FILES)
def test_each_key_has_a_note_with_its_line(name, tmp_path, monkeypatch):
    text = FILES[name].text
    reading = read(tmp_path, text, monkeypatch)
    own = [note for note in reading.notes if note.place.startswith("theirs.yaml")]
    expected = set(keys_of(yaml.safe_load(text)))
    noted = {note.path for note in own}
    assert {one for one in expected - noted if "kwargs" not in one} == set()
    assert len(noted) == len(own)
    lines = text.splitlines()
    for note in own:
        assert note.outcome in OUTCOMES[:4]
        assert note.became, note
        number = int(note.place.rpartition(":")[2])
        assert note.path.rpartition(".")[2] in lines[number - 1]


@pytest.mark.parametrize(
    ("known", "settings"),
    [(llama_factory_names.KNOWN, llama_factory_names), (axolotl_names.KNOWN, axolotl_settings)],
    ids=["LLaMA-Factory", "Axolotl"],
)
def test_a_key_is_read_or_explained_and_not_both(known, settings):
    assert (set(settings.READ_HERE) | set(settings.SETTINGS)) & set(known) == set()
    assert all(outcome in OUTCOMES[:5] and text for outcome, text in known.values())


def test_defaults_of_theirs_are_written_where_ours_differ(tmp_path, monkeypatch):
    text = "model_name_or_path: some/model\nstage: sft\ndo_train: true\ndataset: sums\n"
    settings = read(tmp_path, text, monkeypatch).settings
    theirs = {
        "learning_rate": 5e-5,
        "length": 2048,
        "lora_rank": 8,
        "lora_alpha": 16.0,
        "epochs": 3,
        "batch_size": 8,
        "scheduler": "linear",
        "warmup": 0,
        "packing": False,
        "validation": 0,
        "method": "lora",
        "gradient_checkpointing": True,
    }
    assert {key: settings[key] for key in theirs} == theirs
    text = "base_model: some/model\nlearning_rate: 1e-4\ndatasets: [{path: a.json, type: chat_template}]\n"
    settings = read(tmp_path, text, monkeypatch).settings
    theirs = {
        "length": 512,
        "epochs": 1,
        "batch_size": 1,
        "warmup": "3%",
        "packing": False,
        "validation": 0,
        "method": "full",
        "too_long": "drop",
        "scheduler": {"class": "cosine", "warmup_start": 0.0},
    }
    assert {key: settings[key] for key in theirs} == theirs


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("stage: ppo\nreward_model: x\n", "stage", "OpenRLHF"),
        ("finetuning_type: oft\noft_block_size: 32\n", "finetuning_type", "finetuning_type: lora"),
        ("image_max_pixels: 262144\n", "image_max_pixels", "text alone"),
        ("dataset: seen\n", "dataset", "images"),
        ("use_galore: true\ngalore_rank: 128\n", "use_galore", "PACKAGE.MODULE:CLASS"),
        ("use_dft_loss: true\n", "use_dft_loss", "no such loss"),
        ("quantization_bit: 3\n", "quantization_bit", "4 or 8"),
        ("val_size: 200\n", "val_size", "0.05"),
        ("num_train_epochs: 0.5\n", "num_train_epochs", "max_steps"),
        ("lr_scheduler_type: reduce_lr_on_plateau\n", "lr_scheduler_type", "scheduler: {class:"),
        ("export_dir: merged\ndo_train:\n", "export_dir", "exported of a run"),
        ("infer_backend: vllm\ndo_train:\n", "infer_backend", "paceline chat"),
        ("dist_config:\n  name: fsdp2\n", "dist_config", "first one"),
    ],
)
def test_what_llama_factory_has_alone_is_refused(text, key, said, tmp_path, monkeypatch):
    given = {"model_name_or_path": "some/model", "do_train": True, "learning_rate": 1e-4}
    reading = read(tmp_path, yaml.safe_dump(given | yaml.safe_load(text)), monkeypatch)
    found = {note.path: note.became for note in reading.refused}
    assert said in found[key]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("rl: grpo\ntrl: {num_generations: 4}\n", "rl", "OpenRLHF"),
        ("rl: ebft\n", "rl", "kto"),
        ("process_reward_model: true\n", "process_reward_model", "reward_model: true"),
        ("adapter: llama-adapter\n", "adapter", "lora or qlora"),
        ("processor_type: AutoProcessor\n", "processor_type", "text alone"),
        ("qat: {weight_dtype: int4}\n", "qat", "torchao"),
        ("context_parallel_size: 2\n", "context_parallel_size", "."),
        ("optimizer: came_pytorch\n", "optimizer", "PACKAGE.MODULE:CLASS"),
        ("lr_scheduler: rex\n", "lr_scheduler", "scheduler"),
        ("datasets: [{path: x.json, type: reflection}]\n", "datasets.0.type", "columns"),
        ("datasets: [{path: x/y, type: alpaca, data_files: [a]}]\n", "datasets.0.data_files", "download"),
        ("relora: true\n", "relora", "ReLoRA"),
    ],
)
def test_what_axolotl_has_alone_is_refused(text, key, said, tmp_path, monkeypatch):
    given = {"base_model": "some/model", "learning_rate": 1e-4}
    reading = read(tmp_path, yaml.safe_dump(given | yaml.safe_load(text)), monkeypatch)
    found = {note.path: note.became for note in reading.refused}
    assert said in found[key]


def test_what_is_switched_off_prevents_nothing(tmp_path, monkeypatch):
    text = LLAMA_FACTORY["lora"].text + "use_galore: false\nld_alpha: null\nuse_dft_loss: false\n"
    assert read(tmp_path, text, monkeypatch).refused == []
    text = AXOLOTL["lora"].text + "rl:\nqat:\nrelora: false\nprocess_reward_model: false\n"
    assert read(tmp_path, text, monkeypatch).refused == []


@pytest.mark.parametrize(
    ("text", "given", "keys"),
    [
        (
            LLAMA_FACTORY["full, ZeRO 3"].text,
            "lora_rank: 8\nlora_dropout: 0.1\nloraplus_lr_ratio: 16\nadditional_target: lm_head\n",
            ("lora_rank", "lora_dropout", "lora_plus_ratio", "modules_to_save"),
        ),
        (
            AXOLOTL["full, FSDP"].text,
            "lora_r: 8\nlora_alpha: 16\nlora_modules_to_save: [lm_head]\n",
            ("lora_rank", "lora_alpha", "modules_to_save"),
        ),
        (LLAMA_FACTORY["qlora"].text, "group_by_length: true\n", ("group_by_length",)),
        (AXOLOTL["lora"].text, "group_by_length: true\n", ("group_by_length",)),
        (AXOLOTL["full, FSDP"].text, "evals_per_epoch: 4\n", ()),
    ],
)
def test_what_has_no_use_in_a_run_is_said_so(text, given, keys, tmp_path, monkeypatch):
    reading = read(tmp_path, text + given, monkeypatch)
    assert not set(keys) & set(reading.settings)
    added = yaml.safe_load(given)
    assert {note.outcome for note in reading.notes if note.path in added} == {"default"}


@pytest.mark.parametrize(
    ("text", "validate_every"),
    [("eval_strategy: 'no'\n", None), ("eval_strategy: epoch\n", "1ep"), ("eval_steps: 50\n", 50)],
)
def test_how_often_a_run_validates(text, validate_every, tmp_path, monkeypatch):
    given = LLAMA_FACTORY["dpo"].text + text
    assert read(tmp_path, given, monkeypatch).trainer["validate_every"] == validate_every


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LLAMA_FACTORY["lora"].text + "lora_alfa: 3\n", "did you mean lora_alpha?"),
        (AXOLOTL["lora"].text + "sample_pakcing: true\n", "did you mean sample_packing?"),
        (LLAMA_FACTORY["lora"].text.replace("dataset: sums", "dataset: sum"), "did you mean sums?"),
        (
            LLAMA_FACTORY["lora"].text.replace("lora_rank: 8", "lora_rank: eight"),
            "an integer of at least 1",
        ),
        (AXOLOTL["lora"].text.replace("val_set_size: 0.1", "val_set_size: a"), "a number"),
        (LLAMA_FACTORY["full, ZeRO 3"].text.replace("ds_z3.json", "no.json"), "there is no such file"),
    ],
)
def test_typos_are_named_with_their_line(text, said, tmp_path, monkeypatch):
    with pytest.raises(PacelineError) as raised:
        read(tmp_path, text, monkeypatch)
    assert said in str(raised.value)
    assert "theirs.yaml:" in str(raised.value)


def test_a_key_like_none_that_is_known_is_said_to_be_unknown(tmp_path, monkeypatch):
    for text in (LLAMA_FACTORY["lora"].text, AXOLOTL["lora"].text):
        reading = read(tmp_path, text + "zebra: 3\n", monkeypatch)
        assert [note.path for note in reading.notes if note.outcome == UNKNOWN] == ["zebra"]


def test_settings_that_a_recipe_gets_later_are_used(tmp_path, monkeypatch):
    text = LLAMA_FACTORY["lora"].text + "add_tokens: <a>,<b>\nhub_model_id: me/sums\n"
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(text.replace("dataset: sums,chats", "dataset_dir: ONLINE\ndataset: a/b"))
    more = {*_settings_of("llm-finetune"), "added_tokens", "hub", "trust_remote_code"}
    reading = read_configuration(Path("theirs.yaml"), settings_of=lambda _: more)
    assert reading.settings["added_tokens"] == ["<a>", "<b>"]
    assert reading.settings["hub"] == "me/sums"
    assert reading.settings["trust_remote_code"] is True
    reading = read_configuration(
        Path("theirs.yaml"), settings_of=lambda _: more - {"added_tokens", "hub", "trust_remote_code"}
    )
    assert [note.path for note in reading.refused] == ["add_tokens"]
    assert "hub" not in reading.settings


def test_data_without_their_list_of_datasets_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(LLAMA_FACTORY["lora"].text)
    reading = read_configuration(Path("theirs.yaml"), settings_of=_settings_of)
    (note,) = (note for note in reading.notes if note.path == "dataset")
    assert note.outcome == "elsewhere"
    assert "data/dataset_info.json is not here" in note.became


def command(folder, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *arguments],
        cwd=folder,
        env=clean_environment() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def tiny_base(folder):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from paceline.recipes.data.tiny_models import tiny_llama, tiny_tokenizer

    tiny_llama().save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")


@pytest.mark.launch
def test_a_file_of_llama_factory_is_trained(tmp_path):
    tiny_base(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(INFO))
    sums = [{"instruction": f"Add 1 to {n}.", "input": "", "output": f"It is {n + 1}."} for n in range(24)]
    (tmp_path / "data/sums.json").write_text(json.dumps(sums))
    text = LLAMA_FACTORY["lora"].text.replace("Qwen/Qwen3-4B-Instruct-2507", "base")
    text = text.replace("sums,chats", "sums").replace("bf16: true", "bf16: false")
    text = text.replace("eval_steps: 200", "eval_steps: 2").replace(
        "dataloader_num_workers: 4", "max_steps: 3"
    )
    (tmp_path / "theirs.yaml").write_text(text)
    said = command(tmp_path, "config", "init", "ours.yaml", "--from", "theirs.yaml")
    assert "paceline fit ours.yaml" in said
    assert "no problem found" in command(tmp_path, "config", "check", "ours.yaml")
    command(tmp_path, "fit", "ours.yaml", "trainer.progress=false")
    run = tmp_path / "saves/run/llm-finetune/1"
    assert (run / "exported/adapter_config.json").is_file()
    rows = read_rows(run / "metrics.jsonl")
    assert max(row["step"] for row in rows) == 3
    assert any("val/loss" in row for row in rows)


@pytest.mark.launch
def test_a_file_of_axolotl_is_trained(tmp_path):
    tiny_base(tmp_path)
    pairs = [
        {
            "conversation": [{"role": "user", "content": f"Add 1 to {n}."}],
            "good": {"role": "assistant", "content": f"It is {n + 1}."},
            "bad": {"role": "assistant", "content": f"It is {n + 3}."},
        }
        for n in range(24)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    text = AXOLOTL["dpo"].text.replace("meta-llama/Llama-3.1-8B-Instruct", "base")
    text = text.replace("  - path: others.jsonl\n    type: chatml.intel\n", "").replace("bf16: auto", "")
    text = text.replace("wandb_project: sums", "max_steps: 3").replace("tf32: true", "")
    (tmp_path / "theirs.yaml").write_text(text)
    command(tmp_path, "config", "init", "ours.yaml", "--from", "theirs.yaml")
    command(tmp_path, "fit", "ours.yaml", "trainer.progress=false")
    assert (tmp_path / "outputs/out/dpo/1/exported/adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("name", "key"), [("LLaMA-Factory", "model_name_or_path"), ("Axolotl", "base_model")]
)
def test_fit_says_how_such_a_file_is_read(name, key, tmp_path, monkeypatch):
    from paceline.commands.targets import load_target

    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(f"{key}: some/model\nlearning_rate: 1e-4\n")
    with pytest.raises(PacelineError) as raised:
        load_target("theirs.yaml", None, None)
    assert f"theirs.yaml is a file of {name}" in str(raised.value)
    assert "paceline config init run.yaml --from theirs.yaml" in str(raised.value)


def test_nothing_is_written_of_a_file_that_is_refused(tmp_path):
    (tmp_path / "theirs.yaml").write_text("base_model: some/model\nlearning_rate: 1e-4\nrl: grpo\n")
    said = command(tmp_path, "config", "init", "ours.yaml", "--from", "theirs.yaml", code=1)
    assert f"{REFUSED}" in said
    assert not (tmp_path / "ours.yaml").exists()


# -- the page ------------------------------------------------------------------------------------

PAGE = Path(paceline.__file__).parent / "docs/migration/from-llamafactory-axolotl-trl.md"


def test_the_example_of_the_page(tmp_path, monkeypatch):
    text = PAGE.read_text().partition("## Read their files")[2]
    theirs, account, ours_there = re.findall(r"```(?:yaml|text)\n(.*?)```", text, re.DOTALL)[:3]
    info = {"sums": {"file_name": "sums.json", "columns": {"prompt": "question", "response": "answer"}}}
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(json.dumps(info))
    Path("sft.yaml").write_text(theirs)
    said = command(tmp_path, "config", "init", "run.yaml", "--from", "sft.yaml")
    assert said.partition("wrote run.yaml")[0] == account
    assert yaml.safe_load(Path("run.yaml").read_text()) == yaml.safe_load(ours_there)


def test_the_keys_of_the_page_are_theirs_and_ours():
    rows = re.findall(r"^\| (.*) \|$", PAGE.read_text().partition("## Keys")[2].partition("\n## ")[0], re.M)
    known = [
        {
            *llama_factory_names.READ_HERE,
            *llama_factory_names.SETTINGS,
            *TRAINER,
            *llama_factory_names.KNOWN,
        },
        {*axolotl_settings.READ_HERE, *axolotl_settings.SETTINGS, *TRAINER, *axolotl_names.KNOWN},
        {*OF_RECIPES, *(name for one in RECIPES for name in _settings_of(one))},
    ]
    assert len(rows) > 40
    for row in rows[2:]:
        for cell, keys in zip(row.split("|")[:3], known, strict=True):
            names = [part.strip("`").partition(":")[0] for part in re.findall(r"`[a-z_0-9]+[`:]", cell)]
            assert set(names) - {"ipo", "orpo", "simpo", "pt"} <= keys, row
