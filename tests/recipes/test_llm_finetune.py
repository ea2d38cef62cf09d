"""Instruction tuning: what is trained, and that what it exports loads in transformers and peft."""

import json

import pytest
import torch
from helpers.ranks import run_ranks

from paceline import PacelineError

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline.recipes.data.tiny_models import tiny_conversations, tiny_tokenizer
from paceline.recipes.llm_finetune import Config, FineTune, build

SETTINGS = {"length": 128, "batch_size": 2, "epochs": 1}
TRAINER = {"limit_train_batches": 4, "limit_val_batches": 2, "accelerator": "cpu", "log_every": 1}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Some of the recipe's own conversations, in a file."""
    file = tmp_path_factory.mktemp("few") / "data.json"
    file.write_text(json.dumps([{"messages": messages} for messages in tiny_conversations()[1][:40]]))
    return file


def fit(**settings):
    experiment = build(Config(**SETTINGS | RATE | settings, trainer=TRAINER))
    return experiment.fit(), experiment.module.model.eval()


RATE = {"learning_rate": 2e-3}


def logits(model):
    tokens = torch.arange(40).reshape(2, 20) * 7
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


def test_the_adapter_gives_the_same_logits_in_transformers_and_peft(base):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, trained = fit(model=str(base), method="lora", lora_rank=4)
    plain = AutoModelForCausalLM.from_pretrained(base)
    untrained = logits(plain)
    folder = run.folder / "exported"
    assert sorted(p.name for p in folder.glob("*.safetensors")) == ["adapter_model.safetensors"]
    adapted = PeftModel.from_pretrained(plain, folder)
    assert torch.equal(logits(adapted), logits(trained))
    assert (logits(adapted) - untrained).abs().max() > 1e-4
    assert AutoTokenizer.from_pretrained(folder).chat_template == tiny_tokenizer().chat_template
    again = FineTune.load_from_checkpoint(run.folder)
    assert torch.equal(logits(again.model), logits(trained))


def test_the_whole_model_loads_in_transformers(base, few):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, trained = fit(model=str(base), data=few, validation=0.2)
    found = AutoModelForCausalLM.from_pretrained(run.folder / "exported")
    assert torch.equal(logits(found), logits(trained))
    assert (logits(found) - logits(AutoModelForCausalLM.from_pretrained(base))).abs().max() > 1e-3
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "exported")
    assert tokenizer("A text.")["input_ids"] == tiny_tokenizer()("A text.")["input_ids"]


def test_the_adapters_alone_are_trained(base, few):
    more = {"data": few, "validation": 0.2, "lora_targets": ["q_proj", "v_proj"], "lora_rank": 4}
    _, trained = fit(model=str(base), method="lora", **more)
    names = [name for name, parameter in trained.named_parameters() if parameter.requires_grad]
    assert len(names) == 4 * 2 * 2
    assert all("lora_" in name for name in names)


@pytest.mark.fit  # for its length
def test_a_file_is_split_and_its_chat_template_used(base, tmp_path):
    records = [{"instruction": f"Say {n}.", "output": f"{n}."} for n in range(40)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    (tmp_path / "template.jinja").write_text(
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    more = {"data": tmp_path / "data.json", "chat_template": tmp_path / "template.jinja"}
    experiment = build(Config(**SETTINGS, **RATE, **more, model=str(base), packing=False, validation=0.1))
    assert (len(experiment.train.dataset), len(experiment.val.dataset)) == (36, 4)
    row = experiment.val.dataset[3][0]
    assert tiny_tokenizer().decode(row.tokens) == "[user] Say 39.\n[assistant] 39.\n"
    assert (
        tiny_tokenizer().decode([t for t in row.targets if t >= 0]) == " 39.\n"
    )  # with the space before it


def test_one_file_of_yaml_is_a_run(base, tmp_path):
    records = [
        {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]}
    ] * 40
    (tmp_path / "data.json").write_text(json.dumps(records))
    (tmp_path / "finetune.yaml").write_text(
        f"recipe: llm-finetune\nmodel: {base}\ndata: data.json\nmethod: lora\nlora_rank: 4\nlength: 64\n"
        "learning_rate: 1e-3\nepochs: 1\ntrainer:\n  strategy: single\n  name: chat\n"
    )
    run_ranks("paceline", 1, "fit", "finetune.yaml", folder=tmp_path, seconds=100, transformers=True)
    assert (tmp_path / "runs/chat/1/exported/adapter_config.json").exists()


def test_a_package_that_is_missing_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(PacelineError, match=r"llm-finetune needs peft(.|\n)*paceline\[hf\]"):
        build(Config())


def test_the_rate_of_the_tiny_model_is_for_no_other(base):
    with pytest.raises(PacelineError, match=r"default learning rate(.|\n)*preset=lora"):
        build(Config(model=str(base)))


def test_four_bits_are_for_adapters(base, monkeypatch):
    import sys
    from types import ModuleType

    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(PacelineError, match="llm-finetune needs bitsandbytes"):
        build(Config(model=str(base), method="lora", load_in_4bit=True, **RATE))
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    for more in ({"model": str(base)}, {"method": "lora"}):
        with pytest.raises(PacelineError, match="load_in_4bit is for method=lora"):
            build(Config(load_in_4bit=True, **RATE, **more))


def test_the_kernel_of_liger_is_for_models_whose_head_makes_the_logits(few, tmp_path, monkeypatch):
    import sys
    from types import ModuleType

    from transformers import GraniteConfig, GraniteForCausalLM

    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(PacelineError, match=r"liger_kernel(.|\n)*pip install liger-kernel"):
        build(Config(liger=True))
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    GraniteForCausalLM(GraniteConfig(vocab_size=1024, logits_scaling=8.0, **small)).save_pretrained(
        tmp_path
    )
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    settings = SETTINGS | RATE | {"model": str(tmp_path), "data": few}
    with pytest.raises(PacelineError, match=r"GraniteForCausalLM(.|\n)*liger=false"):
        build(Config(**settings, liger=True))
    assert build(Config(**settings)).train is not None


def test_what_cannot_learn_is_counted(base, tmp_path, capsys):
    records = [{"instruction": "word " * (200 if n % 2 else 1), "output": "So."} for n in range(40)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    experiment = build(Config(**SETTINGS, data=tmp_path / "data.json", trainer=TRAINER))
    assert len(experiment.train.dataset.samples) == 19
    assert "19 dropped: nothing to learn within the length" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["OPT", "Bloom"])
def test_models_that_mix_packed_conversations_are_refused(kind, few, tmp_path):
    import transformers

    small = {"vocab_size": 1024, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    small |= {"ffn_dim": 64, "word_embed_proj_dim": 32} if kind == "OPT" else {}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**small)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    settings = SETTINGS | RATE | {"model": str(tmp_path), "data": few}
    with pytest.raises(PacelineError, match=r"would see each other(.|\n)*packing=false"):
        build(Config(**settings))
    assert build(Config(**settings, packing=False)).train is not None
