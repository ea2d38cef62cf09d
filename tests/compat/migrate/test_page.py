"""docs/migration/migrate.md shows what the command prints."""

import re
from pathlib import Path

from typer.testing import CliRunner

import paceline
from paceline.__main__ import app
from paceline.compat.migrate.analysis import analyse

PAGE = (Path(paceline.__file__).parent / "docs" / "migration" / "migrate.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_report_of_its_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(blocks("py")[0])
    assert (
        "$ paceline migrate train.py\n" + CliRunner().invoke(app, ["migrate", "train.py"]).stdout
        == (blocks("text")[0])
    )


def test_the_page_shows_what_write_makes(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(blocks("py")[0])
    lines = analyse(path).rewritten.decode().splitlines()
    assert blocks("py")[1] in "".join(f"{line}\n" for line in lines)
    native = blocks("python")[0].splitlines()
    hook = ["batch_idx == 0", "on_train_batch_end", "def on_train_epoch_start", 'print("epoch"', "import"]
    differ = {line for line in [*lines, *native] if (line in lines) != (line in native)}
    assert [line for line in differ if not any(part in line for part in hook)] == []
