"""Ready runs, written with the public face only. ``paceline recipes`` lists them.

A recipe is a module with ``Config`` (a subclass of ``paceline.config.RunConfig``), ``PRESETS`` (values
for it by name) and ``build(config)``, which returns an ``Experiment``. The table is all that is read until
one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """What a preset reaches on 2 CPU cores, after its last epoch; ``benchmarks/recipes.py`` measures it.

    Args:
        preset: Its name; empty for the defaults.
        metric: As the run logs it.
        mean: Over ``runs`` runs, of seed 0, 1, ...
        deviation: The standard deviation over them.
        bound: What the tests ask of seed 0.
        seconds: How long a run takes, the median of the runs.
        runs: How many there were.
        teacher: The recipe whose run the preset learns from, ``teacher=`` its folder; it runs first.
    """

    preset: str
    metric: str
    mean: float
    deviation: float
    bound: float
    seconds: int
    runs: int = 5
    teacher: str = ""

    def __str__(self) -> str:
        return f"{self.metric} {self.mean:.4g} \u00b1 {self.deviation:.2g} ({self.runs} runs)"


@dataclass(frozen=True)
class Recipe:
    """A line of ``paceline recipes``.

    Args:
        module: Its file.
        about: What it trains.
        needs: What it needs beyond paceline's own dependencies.
        figure: What it reaches on a CPU.
    """

    module: str
    about: str
    needs: str
    figure: Figure


RECIPES = {
    "classify-text": Recipe(
        "classify_text",
        "texts or pairs of texts to labels, by a BERT of Hugging Face",
        "transformers, torchmetrics",
        Figure("", "val/accuracy", 0.921, 0.0082, 0.85, 46),
    ),
    "diffusion": Recipe(
        "diffusion",
        "images by class out of noise, with averaged weights and grids of samples",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9489, 0.0046, 0.92, 30),
    ),
    "digits": Recipe(
        "digits",
        "a small network on handwritten digits: copy it to begin with",
        "scikit-learn",
        Figure("", "val/accuracy", 0.985, 0.0025, 0.975, 11),
    ),
    "distill": Recipe(
        "distill",
        "a small network from the answers of a large, frozen one",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9928, 0.0037, 0.975, 13, teacher="resnet-cifar10"),
    ),
    "dpo": Recipe(
        "dpo",
        "a language model of Hugging Face on preferences: DPO, IPO, ORPO, SimPO",
        "transformers, peft",
        Figure("", "val/accuracy", 0.9305, 0.021, 0.85, 47),
    ),
    "finetune-vision": Recipe(
        "finetune_vision",
        "a vision model of Hugging Face with a new head, on folders of images",
        "scikit-learn, transformers",
        Figure("", "val/accuracy", 0.9767, 0.0042, 0.95, 31),
    ),
    "gan": Recipe(
        "gan",
        "images by class: a generator against a critic, by manual optimization",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9617, 0.01, 0.92, 31),
    ),
    "gpt": Recipe(
        "gpt",
        "a language model from scratch, on packed documents, with Muon",
        "",
        Figure("", "val/bits_per_byte", 1.825, 0.0085, 2.0, 53),
    ),
    "kto": Recipe(
        "kto",
        "a language model of Hugging Face on single answers that are labelled good or bad",
        "transformers, peft",
        Figure("", "val/accuracy", 0.7795, 0.03, 0.7, 49),
    ),
    "llm-distill": Recipe(
        "llm_distill",
        "a small language model of Hugging Face on the distributions of a large one",
        "transformers, peft",
        Figure("", "val/loss", 4.914, 0.05, 5.1, 46, teacher="llm-finetune"),
    ),
    "llm-finetune": Recipe(
        "llm_finetune",
        "instruction tuning of a language model of Hugging Face: full, LoRA or QLoRA",
        "transformers, peft",
        Figure("", "val/loss", 4.582, 0.077, 4.9, 39),
    ),
    "multi-task": Recipe(
        "multi_task",
        "two tasks for one network: a weighted mixture, or a loader for each",
        "scikit-learn",
        Figure("tiny", "val/classes/accuracy", 0.9011, 0.017, 0.83, 11),
    ),
    "neural-field": Recipe(
        "neural_field",
        "a photograph as a network of the place, at twice the resolution",
        "scikit-learn",
        Figure("", "val/psnr", 32.69, 0.029, 32.0, 45),
    ),
    "reinforce": Recipe(
        "reinforce",
        "a policy for games of Gymnasium, from episodes that it plays itself",
        "gymnasium",
        Figure("", "val/reward", 500.0, 0.0, 475.0, 18),
    ),
    "resnet-cifar10": Recipe(
        "resnet_cifar10",
        "ResNet-18 on CIFAR-10; preset=94 is airbench94",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9994, 0.0012, 0.985, 12),
    ),
    "reward-model": Recipe(
        "reward_model",
        "a number for each answer by a language model of Hugging Face, from pairs",
        "transformers, peft",
        Figure("", "val/accuracy", 0.9054, 0.018, 0.85, 34),
    ),
    "simclr": Recipe(
        "simclr",
        "features of images without labels, by contrast",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9417, 0.011, 0.91, 36),
    ),
    "tabular": Recipe(
        "tabular",
        "a column of a CSV file from the others: numbers, categories, missing values",
        "scikit-learn",
        Figure("", "val/accuracy", 0.9699, 0.0048, 0.95, 8),
    ),
    "vit-cifar10": Recipe(
        "vit_cifar10",
        "Vision Transformer on CIFAR-10; preset=scratch: one for 32 pixels",
        "scikit-learn",
        Figure("tiny", "val/accuracy", 0.9894, 0.006, 0.975, 51),
    ),
}
