"""Text classification: samples of files, F1 over all batches, and an export that transformers loads."""

import json

import pytest
import torch

from paceline import PacelineError
from paceline.recipes.classify_text import Config, build, labels_of, sample_of

pytest.importorskip("transformers")
pytest.importorskip("torchmetrics")

ON_CPU = {"accelerator": "cpu"}
TRAINER = ON_CPU | {"max_steps": 3}


def test_records_are_texts_or_pairs():
    assert sample_of({"text": "It rains.", "label": "weather"}) == ("It rains.", None, "weather")
    assert sample_of({"sentence1": "a", "sentence2": "b", "label": 1, "idx": 7}) == ("a", "b", "1")

    assert sample_of({"sentence": "It rains.", "label": 1}) == ("It rains.", None, "1")
    assert sample_of({"question": "Why?", "sentence": "So.", "label": 1}) == ("Why?", "So.", "1")


@pytest.mark.parametrize("record", [{"text": "a", "label": None}, {"text": None, "label": 1}, {"label": 1}])
def test_records_without_a_text_or_a_label_are_refused(record):
    with pytest.raises((KeyError, TypeError)):
        sample_of(record)


def test_labels_have_the_order_of_numbers():
    samples = [("a", None, str(number)) for number in (10, 2, 1)]
    assert labels_of(samples) == ["1", "2", "10"]
    with pytest.raises(PacelineError, match="fewer than two"):
        labels_of(samples[:1])
    with pytest.raises(PacelineError, match="pairs"):
        labels_of([*samples, ("a", "b", "2")])


def files(folder, labels=(0, 1)):
    for name, count in (("train", 24), ("val", 10)):
        records = [
            {"sentence1": f"number {n}", "sentence2": f"is {n % 7}", "label": labels[n % len(labels)]}
            for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return {"train": folder / "train.jsonl", "val": folder / "val.jsonl"}


def test_a_pair_is_one_sequence(tmp_path):
    experiment = build(Config(**files(tmp_path), batch_size=4, trainer=TRAINER))
    batch = next(iter(experiment.val))
    row = batch["input_ids"][0][batch["attention_mask"][0] == 1]
    tokenizer = experiment.val.collate_fn.keywords["tokenizer"]
    assert tokenizer.decode(row) == "<|im_start|>number 0<|im_end|>is 0"
    assert batch["labels"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("labels", [(0, 1), ("bad", "fair", "good")], ids=["two", "three"])
def test_f1_is_that_of_scikit_learn_over_all_batches(labels, tmp_path):
    from sklearn.metrics import f1_score

    experiment = build(Config(**files(tmp_path, labels), batch_size=4, epochs=1, trainer=ON_CPU))
    run = experiment.fit()
    module = experiment.module.eval()
    found, expected = [], []
    for batch in experiment.val:
        expected += batch.pop("labels").tolist()
        with torch.no_grad():
            found += module.model(**batch).logits.argmax(1).tolist()
    average = "binary" if len(labels) == 2 else "macro"
    f1 = f1_score(expected, found, average=average, zero_division=0)
    assert run.metrics["val/f1"].values[-1] == pytest.approx(f1)
    right = sum(a == b for a, b in zip(found, expected, strict=True))
    assert run.metrics["val/accuracy"].values[-1] == pytest.approx(right / 10)


def test_transformers_loads_what_is_exported(tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = tmp_path / "base"
    first = build(Config(**files(tmp_path), trainer=TRAINER))
    first.module.model.save_pretrained(base)
    first.val.collate_fn.keywords["tokenizer"].save_pretrained(base)
    experiment = build(Config(model=str(base), **files(tmp_path, ("bad", "good")), trainer=TRAINER))
    run = experiment.fit()
    folder = run.folder / "exported"
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert loaded.config.id2label == {0: "bad", 1: "good"}
    batch = AutoTokenizer.from_pretrained(folder)(["number 1"], ["is 1"], return_tensors="pt")
    with torch.no_grad():
        found = [model.eval()(**batch).logits for model in (loaded, experiment.module.model)]
    assert torch.equal(*found)


def test_one_file_alone_is_refused(tmp_path):
    with pytest.raises(PacelineError, match="together"):
        build(Config(train=files(tmp_path)["train"]))
