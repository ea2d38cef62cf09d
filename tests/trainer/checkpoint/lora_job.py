"""Trains a tiny Llama with LoRA, and exports it.

python lora_job.py STRATEGY FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
CONFIG = {"vocab_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, **SIZES}
ADAPTERS = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def base() -> LlamaForCausalLM:
    """The same weights each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


class Plain(TrainModule):
    def __init__(self):
        super().__init__()
        self.model = base()

    def training_step(self, batch):
        return self.model(input_ids=batch[0], labels=batch[0]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.05)


class Adapted(Plain):
    def __init__(self, **more):
        super().__init__()
        self.model = get_peft_model(self.model, LoraConfig(**ADAPTERS, **more))


def tokens() -> torch.Tensor:
    return torch.arange(16 * 8).reshape(16, 8) % 7


def fit(module: TrainModule, strategy: str, folder: Path) -> Trainer:
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "max_epochs": 1, "name": "n"}
    trainer = Trainer(strategy=strategy, run_dir=folder / "runs", callbacks=Checkpoint(), **settings)
    trainer.fit(module, DataLoader(TensorDataset(tokens()), batch_size=4))
    return trainer


if __name__ == "__main__":
    kind, out = sys.argv[1], Path(sys.argv[2])
    trainer = fit(Adapted(), kind, out)
    trainer.export(out / "adapter", "model")
    trainer.export(out / "merged", "model", merged=True)
