"""Data of a recipe from its settings: sources, what is held out, weights, streams, and a preview."""

import json

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from paceline import Mixture, PacelineError
from paceline.recipes import dpo, kto, llm_finetune
from paceline.recipes.data.tiny_models import tiny_tokenizer


def records(name, number):
    return [
        {"instruction": f"Say {name} {n}.", "output": f"{name} {n}, " * (n % 5)} for n in range(1, number)
    ]


def write(file, found):
    file.write_text("\n".join(map(json.dumps, found)))
    return file


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / f"{name}.jsonl", records(name, 21)) for name in ("a", "b")]


def build(recipe=llm_finetune, **settings):
    trainer = {"run_dir": None, "accelerator": "cpu"}
    return recipe.build(recipe.Config(**{"packing": False, "trainer": trainer} | settings))


def texts(loader):
    return [tiny_tokenizer().decode(one.tokens) for row in loader.dataset for one in row]


def test_several_sources_are_read_each_with_its_end_held_out(files):
    experiment = build(data=[str(files[0]), {"path": str(files[1]), "samples": 10}], validation=0.2)
    train, val = texts(experiment.train), texts(experiment.val)
    assert (len(train), len(val)) == (16 + 8, 4 + 2)
    held_out = [("a", 17), ("a", 18), ("a", 19), ("a", 20), ("b", 9), ("b", 10)]
    assert all(f"Say {name} {n}." in text for text, (name, n) in zip(val, held_out, strict=True))


def test_files_to_validate_on_and_none(files):
    experiment = build(data=str(files[0]), validation=str(files[1]))
    assert len(texts(experiment.train)) == len(texts(experiment.val)) == 20
    assert all("Say b" in text for text in texts(experiment.val))
    assert build(data=str(files[0]), validation=0).val is None


def test_weights_mix_sources_in_their_shares(files):
    sources = [{"path": str(file), "weight": weight} for file, weight in zip(files, (3, 1), strict=True)]
    rows = build(data=sources, validation=0).train.dataset
    assert isinstance(rows, Mixture)
    assert (len(rows), rows.weights) == (40, [3.0, 1.0])
    with pytest.raises(PacelineError, match="some sources have a weight"):
        build(data=[sources[0], str(files[1])])
    with pytest.raises(PacelineError, match="order that is drawn"):
        build(data=sources, shuffle=False)


def test_a_stream_gives_the_rows_that_are_kept(files):
    data = [str(file) for file in files]
    for packing in (True, False):
        kept, streamed = (
            build(data=data, packing=packing, streaming=streaming, length=64) for streaming in (False, True)
        )
        assert texts(kept.train) == texts(streamed.train)
        assert texts(kept.val) == texts(streamed.val)


def test_a_dataset_of_hugging_face_on_disk_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_list(records("a", 21))
    datasets.DatasetDict({"train": found, "test": found.select(range(5))}).save_to_disk(tmp_path / "both")
    found.save_to_disk(tmp_path / "one")
    both, one = str(tmp_path / "both"), str(tmp_path / "one")
    experiment = build(data=both, validation={"path": both, "split": "test"})
    assert (len(texts(experiment.train)), len(texts(experiment.val))) == (20, 5)
    assert texts(build(data=one, streaming=True).train) == texts(build(data=one).train)
    with pytest.raises(PacelineError, match=r"no split 'dev'(.|\n)*train, test"):
        build(data={"path": both, "split": "dev"})


def test_a_book_is_split_within(tmp_path):
    text = "".join(f"Line {n} of a book.\n" for n in range(200))
    (tmp_path / "book.txt").write_text(text)
    experiment = build(data=str(tmp_path / "book.txt"), validation=0.1, length=100)
    held_out = "".join(texts(experiment.val))
    assert held_out.startswith(("<|im_start|>Line 180 of", "<|im_start|>Line 181 of"))
    assert "Line 199 of a book." in held_out
    assert "Line 199" not in "".join(texts(experiment.train))


def test_all_mistakes_of_all_files_are_in_one_report(files, tmp_path):
    one = write(tmp_path / "one.jsonl", [{"text": "a"}, {"txt": "b"}])
    other = write(tmp_path / "other.jsonl", [{"text": 1}, {"text": "b"}])
    for streaming in (True, False):
        with pytest.raises(PacelineError) as error:
            build(data=[str(one), str(files[0]), str(other)], streaming=streaming)
        text = str(error.value)
        assert "2 records cannot be used" in text
        assert "one.jsonl line 2" in text
        assert "other.jsonl line 1" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "nothing.jsonl"}, r"no file nothing\.jsonl"),
        ({"too_long": "error", "length": 10}, r"a\.jsonl line 1: a sample has \d+ tokens"),
        ({"packing": True, "group_by_length": True}, "packed rows are all as long"),
        ({"length": 4}, "no sample has anything to learn"),
        ({"chat_template": "chatlm"}, r"chatlm cannot be read(.|\n)*chatml, plain"),
        ({"data": [{"path": "a", "colums": {}}]}, "colums"),
        ({"data": [{"path": "a", "columns": {"question": "q"}}]}, "columns"),
        ({"validation": 1.0}, "validation"),
    ],
)
def test_settings_that_are_wrong_are_named(settings, message, files):
    with pytest.raises(ValueError, match=message):
        build(**{"data": str(files[0])} | settings)


def test_a_preview_marks_what_is_learned_and_ends(files, capsys):
    with pytest.raises(SystemExit):
        build(data=str(files[0]), preview=2, chat_template="plain")
    text = capsys.readouterr().out
    assert "User: Say a 1.\nAssistant:\u27e6 a 1, <|im_end|>\n\u27e7" in text
    assert "-- 2: " in text
    assert "-- 3: " not in text
    assert "19 samples" in text
    assert "dropped" not in text


@pytest.mark.parametrize(
    ("recipe", "more"),
    [(dpo, {"chosen": "yes", "rejected": "no"}), (kto, {"completion": "yes", "label": True})],
)
def test_pairs_and_labels_are_shown_too(recipe, more, tmp_path, capsys):
    write(tmp_path / "a.jsonl", [{"prompt": "So? ", **more}] * 4)
    with pytest.raises(SystemExit):
        recipe.build(recipe.Config(data=tmp_path / "a.jsonl", preview=1, trainer={"run_dir": None}))
    assert "So?\u27e6 yes<|im_end|>\u27e7" in capsys.readouterr().out


def test_weights_of_samples_weigh_their_tokens(tmp_path):
    found = [one | {"weight": n % 3} for n, one in enumerate(records("a", 21))]
    write(tmp_path / "a.jsonl", found)
    experiment = build(data=tmp_path / "a.jsonl", validation=0, batch_size=16, shuffle=False)
    module, batch = experiment.module.eval(), next(iter(experiment.train))
    result = module.training_step(batch)
    weights, targets = batch.pop("weights"), batch.pop("targets")
    logits = module(**batch)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    counted = weights * (targets != -100)
    torch.testing.assert_close(result["loss"], (losses * counted).sum() / counted.sum())
    assert int(result["weight"]) == int(counted.sum())
