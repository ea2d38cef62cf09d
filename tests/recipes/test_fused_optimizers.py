"""On a device that has fused kernels, the recipes for GPUs take a fused AdamW; elsewhere torch decides."""

from importlib import import_module

import pytest
from torch.optim import AdamW

from paceline import optimizers
from paceline.recipes.gpt import GPT

pytestmark = pytest.mark.fit  # for its length

RECIPES = ["classify_text", "dpo", "finetune_vision", "gpt", "llm_finetune", "vit_cifar10"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("has_kernels", [True, False])
def test_adamw_is_fused_where_the_device_has_kernels_for_it(tmp_path, monkeypatch, name, has_kernels):
    recipe = import_module(f"paceline.recipes.{name}")
    settings = {"optimizer": "adamw"} if name == "gpt" else {}
    trainer = {"run_dir": tmp_path, "accelerator": "cpu", "progress": False, "loggers": False}
    module = recipe.build(recipe.Config(trainer=trainer, **settings)).module
    monkeypatch.setattr(recipe, "has_fused_kernels", lambda device: has_kernels)
    optimizer = module.configure_optimizers()["optimizer"]
    assert type(optimizer) is AdamW
    assert [group["fused"] for group in optimizer.param_groups] == [True if has_kernels else None]


def test_muon_s_adamw_is_fused_too(monkeypatch):
    monkeypatch.setattr("paceline.recipes.gpt.has_fused_kernels", lambda device: True)
    model = {"vocabulary": 32, "width": 8, "depth": 1, "heads": 2}
    optimizer = GPT(model, muon_dtype="bfloat16").configure_optimizers()["optimizer"]
    muon, *others = optimizer.param_groups
    assert muon["orthogonalisation_dtype"] == "bfloat16"
    assert [group["fused"] for group in others] == [True] * len(others) != []


def test_cpus_have_none(monkeypatch):
    import torch

    found = {
        name: optimizers.has_fused_kernels(torch.device(name)) for name in ("cpu", "cuda", "xpu", "mps")
    }
    assert found == {"cpu": False, "cuda": True, "xpu": True, "mps": False}
