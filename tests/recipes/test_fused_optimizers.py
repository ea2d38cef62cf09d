"""On a device that has fused kernels, the recipes for GPUs take a fused AdamW; elsewhere torch decides."""

from importlib import import_module

import pytest
import torch
from torch.optim import AdamW

from paceline import optimizers
from paceline.recipes.gpt import GPT
from paceline.recipes.language import optimization

pytestmark = pytest.mark.fit  # for its length


def check(name, folder, monkeypatch, **settings):
    """An AdamW of a recipe is fused where the device has kernels for it, and else torch decides."""
    recipe = import_module(f"paceline.recipes.{name}")
    trainer = {"run_dir": folder, "accelerator": "cpu", "progress": False, "loggers": False}
    module = recipe.build(recipe.Config(trainer=trainer, **settings)).module
    home = recipe if hasattr(recipe, "has_fused_kernels") else optimization
    for has_kernels, fused in ((True, True), (False, None)):
        monkeypatch.setattr(home, "has_fused_kernels", lambda device, found=has_kernels: found)
        optimizer = module.configure_optimizers()["optimizer"]
        assert type(optimizer) is AdamW
        assert [group["fused"] for group in optimizer.param_groups] == [fused]


def test_adamw_of_gpt(tmp_path, monkeypatch):
    check("gpt", tmp_path, monkeypatch, optimizer="adamw")


def test_adamw_of_vit(tmp_path, monkeypatch):
    check("vit_cifar10", tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["classify_text", "dpo", "finetune_vision", "llm_finetune"])
def test_adamw_of_models_of_hugging_face(tmp_path, monkeypatch, name):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    check(name, tmp_path, monkeypatch)


def test_muon_s_adamw_is_fused_too(monkeypatch):
    monkeypatch.setattr("paceline.recipes.gpt.has_fused_kernels", lambda device: True)
    model = {"vocabulary": 32, "width": 8, "depth": 1, "heads": 2}
    optimizer = GPT(model, muon_dtype="bfloat16").configure_optimizers()["optimizer"]
    muon, *others = optimizer.param_groups
    assert muon["orthogonalisation_dtype"] == "bfloat16"
    assert [group["fused"] for group in others] == [True] * len(others) != []


def test_which_devices_have_them():
    found = {
        name: optimizers.has_fused_kernels(torch.device(name)) for name in ("cpu", "cuda", "xpu", "mps")
    }
    assert found == {"cpu": False, "cuda": True, "xpu": True, "mps": False}
