"""The programs on the pages about other trainers: before and after end with the same weights."""

import ast
import difflib
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers.pages import blocks, programs
from helpers.ranks import run_ranks
from safetensors.torch import load_file

import paceline

pytestmark = pytest.mark.launch
DOCS = Path(paceline.__file__).parent / "docs" / "migration"


def text(page):
    return (DOCS / f"{page}.md").read_text()


def program(page, name):
    """The block of a page that begins with this comment."""
    return programs(DOCS / f"{page}.md")[name]


def run(source, monkeypatch, **replaced):
    """The program's variables after it ran, its classes in a module of their own."""
    module = types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)
    for old, new in replaced.items():
        assert old in source
        source = source.replace(old, new)
    exec(compile(source, "program.py", "exec"), vars(module))
    return vars(module)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(ours, theirs, prefix=""):
    theirs = {prefix + name: value for name, value in theirs.items()}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def names_of(source, package):
    """What a program imports from a package, parsed only."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in found if node.module.split(".")[0] == package for alias in node.names}


# -- a loop ----------------------------------------------------------------------------------------


def lines_of(name):
    stripped = [line.strip() for line in program("from-a-loop", name).splitlines()[1:]]
    return [line for line in stripped if line and not line.startswith(("import ", "from "))]


def changed_lines(before, after):
    """Pairs of lines that read differently, lines that are new, lines that are gone; in any order."""
    new = [line for line in after if line not in before]
    gone = [line for line in before if line not in after]
    pairs = []
    for line in list(new):
        for near in difflib.get_close_matches(line, gone, 1, 0.6):
            pairs.append((near, line))
            new.remove(line)
            gone.remove(near)
    return pairs, new, gone


def test_the_page_about_loops_counts_its_lines():
    before, after = lines_of("before.py"), lines_of("after.py")
    pairs, new, gone = changed_lines(before, after)
    kept = len(before) - len(pairs) - len(gone)
    assert len(pairs) <= 5
    counted = (
        f"Of the {len(before)} lines of the first program (without imports) {kept} stay as they are, "
        f"{len(pairs)} change, {len(gone)} are gone, and {len(new)} are new"
    )
    assert counted in " ".join(text("from-a-loop").split())


def test_the_loop_and_the_module_end_with_the_same_weights(monkeypatch):
    before = program("from-a-loop", "before.py")
    ours = run(program("from-a-loop", "after.py"), monkeypatch)
    assert_same(weights(ours["model"]), weights(run(before, monkeypatch)["model"]))


def test_both_resume_after_an_epoch_and_end_with_the_same_weights(monkeypatch):
    before, after = program("from-a-loop", "before.py"), program("from-a-loop", "after.py")
    run(before, monkeypatch, **{"range(first_epoch, 3)": "range(1)"})
    first = weights(run(after, monkeypatch, **{"max_epochs=3": "max_epochs=1"})["model"])
    ours = run(after, monkeypatch)
    assert ours["trainer"].global_step == 60
    assert any(not torch.equal(value, first[name]) for name, value in weights(ours["model"]).items())
    assert_same(weights(ours["model"]), weights(run(before, monkeypatch)["model"]))


def test_a_shuffled_loop_has_the_same_order_under_the_epoch_s_seed(monkeypatch):
    shuffle = {"batch_size=32": "batch_size=32, shuffle=True"}
    seeded = {"model.train()": "paceline.seed_everything(paceline.order_seed(0, epoch)); model.train()"}
    ours = run(program("from-a-loop", "after.py"), monkeypatch, **shuffle)
    theirs = run(
        "import paceline\n" + program("from-a-loop", "before.py"), monkeypatch, **shuffle, **seeded
    )
    assert_same(weights(ours["model"]), weights(theirs["model"]))


# -- Accelerate ------------------------------------------------------------------------------------


def test_accelerate_on_one_process_ends_with_the_same_weights(monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    theirs = run(program("from-accelerate", "ddp_before.py"), monkeypatch)
    assert (Path("checkpoints") / "epoch_3").is_dir()
    ours = run(program("from-accelerate", "ddp_after.py"), monkeypatch)
    assert ours["trainer"].global_step == 60
    assert_same(weights(ours["module"]), weights(theirs["model"]), "model.")
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", "2"])
    assert_same(
        weights(ours["module"]),
        weights(run(program("from-accelerate", "ddp_before.py"), monkeypatch)["model"]),
        "model.",
    )


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("fsdp_before.py", {"Accelerator", "FullyShardedDataParallelPlugin", "set_seed"}),
        ("deepspeed_before.py", {"Accelerator", "DeepSpeedPlugin", "set_seed"}),
    ],
)
def test_accelerate_s_sharded_scripts_are_python(name, used):
    source = program("from-accelerate", name)
    assert names_of(source, "accelerate") == used


def test_sharded_scripts_run_on_two_ranks_and_equal_one(tmp_path, monkeypatch):
    pytest.importorskip("accelerate", reason="long; runs beside Accelerate")
    tagger = program("from-accelerate", "tagger.py")
    config = blocks(DOCS / "from-accelerate.md", "json")[0]
    fsdp, deepspeed = (
        program("from-accelerate", f"{name}_after.py").replace('"exported"', f'"{name}"')
        for name in ("fsdp", "deepspeed")
    )
    one = {
        "strategy=strategy": 'strategy="single", global_batch_size=32',
        "devices=2": "devices=1",
        '"fsdp"': '"one"',
    }
    # The same ranks run both scripts, which saves the time to start others.
    for file, content in (("tagger.py", tagger), ("train.py", fsdp + deepspeed), ("ds.json", config)):
        (tmp_path / file).write_text(content)
    done = run_ranks(tmp_path / "train.py", 2, folder=tmp_path)
    monkeypatch.setitem(sys.modules, "tagger", module := types.ModuleType("tagger"))
    exec(compile(tagger, "tagger.py", "exec"), vars(module))
    run(fsdp, monkeypatch, **one)
    whole = load_file("one/model.safetensors")
    for name in ("fsdp", "deepspeed"):
        assert f"2 devices (cpu), strategy {name}" in done.stdout, done.output
        sharded = load_file(f"{name}/model.safetensors")
        assert whole.keys() == sharded.keys()
        for key, value in whole.items():
            torch.testing.assert_close(sharded[key], value, atol=1e-5, rtol=0)


# -- Lightning -------------------------------------------------------------------------------------


def test_only_imports_differ_in_the_program_that_runs_as_it_is():
    before = program("from-lightning", "before.py").splitlines()[1:]
    after = program("from-lightning", "as_it_is.py").splitlines()[1:]
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    package = r"\blightning\b(?=\.| as)"
    assert [new for _, new in changed] == [
        re.sub(package, "paceline.compat.lightning", old) for old, _ in changed
    ]
    assert [old.split()[0] for old, _ in changed] == ["import", "from"]


def test_lightning_code_as_it_is_and_native_end_with_the_same_weights(monkeypatch):
    kept = run(program("from-lightning", "as_it_is.py"), monkeypatch)
    native = run(program("from-lightning", "native.py"), monkeypatch)
    assert kept["trainer"].global_step == native["trainer"].global_step == 60
    assert_same(weights(kept["module"]), weights(native["module"]))
    best = Path(kept["best"].best_model_path)
    assert best.parent == Path("lightning_logs/version_0/checkpoints").resolve()
    assert torch.load(best)["global_step"] == int(best.stem.rpartition("=")[2])


def test_lightning_ends_with_the_same_weights(monkeypatch):
    pytest.importorskip("lightning")
    theirs = run(program("from-lightning", "before.py"), monkeypatch)
    kept = run(program("from-lightning", "as_it_is.py"), monkeypatch)
    assert_same(weights(kept["module"]), weights(theirs["module"]))
    accuracy = theirs["trainer"].callback_metrics["val_accuracy"].item()
    assert accuracy == pytest.approx(kept["trainer"].callback_metrics["val_accuracy"].item())


# -- transformers, Composer ------------------------------------------------------------------------


def test_the_trainer_of_transformers_ends_with_the_same_weights(monkeypatch):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    from transformers import BertForSequenceClassification

    best = {
        "load_best_model_at_end=True": "load_best_model_at_end=False"
    }  # which replaces the last weights
    theirs = run(program("from-transformers", "before.py"), monkeypatch, **best)
    exported = BertForSequenceClassification.from_pretrained("exported")
    source = program("from-transformers", "after.py").split("print(")[0]  # the best weights follow
    ours = run(source, monkeypatch, **{'"exported"': '"ours"'})
    assert_same(weights(BertForSequenceClassification.from_pretrained("ours")), weights(theirs["model"]))
    assert ours["trainer"].global_step == theirs["trainer"].state.global_step == 20
    assert_same(weights(ours["module"]), weights(theirs["model"]), "model.")
    assert_same(weights(exported), weights(theirs["model"]))
    logged = [row["eval_accuracy"] for row in theirs["trainer"].state.log_history if "eval_accuracy" in row]
    assert ours["trainer"].metrics["val/accuracy"] == pytest.approx(logged[-1])


@pytest.mark.soak  # the first one's best weights beside what the test above runs
def test_the_whole_programs_with_transformers_run(monkeypatch):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    from transformers import BertForSequenceClassification

    theirs = run(program("from-transformers", "before.py"), monkeypatch)
    run(program("from-transformers", "after.py").replace('"exported"', '"ours"'), monkeypatch)
    assert theirs["trainer"].state.best_metric is not None
    BertForSequenceClassification.from_pretrained("ours")


def test_composer_s_program_is_python():
    source = program("from-composer", "before.py")
    assert names_of(source, "composer") >= {"Trainer", "ComposerModel", "EMA"}
