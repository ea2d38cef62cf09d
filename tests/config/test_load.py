"""A configuration from all its sources, checked."""

import sys
import textwrap

import pytest

from paceline import PacelineError
from paceline.config.load import load

RECIPE = '''
"""A recipe in a file."""

from pydantic import BaseModel, ConfigDict, PositiveInt

from paceline.config import Experiment, RunConfig


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    depth: PositiveInt = 2
    width: PositiveInt = 8


class Config(RunConfig):
    model: Model = Model()
    epochs: PositiveInt = 3
    kind: str = "plain"


PRESETS = {"big": {"model": {"depth": 9}, "epochs": 30}}


def build(config):
    raise AssertionError("only its settings are read here")
'''


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "my.py").write_text(RECIPE)
    yield "my.py"
    for name in ("my", "plain", "other"):
        sys.modules.pop(name, None)


def write(tmp_path, text, name="my.yaml"):
    (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path / name


def test_a_later_source_takes_precedence(recipe, tmp_path, monkeypatch):
    first = write(
        tmp_path, "preset: big\nepochs: 4\nkind: a\ntrainer: {max_steps: 5, accumulate: 2}\n", "a.yaml"
    )
    second = write(tmp_path, "kind: b\n", "b.yaml")
    monkeypatch.setenv("PACELINE_TRAINER__MAX_STEPS", "6")
    monkeypatch.setenv("PACELINE_MODEL__WIDTH", "16")
    loaded = load(recipe, [first, second], ["model.width=32", "callbacks+=ema"])
    config = loaded.checked()
    assert (config.model.depth, config.model.width, config.epochs, config.kind) == (9, 32, 4, "b")
    assert config.trainer == {"max_steps": 6, "accumulate": 2, "callbacks": ["ema"]}
    places = {key: loaded.settings.place(key) for key in ("model.depth", "model.width", "epochs", "kind")}
    assert places == {
        "model.depth": "preset big",
        "model.width": "the command line",
        "epochs": f"{first}:2",
        "kind": f"{second}:1",
    }
    assert loaded.settings.place("trainer.max_steps") == "PACELINE_TRAINER__MAX_STEPS"
    assert loaded.settings.place("trainer.accumulate") == f"{first}:4"


def test_the_last_preset_that_is_named_counts(recipe, tmp_path, monkeypatch):
    file = write(tmp_path, "preset: default\n")
    assert load(recipe, [file]).checked().epochs == 3
    assert load(recipe, [file], ["preset=big"]).checked().epochs == 30
    monkeypatch.setenv("PACELINE_PRESET", "big")
    assert load(recipe, [file]).checked().epochs == 30


def test_a_file_names_its_recipe(recipe, tmp_path):
    file = write(tmp_path, "recipe: my.py\nepochs: 7\n")
    assert load(str(file)).checked().epochs == 7
    assert load(recipe, [file]).recipe.name == str(tmp_path / "my.py")
    with pytest.raises(PacelineError, match="another recipe than the one asked for"):
        load("vit-cifar10", [file], recipes={"vit-cifar10": "paceline.recipes.vit_cifar10"})


def test_all_mistakes_are_one_report_with_their_places(recipe, tmp_path, monkeypatch):
    file = write(
        tmp_path,
        """\
        epoch: 3
        model:
          depht: 4
        trainer:
          max_epoch: 2
          strategy: {class: fsdp, cpu_offlaod: true}
        callbacks:
          - {class: EarlyStopping, monitor: val/loss, patience: 0}
        """,
    )
    monkeypatch.setenv("PACELINE_EPOCHS", "many")
    with pytest.raises(PacelineError) as caught:
        load(recipe, [file], ["trainer.precision=bf-16"]).checked()
    text = str(caught.value)
    assert len(text.splitlines()) <= 12
    for said in (
        f"epoch ({file}:1): no such key; did you mean epochs?",
        f"model.depht ({file}:3): no such key; did you mean depth?",
        "epochs (PACELINE_EPOCHS): got 'many'; allowed: a valid integer",
        f"trainer.max_epoch ({file}:5): no such argument; did you mean max_epochs?",
        f"trainer.strategy.cpu_offlaod ({file}:6): FSDP has no such argument; did you mean cpu_offload?",
        f"trainer.callbacks.0 ({file}:8): EarlyStopping: 1 invalid argument; patience: got 0",
        "trainer.precision (the command line): ",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("my", [], "did you mean: my.py?"),
        ("no_such_thing", [], "there is no recipe 'no_such_thing'"),
        ("no.such.module", [], "there is no module 'no'"),
        ("none.yaml", [], "cannot be read"),
        ("my.py", ["preset=bgi"], "did you mean: big?"),
        ("my.py", ["preset=[1]"], "preset is a name"),
        ("my.py", ["tiny"], "is no setting"),
        ("plain.py", [], "is no recipe: it has no Config and no build"),
        ("other.py", [], "Config is no subclass of RunConfig"),
        ("list.yaml", [], "a config file holds key: value lines"),
    ],
)
def test_what_cannot_be_read_is_explained(recipe, tmp_path, target, settings, said):
    (tmp_path / "plain.py").write_text("")
    (tmp_path / "other.py").write_text("class Config:\n    pass\n\n\ndef build(config):\n    pass\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(PacelineError, match=said):
        load(target, [], settings).checked()


def test_a_wrong_target_of_a_module_is_a_problem_of_the_command_line(tmp_path):
    (tmp_path / "mine_load.py").write_text("class Net:\n    pass\n")
    with pytest.raises(PacelineError, match=r"module \(the command line\): mine_load has no 'Nett'"):
        load("mine_load:Nett").checked()


def test_a_section_of_the_trainer_that_is_none_is_refused(recipe, tmp_path):
    file = write(tmp_path, "trainer: 3\n")
    with pytest.raises(PacelineError, match=r"trainer .*: got 3; allowed: a mapping"):
        load(recipe, [file]).checked()


def test_a_null_callback_list_is_as_the_trainer_says(recipe):
    with pytest.raises(PacelineError, match=r"trainer\.callbacks"):
        load(recipe, [], ["trainer.callbacks=3"]).checked()


def write_run(tmp_path, text):
    folder = tmp_path / "runs" / "net" / "1"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(textwrap.dedent(text))
    return folder


def test_a_run_of_a_script_is_repeated_by_its_command(recipe, tmp_path):
    folder = write_run(
        tmp_path,
        "name: net\ntrainer: {max_epochs: 2, callbacks: [EMA]}\nmodule: {class: a:B, hparams: {}}\n",
    )
    (folder / "env.json").write_text('{"folder": "/there", "program": ["train.py", "a b"]}')
    with pytest.raises(PacelineError, match="a script started this run") as caught:
        load(str(folder))
    assert "fix: in /there: python train.py 'a b'; --config" in str(caught.value)
    assert load(recipe, [folder / "config.yaml"]).checked().trainer == {"max_epochs": 2}


def test_a_secret_that_a_run_did_not_keep_is_asked_for(recipe, tmp_path):
    folder = write_run(
        tmp_path,
        """\
        name: net
        trainer: {}
        module: {class: a:B, hparams: {}}
        config:
          recipe: my.py
          kind: "***"
        """,
    )
    with pytest.raises(PacelineError, match=r"kind \(.*config.yaml:6\): a secret, which .* does not keep"):
        load(str(folder)).checked()
    assert load(str(folder), [], ["kind=abc"]).checked().kind == "abc"


def test_a_script_is_not_run_to_find_out_that_it_is_no_recipe(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('it was run')\n")
    with pytest.raises(PacelineError, match="is no recipe: it has no Config and no build"):
        load("train.py")


def test_a_recipe_may_import_its_parts(recipe, tmp_path):
    (tmp_path / "other.py").write_text("from my import RunConfig as Config\n\nbuild = print\n")
    assert load("other.py", [], ["trainer.seed=3"]).checked().trainer == {"seed": 3}


PROJECT = """
from paceline import DataModule, TrainModule


class Net(TrainModule):
    def __init__(self, width: int = 1, depth: int = 1):
        super().__init__()


class Points(DataModule):
    pass
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text(PROJECT)
    yield
    sys.modules.pop("mine", None)


def test_a_target_keeps_the_arguments_of_files_and_variables(project, tmp_path, monkeypatch):
    file = write(tmp_path, "module: {width: 3}\ndata: mine:Points\n")
    monkeypatch.setenv("PACELINE_MODULE__DEPTH", "4")
    for target in ("mine:Net", "mine.Net", "mine.py:Net"):
        assert load(target, [file]).checked().module == {"class": target, "width": 3, "depth": 4}
    other = write(tmp_path, "module: {class: other:Net, width: 3}\ndata: mine:Points\n")
    assert load("mine:Net", [other]).checked().module == {"class": "mine:Net", "depth": 4}


def test_the_same_file_may_be_named_in_two_ways(recipe, tmp_path):
    file = write(tmp_path, f"recipe: {tmp_path / 'my.py'}\nepochs: 7\n")
    assert load("./my.py", [file], ["recipe=my.py"]).checked().epochs == 7
    assert load(None, [], ["recipe=my.py", "epochs=8"]).checked().epochs == 8
    with pytest.raises(PacelineError, match=r"where: .*none\.py, named at .*my\.yaml:1"):
        load(str(write(tmp_path, "recipe: none.py\n")))
    with pytest.raises(PacelineError, match=r"recipe is a name\n  where: the command line"):
        load(None, [], ["recipe=[1]"])


def test_a_run_that_is_the_target_is_kept(recipe, tmp_path):
    text = "name: n\ntrainer: {}\nmodule: {class: a:B, hparams: {}}\nconfig: {recipe: my.py}\n"
    folder = write_run(tmp_path, text)
    assert load(str(folder)).run is None
    (folder / "env.json").write_text("{}")
    assert load(str(folder)).run == load(str(folder / "config.yaml")).run == folder
    assert load(recipe, [folder / "config.yaml"]).run is None


def test_the_folder_of_a_name_and_one_with_a_typing_mistake_mean_a_run(recipe, tmp_path):
    folder = write_run(tmp_path, "name: n\n")
    for said in (folder.parent, tmp_path / "runs" / "nett" / "1"):
        with pytest.raises(PacelineError, match=f"did you mean: {folder}"):
            load(str(said))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("epochs=true", "epochs (the command line): got True; allowed: a number"),
        ("kind=1e3", "kind (the command line): got 1000.0; allowed: a text: write it in quotes"),
        ("callbacks=[ema, emaa]", "trainer.callbacks.1 (the command line): there is no callback 'emaa'"),
        (
            "callbacks=[early-stopping]",
            "EarlyStopping needs monitor, as {class: EarlyStopping, monitor: ...}",
        ),
        ("loggers=csvv", "did you mean: csv?"),
        ("kind={api_key: hidden-1}", "got {'api_key': '***'}"),
    ],
)
def test_a_problem_of_a_setting(recipe, setting, said):
    with pytest.raises(PacelineError) as caught:
        load(recipe, [], [setting]).checked()
    assert said in str(caught.value)


def test_a_callback_that_is_added_has_its_own_place(recipe, tmp_path):
    file = write(tmp_path, "callbacks:\n  - emma\n  - ema\n")
    loaded = load(recipe, [file], ["callbacks+=emaa"])
    first, second = loaded.lines()
    assert first.startswith(f"trainer.callbacks.0 ({file}:2): ")
    assert second.startswith("trainer.callbacks.2 (the command line): ")


def test_callbacks_are_built_once(recipe, tmp_path, monkeypatch):
    (tmp_path / "other.py").write_text(
        "from paceline.callbacks import Callback\n\nmade = []\n\n\n"
        "class Watch(Callback):\n    def __init__(self):\n        made.append(self)\n"
    )
    config = load(recipe, [], ["callbacks=[other:Watch]", "trainer.run_dir=null"]).checked()
    trainer = config.make_trainer()
    made = sys.modules["other"].made
    assert made == [one for one in trainer.callbacks if type(one).__name__ == "Watch"]
    assert config.make_trainer().callbacks != trainer.callbacks
    assert len(made) == 2


def test_a_run_records_its_recipe(recipe, tmp_path):
    assert load(recipe).checked().recorded()["recipe"] == str(tmp_path / "my.py")


def test_a_dotted_key_in_a_file_is_explained(recipe, tmp_path):
    file = write(tmp_path, "trainer.max_epochs: 3\n")
    said = r"trainer.max_epochs .*: no such key; in a file it is trainer: {max_epochs: \.\.\.}"
    with pytest.raises(PacelineError, match=said):
        load(recipe, [file]).checked()


def test_booleans_in_a_list_are_no_numbers(tmp_path):
    (tmp_path / "other.py").write_text(RECIPE.replace('kind: str = "plain"', "sizes: list[int] = []"))
    with pytest.raises(PacelineError, match=r"sizes\.1 .*: got True; allowed: a number"):
        load("other.py", [], ["sizes=[1, true]"]).checked()
    sys.modules.pop("other")


def test_a_record_of_a_module_has_what_was_given_and_no_more(project):
    recorded = load("mine:Net", [], ["data=mine:Points", "trainer.seed=3"]).checked().recorded()
    assert recorded == {"trainer": {"seed": 3}, "module": {"class": "mine:Net"}, "data": "mine:Points"}


def test_a_rule_of_the_whole_configuration_is_a_problem_too(tmp_path):
    rule = """

    @model_validator(mode="after")
    def _agree(self):
        raise ValueError("epochs and kind do not go together")
"""
    text = RECIPE.replace("import BaseModel,", "import BaseModel, model_validator,")
    (tmp_path / "other.py").write_text(
        text.replace('kind: str = "plain"\n', 'kind: str = "plain"\n' + rule)
    )
    with pytest.raises(PacelineError, match="\\n  config: epochs and kind do not go together"):
        load("other.py", [], ["epochs=3"]).checked()
    sys.modules.pop("other")
