"""The models and data of ``throughput.py``: convolutions, a Vision Transformer, a GPT, a Llama."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from paceline.recipes.data.images import Images, channel_statistics, digits
from paceline.recipes.networks.vit import VisionTransformer


@dataclass
class Workload:
    """What is trained, and on what.

    Args:
        net: Inputs to logits, the classes last.
        dataset: Pairs of an input and what is to be found.
        batch: Samples of a step.
        epochs: Of a timed run.
        warm_up: Steps of it that are not timed.
    """

    net: Callable[[], nn.Module]
    dataset: Callable[[], Dataset]
    batch: int
    epochs: int
    warm_up: int = 10


def loss_of(net: nn.Module, batch: list[Tensor]) -> Tensor:
    """Cross entropy, over the samples or over all tokens."""
    inputs, targets = batch
    logits = net(inputs)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Tokens(Dataset):
    """Windows of one long text, here of random tokens."""

    def __init__(self, windows: int, length: int, words: int) -> None:
        self.windows, self.length = windows, length
        self.text = torch.randint(words, (windows * length + 1,))

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * self.length
        window = self.text[begin : begin + self.length + 1]
        return window[:-1], window[1:]


class Layer(nn.Module):
    """Causal attention and an MLP, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Tokens (batch, length) to logits (batch, length, words)."""

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.words(tokens) + self.places(places))))


class Resized(nn.Module):
    """The recipe's: small images are enlarged on the device."""

    def __init__(self, net: nn.Module, size: int) -> None:
        super().__init__()
        self.net, self.size = net, size

    def forward(self, images: Tensor) -> Tensor:
        return self.net(F.interpolate(images, size=self.size, mode="bilinear", align_corners=False))


def small_cnn() -> nn.Module:
    """Four convolutions."""
    sizes = (3, 16, 32, 64, 64)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))


def tiny_vit() -> nn.Module:
    """The recipe's ``preset=tiny``."""
    return VisionTransformer(image=32, patch=8, width=96, depth=4, heads=4, mlp_ratio=2.0)


class Logits(nn.Module):
    """A model of transformers by its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).logits


def resnet(**sizes: Any) -> nn.Module:
    """ResNet-50 unless sizes are given, channels last, for images of 224 pixels."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=10, **sizes))
    return Resized(Logits(model), 224).to(memory_format=torch.channels_last)


LLAMA_1B = {  # the shape of Llama 3.2
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}


def llama(**sizes: Any) -> nn.Module:
    """Random weights in bf16, and LoRA of rank 16 at each linear layer but the head."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(use_cache=False, **sizes)).to(torch.bfloat16)
    return Logits(get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")))


def images() -> Dataset:
    """The recipe's data without a network: digits, cropped at random."""
    train, _ = digits()
    return Images(*train, *channel_statistics(train[0]), crop=2)


ON_CPU = {
    "cnn": Workload(small_cnn, images, batch=32, epochs=4),
    "vit": Workload(tiny_vit, images, batch=32, epochs=3),
    "gpt": Workload(
        lambda: GPT(words=512, length=128, width=128, depth=4, heads=4),
        lambda: Tokens(windows=360, length=128, words=512),
        batch=8,
        epochs=2,
    ),
    "resnet": Workload(
        lambda: resnet(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1]), images, batch=4, epochs=1
    ),
    "lora": Workload(
        lambda: llama(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        lambda: Tokens(windows=360, length=64, words=512),
        batch=4,
        epochs=1,
    ),
}
ON_ACCELERATOR = {
    "vit": Workload(
        lambda: Resized(VisionTransformer(image=224, patch=16, width=768, depth=12, heads=12), 224),
        images,
        batch=128,
        epochs=12,
        warm_up=30,
    ),
    "gpt": Workload(
        lambda: GPT(words=50304, length=1024, width=768, depth=12, heads=12),
        lambda: Tokens(windows=2400, length=1024, words=50304),
        batch=16,
        epochs=1,
        warm_up=30,
    ),
    "resnet": Workload(resnet, images, batch=256, epochs=24, warm_up=30),
    "lora": Workload(
        lambda: llama(**LLAMA_1B),
        lambda: Tokens(windows=480, length=1024, words=128256),
        batch=8,
        epochs=1,
        warm_up=20,
    ),
}
