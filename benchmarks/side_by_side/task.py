"""What the programs here share: models, data, how they are measured. None of it counts as their lines."""

from __future__ import annotations

import atexit
import json
import resource
import time
from pydoc_data.topics import topics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

torch.manual_seed(0)
EPOCHS, LENGTH, WARM_UP = 3, 128, 10
_found: dict[str, float] = {}


def gpt() -> tuple[nn.Module, list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """A small GPT-2 over bytes, and blocks of Python's reference to train it on and to validate it on."""
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    blocks = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)[:760]
    labels = blocks.clone()
    labels[:, 0] = -100  # nothing predicts it, and transformers' Trainer would count it
    samples = [{"input_ids": block, "labels": label} for block, label in zip(blocks, labels, strict=True)]
    config = GPT2Config(
        vocab_size=256,
        n_positions=LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _watched(GPT2LMHeadModel(config)), samples[:640], samples[640:]


def vit() -> tuple[nn.Module, list[dict[str, Any]], list[dict[str, Any]]]:
    """A small ViT, and handwritten digits."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    samples = [
        {"pixel_values": image, "labels": int(label)}
        for image, label in zip(images, digits.target, strict=True)
    ]
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return _watched(ViTForImageClassification(config)), samples[:1440], samples[1440:]


def gan() -> tuple[nn.Module, nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A generator, a critic, and handwritten digits, each with the noise that is used beside it."""
    generator = nn.Sequential(
        nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 64)
    )
    critic = nn.Sequential(
        nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
    )
    images = torch.tensor(load_digits().data / 8 - 1, dtype=torch.float32)[:1440]
    return _watched(generator, calls=2), critic, list(zip(images, torch.randn(1440, 64), strict=True))


def report(value: Any) -> None:
    """What the program has reached, to be compared with the others."""
    _found["reached"] = float(value)


def _watched(model: nn.Module, calls: int = 1) -> nn.Module:
    """Times the forward passes in training; so many of them are one batch."""
    begun, counted, ended = 0.0, 0, 0.0

    def count(module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        nonlocal begun, counted, ended
        if not module.training:
            return
        ended = time.perf_counter()
        counted += 1
        if counted == WARM_UP * calls + 1:
            begun = ended
        elif counted > WARM_UP * calls + 1 and (counted - 1) % calls == 0:
            first = next(value for value in [*inputs, *named.values()] if isinstance(value, torch.Tensor))
            _found["samples"] = _found.get("samples", 0) + len(first)
            _found["seconds"] = ended - begun

    model.register_forward_pre_hook(count, with_kwargs=True)
    return model


@atexit.register
def _print() -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("FOUND " + json.dumps(_found | {"peak_mib": peak}), flush=True)
