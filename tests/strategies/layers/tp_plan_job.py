"""Trains a small Hugging Face model, split by its own tp_plan where there are two ranks.

python tp_plan_job.py DEVICES FOLDER KINDS   (KINDS: JSON, a list of "qwen3" and "llama-tied")
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from paceline import Trainer, TrainModule
from paceline.strategies import FSDP

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


class Model(TrainModule):
    def __init__(self, kind: str):
        super().__init__()
        if kind == "qwen3":  # with norms over each head
            self.model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=False))
        else:
            self.model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))

    def training_step(self, batch):
        return self.model(input_ids=batch[0], labels=batch[0]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


def train(kind: str, devices: int, folder: Path) -> None:
    torch.manual_seed(3)
    rows = torch.randint(32, (24, 10), generator=torch.Generator().manual_seed(1))
    module = Model(kind)
    Trainer(
        strategy=FSDP(tensor=2) if devices > 1 else "single",
        accelerator="cpu",
        devices=devices,
        precision="64",
        max_steps=5,
        global_batch_size=8,
        clip_grad_norm=0.5,
        log_every=1,
        progress=False,
        loggers=["-tensorboard", "-curves"],
        run_dir=folder,
        name=f"{kind}-{devices}",
    ).fit(module, DataLoader(TensorDataset(rows), batch_size=4))
    if devices > 1:
        own = module.model.model.layers[0].self_attn.q_proj.weight.to_local()
        assert own.shape == (8, 16), own.shape


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in json.loads(sys.argv[3]):
        train(kind, int(sys.argv[1]), Path(sys.argv[2]))
