"""Tables: what their columns hold, rows as they are, and the errors of a file."""

import pytest
import torch

from paceline import PacelineError, Run
from paceline.recipes.data.tables import Columns, breast_cancer, read_table
from paceline.recipes.tabular import PRESETS, Config, Tabular, build

QUIET = {"run_dir": None, "progress": False}
TABLE = """age,town,size,price
1,Bergen,10,100
2,Oslo,,200.5
3,Bergen,30,300
4,,20,390
5,Oslo,10,500
6,Voss,NA,600
7,Oslo,20,
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text(TABLE)
    return path


def test_columns_of_numbers_and_others(file):
    rows = read_table(file, "price")
    assert len(rows) == 6  # one has no price
    columns = Columns.of(rows, "price")
    assert columns.categories == {"town": ["Bergen", "Oslo", "Voss"]}
    assert set(columns.numbers) == {"age", "size"}
    assert columns.numbers["size"] == pytest.approx((17.5, 68.75**0.5))
    assert columns.classes == []
    numbers, categories = columns.inputs([*rows, {"age": "9", "town": "Paris", "size": ""}])
    assert categories[:, 0].tolist() == [1, 2, 1, 0, 2, 3, 0]
    assert numbers[:6, 0].mean() == pytest.approx(0, abs=1e-6)
    assert numbers[:, 1].isnan().tolist() == [False, True, False, False, False, True, True]
    assert columns.target_of(rows).std(correction=0) == pytest.approx(1)
    assert Columns(**columns.arguments()) == columns


def test_a_target_of_texts_has_classes(file):
    rows = read_table(file, "town")
    columns = Columns.of(rows, "town")
    assert columns.classes == ["Bergen", "Oslo", "Voss"]
    assert columns.target_of(rows).tolist() == [0, 1, 0, 1, 2, 1]
    assert Columns.of(rows[:2], "town", rows[2:]).classes == columns.classes
    with pytest.raises(PacelineError, match="'town' is not known"):
        columns.target_of([{"town": "Paris"}])


@pytest.mark.parametrize("target", ["price", "town"])
def test_a_checkpoint_takes_rows_as_they_are(file, target, tmp_path):
    trainer = {"run_dir": str(tmp_path), "progress": False}
    settings = {"data": file, "target": target, "held_out": 0.2, "batch_size": 2, "epochs": 2}
    experiment = build(Config(**settings, trainer=trainer))
    run = experiment.fit()
    assert isinstance(run, Run)
    rows = [{"age": "3", "town": "Bergen", "size": "", "price": ""}]
    found = run.load(Tabular, which="latest").predictions(rows)
    assert found == experiment.module.predictions(rows)
    assert found[0] in ("Bergen", "Oslo", "Voss") if target == "town" else 0 < found[0] < 700


def test_missing_numbers_do_not_reach_the_loss(file, tmp_path):
    experiment = build(
        Config(data=file, target="price", batch_size=2, trainer={"run_dir": None, "progress": False})
    )
    for batch in experiment.train:
        assert torch.isfinite(experiment.module(*batch[:2])).all()


def test_odd_values_of_other_rows_are_missing(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text(" a , b, c\n1,x,\n2,y,NA\n3,x,\n")
    rows = read_table(path, "b")
    columns = Columns.of(rows, "b")
    assert (list(columns.numbers), columns.categories) == (["a"], {"c": []})
    numbers, categories = columns.inputs([{"a": odd, "c": "new"} for odd in ("inf", "1e400", "N/A", "7")])
    assert numbers[:, 0].isnan().tolist() == [True, True, True, False]
    assert categories.tolist() == [[0]] * 4
    assert [part.shape for part in columns.inputs([])] == [(0, 1), (0, 1)]


def test_a_target_that_is_a_number_almost_everywhere_is_no_class():
    rows = [{"b": "2"}] * 20 + [{"b": "inf"}]
    with pytest.raises(PacelineError, match="'b' is a number in 20 of 21 rows") as raised:
        Columns.of(rows, "b")
    assert "'inf'" in str(raised.value)


def test_few_rows_are_enough(file, tmp_path):
    for preset in ({}, PRESETS["large"]):
        settings = {"data": file, "target": "price", "trainer": QUIET} | preset | {"epochs": 1}
        experiment = build(Config(**settings))
        experiment.fit()
        assert experiment.trainer.global_step == 1


def test_the_data_of_scikit_learn():
    rows = breast_cancer()
    columns = Columns.of(rows, "target")
    assert (len(rows), len(columns.numbers), columns.classes) == (569, 30, ["benign", "malignant"])
    assert columns.target_of(rows).sum() == 212


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n3\n", "uneven"),
        ("a,b\n1,2\n3,4,5\n", "uneven"),
        ("a,c\n1,2\n3,4\n", "no column 'b'"),
        ("a,b\n1,2\n3,\n", "too few rows"),
        ("", "no column 'b'"),
        ("a,b,a\n1,2,3\n", "two columns have one name"),
    ],
)
def test_a_table_that_is_not_right_is_an_error(text, said, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(PacelineError, match=said) as raised:
        read_table(path, "b")
    assert "bad.csv" in str(raised.value)
    with pytest.raises(PacelineError, match="cannot be read"):
        read_table(tmp_path / "none.csv", "b")
