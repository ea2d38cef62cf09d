"""Classes that a config names: found, checked against their signatures, built."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from paceline import PacelineError
from paceline.callbacks import Callback
from paceline.config.classes import ANYTHING, Slot, read_class
from paceline.config.importing import import_file, import_object
from paceline.config.names import slots

if TYPE_CHECKING:
    from nowhere import Unknown


@dataclass
class Options:
    rate: float = 0.1


class Net(nn.Module):
    def __init__(
        self,
        width: int = 3,
        *,
        rate: float,
        folder: Path = Path("x"),
        act: type[nn.Module] = nn.ReLU,
        optimizer: Callable[..., Any] | None = None,
        part: nn.Module | None = None,
        many: Iterable[int] = (),
        unknown_type: Unknown | None = None,
        schema: str = "",
        _private: int = 0,
        dtype: torch.dtype | None = None,
        part_of: Options | None = None,
    ) -> None:
        super().__init__()
        self.given = {k: v for k, v in locals().items() if k not in ("self", "__class__")}


class Base(nn.Module):
    def __init__(self, width: int = 1, **more: int) -> None:
        super().__init__()
        self.width, self.more = width, more


class Derived(Base):
    def __init__(self, deep: int = 1, **more: Any) -> None:
        super().__init__(**more)


class Sized(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class Filled(Sized):
    def __init__(self, deep: int = 1, **more: Any) -> None:
        super().__init__(size=3, **more)


class Acts:
    def __init__(self, acts: list[Callable[..., nn.Module]]) -> None:
        self.acts = acts


class Pair:
    def __init__(self, pair: tuple[float, float]) -> None:
        self.pair = pair


def half(amount: int, lr: float) -> float:
    return lr / amount


class Watch(Callback):
    def __init__(self, every: int) -> None:
        self.every = every


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    module = types.ModuleType("here")
    for one in (Net, Base, Watch, Options, Derived, Filled, Acts, Pair):
        setattr(module, one.__name__, one)
    module.half = partial(half, 2)
    monkeypatch.setitem(sys.modules, "here", module)


def read(value, slot=ANYTHING):
    problems = []
    return read_class(value, slot, "key", problems), problems


def built(value, slot=ANYTHING, *provided):
    spec, problems = read(value, slot)
    assert problems == []
    return spec.build(*provided)


def test_arguments_are_converted_as_their_types_say():
    net = built(
        {"class": "here:Net", "width": "4", "rate": 1, "folder": "a/b", "schema": "s", "_private": 2}
    )
    assert {k: net.given[k] for k in ("width", "rate", "folder", "schema", "_private")} == {
        "width": 4,
        "rate": 1.0,
        "folder": Path("a/b"),
        "schema": "s",
        "_private": 2,
    }
    assert net.given["act"] is nn.ReLU


def test_a_class_or_a_function_is_its_import_path_where_one_is_asked_for():
    net = built({"class": "here.Net", "rate": 1, "act": "torch.nn.GELU", "optimizer": "torch.optim:SGD"})
    assert net.given["act"] is nn.GELU
    assert net.given["optimizer"] is torch.optim.SGD


def test_a_mapping_with_a_class_is_an_object_or_a_function_with_some_arguments():
    net = built(
        {
            "class": "here:Net",
            "rate": 1,
            "part": {"class": "here:Base", "width": 7},
            "optimizer": {"class": "torch.optim.AdamW", "lr": "1e-3"},
        }
    )
    assert net.given["part"].width == 7
    assert isinstance(net.given["optimizer"], partial)
    assert net.given["optimizer"].keywords == {"lr": 1e-3}


def test_an_object_that_has_no_text_is_imported_and_a_dataclass_is_its_values():
    net = built({"class": "here:Net", "rate": 1, "dtype": "torch.float16", "part_of": {"rate": "3"}})
    assert net.given["dtype"] is torch.float16
    assert net.given["part_of"] == Options(3.0)
    assert (
        built({"class": "here:Net", "rate": 1, "schema": "torch.float16"}).given["schema"]
        == "torch.float16"
    )
    _, problems = read({"class": "here:Net", "rate": 1, "part_of": {"rate": "fast"}})
    assert problems == [("key.part_of.rate", "got 'fast'; allowed: a valid number")]


def test_an_iterable_can_be_read_more_than_once():
    net = built({"class": "here:Net", "rate": 1, "many": [1, 2]})
    assert list(net.given["many"]) == list(net.given["many"]) == [1, 2]


def test_further_keywords_are_passed_on():
    assert built({"class": "here:Base", "other": 3}).more == {"other": 3}


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        (
            {"class": "here:Net", "rate": 1, "widht": 3},
            "key.widht",
            "Net has no such argument; did you mean width?",
        ),
        ({"class": "here:Net", "rate": "fast"}, "key.rate", "got 'fast'; allowed: a valid number"),
        ({"class": "here:Net"}, "key", "Net needs rate"),
        ("here:Net", "key", "Net needs rate"),
        ({"class": "here:Nett"}, "key", "did you mean: here:Net?"),
        ({"class": "nowhere:Net"}, "key", "there is no module 'nowhere'"),
        ({"class": "Net"}, "key", "an import path"),
        ({"class": 3}, "key", "allowed: a name, or a mapping with a class"),
        ({"width": 3}, "key", "allowed: a name, or a mapping with a class"),
        (
            {"class": "here:Net", "rate": 1, "part": {"class": "here:Base", "width": "w"}},
            "key.part.width",
            "got 'w'",
        ),
        (
            {"class": "here:Net", "rate": 1, "act": "torch.nn.GELLU"},
            "key.act",
            "did you mean: torch.nn.GELU?",
        ),
        (
            {"class": "here:Net", "rate": 1, "optimizer": {"class": "torch.optim.SGD", "lrr": 1}},
            "key.optimizer.lrr",
            "SGD has no such argument; did you mean lr?",
        ),
    ],
)
def test_a_mistake_names_its_key(value, key, said):
    spec, problems = read(value)
    assert spec is None
    assert [path for path, _ in problems] == [key]
    assert said in problems[0][1]


def test_all_mistakes_are_found_at_once():
    _, problems = read({"class": "here:Net", "rate": "x", "width": "y", "wdith": 1})
    assert [path for path, _ in problems] == ["key.wdith", "key.rate", "key.width"]


@pytest.mark.parametrize(
    ("slot", "value", "kind"),
    [
        (
            "optimizer",
            {"class": "AdamW", "lr": 1e-3, "betas": [0.9, 0.95], "fused": None},
            torch.optim.AdamW,
        ),
        ("optimizer", {"class": "torch.optim.SGD", "lr": "0.1"}, torch.optim.SGD),
        ("optimizer", {"class": "Muon", "lr": 0.1}, torch.optim.Muon),
        ("model", {"class": "torch.nn.TransformerEncoderLayer", "d_model": 8, "nhead": 2}, nn.Module),
        ("model", {"class": "torch.nn.Linear", "in_features": 2, "out_features": 2}, nn.Linear),
        ("callbacks", {"class": "here:Watch", "every": 3}, Watch),
        ("callbacks", {"class": "early-stopping", "monitor": "val/loss"}, Callback),
        ("callbacks", "EMA", Callback),
        ("loggers", "csv", Callback),
        ("strategy", {"class": "fsdp", "reshard_after_forward": False}, object),
    ],
)
def test_classes_of_torch_and_ours(slot, value, kind):
    provided = [[nn.Parameter(torch.zeros(2, 2))]] if slot == "optimizer" else []
    assert isinstance(built(value, slots()[slot], *provided), kind)


def test_a_scheduler_of_torch_gets_its_optimizer():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    found = built({"class": "CosineAnnealingLR", "T_max": "5"}, slots()["scheduler"], optimizer)
    assert found.T_max == 5


def test_a_class_of_another_kind_is_refused():
    _, problems = read("here:Base", slots()["callbacks"])
    assert problems == [("key", "here:Base is not a callback; got: the class Base")]


def test_names_are_suggested():
    _, problems = read("AdmaW", slots()["optimizer"])
    assert "did you mean: AdamW?" in problems[0][1]
    _, problems = read("erly_stopping", Slot("a callback", names={"EarlyStopping": Watch}))
    assert "did you mean: EarlyStopping?" in problems[0][1]


# -- import paths --------------------------------------------------------------------------------


def test_modules_of_the_folder_are_found_and_files_too(tmp_path):
    (tmp_path / "beside_it.py").write_text("value = 3\n")
    (tmp_path / "my_file.py").write_text("from beside_it import value\n\n\nclass Net:\n    deep = value\n")
    assert import_object("my_file.py:Net.deep") == 3
    assert import_object("beside_it.value") == 3
    assert import_file(tmp_path / "my_file.py") is sys.modules["my_file"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none.py:Net", "there is no such file"),
        ("random.py:Net", "would take the place of the module 'random'"),
        ("no_such_package.module:Net", "there is no module 'no_such_package'"),
        ("torch.no_such.Net", "torch has no 'no_such'"),
        ("not a path", "this is no import path"),
        ("./beside:Net", r"did you mean: ./beside\.py:Net\?"),
        ("a/b:Net", "this is no import path"),
    ],
)
def test_a_wrong_path_is_explained(path, said, tmp_path):
    (tmp_path / "random.py").write_text("")
    (tmp_path / "beside.py").write_text("")
    with pytest.raises(PacelineError, match=said):
        import_object(path)


def test_what_a_module_raises_is_its_own(tmp_path):
    (tmp_path / "breaks.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        import_object("breaks:Net")
    (tmp_path / "raises.py").write_text("raise KeyError('mine')\n")
    with pytest.raises(KeyError, match="mine"):
        import_object("raises.py:Net")
    assert "raises" not in sys.modules


def test_classes_inside_of_lists_and_mappings_are_built():
    one = {"class": "here:Base", "width": 7}
    net = built({"class": "here:Base", "parts": [one], "named": {"a": [one]}})
    assert [part.width for part in net.more["parts"]] == [7]
    assert net.more["named"]["a"][0].width == 7


def test_a_list_of_functions_takes_import_paths():
    net = built({"class": "here:Acts", "acts": ["torch.nn.ReLU", {"class": "torch.nn.ELU", "alpha": 2}]})
    assert net.acts[0] is nn.ReLU
    assert net.acts[1]().alpha == 2


def test_a_tensor_is_made_by_its_class():
    loss = built(
        {"class": "torch.nn.CrossEntropyLoss", "weight": {"class": "torch.tensor", "data": [1.0, 2]}}
    )
    assert loss.weight.tolist() == [1, 2]
    _, problems = read({"class": "torch.nn.CrossEntropyLoss", "weight": [1, 2]})
    assert problems == [
        ("key.weight", "got [1, 2]; allowed: an instance of Tensor, as {class: ..., ARGUMENT: ...}")
    ]


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        (
            {"class": "here:Net", "rate": 1, "part": {"class": "here:Options"}},
            "key.part",
            "Options is no Module or NoneType",
        ),
        ({"class": "here:Derived", "width": "w"}, "key.width", "got 'w'; allowed: a valid integer"),
        ({"class": "here:half", "lr": "w"}, "key.lr", "got 'w'; allowed: a valid number"),
        ({"class": "here:Net", "rate": True}, "key.rate", "got True; allowed: a number"),
        ({"class": "here:Pair", "pair": [1.0]}, "key.pair", "got [1.0]; allowed: at least 2 items"),
        ({"class": "int", "x": 3}, "key", "there is no class or function 'int'"),
    ],
)
def test_more_mistakes(value, key, said):
    _, problems = read(value)
    assert [path for path, _ in problems] == [key]
    assert said in problems[0][1]


def test_what_a_base_takes_is_passed_on():
    assert built({"class": "here:Derived", "width": "3", "other": 4}).width == 3


def test_only_classes_of_torch_itself_are_listed():
    names = slots()["optimizer"].public(torch.optim)
    assert {"AdamW", "SGD", "Muon"} <= set(names)
    assert not {"Any", "Tensor", "defaultdict"} & set(slots()["scheduler"].public(torch.optim.lr_scheduler))


def test_files_beside_a_file_in_another_folder_are_found(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "beside_inner.py").write_text("value = 4\n")
    (folder / "my_inner.py").write_text("from beside_inner import value\n")
    assert import_object("inner/my_inner.py:value") == 4


def test_a_file_with_the_name_of_a_module_of_python_is_refused(tmp_path):
    assert "antigravity" not in sys.modules
    (tmp_path / "antigravity.py").write_text("value = 1\n")
    with pytest.raises(PacelineError, match="would take the place of the module"):
        import_object("antigravity.py:value")


def test_what_a_base_needs_may_be_given_by_its_subclass():
    assert built({"class": "here:Filled", "deep": 2}).size == 3


def test_a_secret_in_place_of_a_class_is_masked():
    _, problems = read({"token": "hf_1"})
    assert problems[0][1].startswith("got {'token': '***'}; ")
