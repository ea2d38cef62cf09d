"""Files of records: JSON, lines, columns, texts, and one report of all mistakes."""

import gzip
import json

import pytest

from paceline import PacelineError
from paceline.recipes.data.records import (
    Lines,
    Mistakes,
    NoJSON,
    files_of,
    parse_one,
    read_file,
    read_records,
    split_off,
)

RECORDS = [{"text": "a"}, {"text": "b"}, {"text": "c\u2028d"}]


def lines(records):
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in records)


FILES = {
    "a.json": json.dumps(RECORDS, indent=1),
    "b.jsonl": lines(RECORDS),
    "c.json": "\n" + lines(RECORDS) + "\n\n",
    "d.csv": 'text\n"a"\nb\n"c\u2028d"\n',
    "e.tsv": "text\na\nb\nc\u2028d\n",
}


def parse(record):
    if record["text"] == "":
        raise ValueError("it is empty")
    return record["text"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gz"])
def test_each_kind_of_file_is_read(name, compressed, tmp_path):
    file = tmp_path / (name + ".gz" * compressed)
    data = FILES[name].encode("utf-8-sig")
    file.write_bytes(gzip.compress(data) if compressed else data)
    assert list(read_file(file)) == RECORDS


def test_quotes_of_csv_hold_lines(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"one\ntwo",3\n')
    assert list(read_file(tmp_path / "a.csv")) == [{"text": "one\ntwo", "label": "3"}]


def test_a_text_is_one_record(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert list(read_file(tmp_path / "a.txt")) == [{"text": "one\n\ntwo\n"}]


def test_columns_are_read_by_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(RECORDS).to_parquet(str(tmp_path / "a.parquet"))
    assert list(read_file(tmp_path / "a.parquet")) == RECORDS


def test_lines_are_read_one_at_a_time(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("\n" + lines(RECORDS) + "\n\n" + '{"text": \n', encoding="utf-8")
    found = Lines(file)
    assert [found[k] for k in (2, 0, 1)] == [RECORDS[2], RECORDS[0], RECORDS[1]]
    assert found[3] == NoJSON("it is no JSON: Expecting value, at character 9")
    streamed = read_file(file, streaming=True)
    assert streamed[1:3].place(1) == f"{file} line 4"
    assert streamed[1:3][0] == RECORDS[1]


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(RECORDS), encoding="utf-8-sig")
    assert list(read_file(tmp_path / "a.jsonl", streaming=True)) == RECORDS


@pytest.mark.parametrize("name", ["a.json", "b.jsonl.gz"])
def test_what_cannot_be_read_while_training_is_an_error(name, tmp_path):
    text = FILES[name.removesuffix(".gz")].encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(PacelineError, match=r"one list|compressed"):
        read_file(tmp_path / name, streaming=True)


def test_a_folder_has_its_files_by_name(tmp_path):
    for name in ("b.jsonl", "a.json", "c.txt.gz", "README"):
        (tmp_path / name).touch()
    assert [file.name for file in files_of(tmp_path)] == ["a.json", "b.jsonl", "c.txt.gz"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PacelineError, match="has no files of records"):
        files_of(tmp_path / "empty")


def test_all_mistakes_are_in_one_report(tmp_path):
    records = [{"text": "a"}, {"txt": "b"}, 5, *[{"text": ""}] * 7, {"txt": "c"}]
    (tmp_path / "a.jsonl").write_text("\n" + lines(records))
    with pytest.raises(PacelineError) as error:
        read_records(tmp_path / "a.jsonl", parse, "text")
    text = str(error.value).replace(f"{tmp_path}/", "")
    assert "10 records cannot be used" in text
    assert "a.jsonl lines 3, 12: no 'text', among txt" in text
    assert "a.jsonl lines 5, 6, 7, 8, 9 and 2 more: it is empty" in text
    assert "a.jsonl line 4: it is no mapping: '5'" in text


def test_what_is_no_json_is_reported_with_its_line(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps(RECORDS[0]) + '\n\n{"instruction": \n{"text": ""}')
    for streaming in (False, True):
        found, mistakes = read_file(file, streaming), Mistakes("text")
        for index in range(len(found)):
            parse_one(found, index, parse, mistakes)
        with pytest.raises(PacelineError) as error:
            mistakes.report()
        assert "2 records cannot be used" in str(error.value)
        assert "line 3: it is no JSON: Expecting value, at character 16" in str(error.value)
        assert "line 4: it is empty" in str(error.value)
    file.write_text(json.dumps({"records": RECORDS}, indent=1))
    with pytest.raises(PacelineError, match="neither a list of records, nor one in each line"):
        read_file(file)
    file.write_text("[{}, ")
    with pytest.raises(PacelineError, match=r"data\.json is no JSON: Expecting"):
        read_file(file)
    with pytest.raises(PacelineError, match=r"no file .*nothing\.json"):
        read_file(tmp_path / "nothing.json")
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(PacelineError, match=r"latin\.jsonl cannot be read(.|\n)*utf-8"):
        read_file(tmp_path / "latin.jsonl")


def test_the_last_part_is_split_off():
    assert split_off(list(range(20)), 0.1) == (list(range(18)), [18, 19])
    with pytest.raises(PacelineError, match="1 records are too few"):
        split_off([1], 0.1)
