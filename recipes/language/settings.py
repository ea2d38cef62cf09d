"""Settings of recipes of language models: the model, which of its weights are trained, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from paceline import PacelineError
from paceline.config import OptimizerSetting, RunConfig, SchedulerSetting
from paceline.recipes.data.hugging_face import TINY, exported_by, no_adapter, require_packages
from paceline.recipes.data.tiny_models import no_folder_too
from paceline.recipes.language.data.sources import Sources, Validation
from paceline.recipes.language.data.templates import TooLong
from paceline.recipes.language.quantization import Quantization

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Warmup = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(%|ep|st)$")] | NonNegativeInt


class LanguageModelConfig(RunConfig):
    """Settings of every recipe of a language model."""

    model: Annotated[
        str, BeforeValidator(no_adapter), BeforeValidator(exported_by), BeforeValidator(no_folder_too)
    ] = TINY
    """A name on the Hugging Face hub, the folder of a model or a run, or ``tiny``: a small random Llama."""
    chat_template: Path | None = None
    """A file of Jinja, ``chatml``, or ``plain``, for models without marks; none: the tokenizer's own."""
    system: str | None = None
    """The system prompt of conversations that have none; none: what the chat template has."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights as they are loaded."""
    attn_implementation: str | None = None
    """Of transformers: ``eager``, ``sdpa``, ``flash_attention_2``...; none: the fastest that keeps packed
    conversations apart."""
    added_tokens: list[str] = []
    """Tokens that the tokenizer gets. Their embeddings begin as the mean of the others; under ``lora``
    these rows of embeddings and head are trained, not the others."""
    dropout: Part | None = None
    """The rate of all dropout layers of the model but those of adapters; none: what the model has."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""

    data: Sources | None = None
    """A file, a folder, or a list of these and of ``{path: ..., weight: 2, columns: ...}``; none: English
    that Python carries."""
    validation: Validation = 0.05
    """The part of ``data`` to validate on, its end; 0: nothing; or files, as ``data``."""
    length: PositiveInt = 512
    """The most tokens of a sample."""
    too_long: TooLong = "cut"
    """What is longer is cut off, dropped, or an ``error``."""
    max_samples: PositiveInt | None = None
    """At most so many of each source, the first ones; none: all."""
    shuffle: bool = True
    """Draw the order of each epoch."""
    group_by_length: bool = False
    """Let batches have samples of about the same length: less to fill up."""
    preview: NonNegativeInt = 0
    """Print so many samples, with what is learned of them marked, and the counts; and end."""

    method: Literal["full", "lora", "freeze"] = "full"
    """Train all weights, adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), or some layers."""
    train_layers: int = 0
    """Of ``freeze``: how many of the last layers are trained; negative: of the first ones."""
    train_modules: list[str] = []
    """Of ``freeze``: names of parameters that are trained too, or their parts: ``lm_head``, ``*norm*``."""
    lora_rank: PositiveInt = 16
    """Of the adapters' matrices."""
    lora_alpha: Positive = 32.0
    """An adapter's output is multiplied by it, over ``lora_rank``."""
    lora_dropout: Part = 0.0
    """Rate of dropout before adapters."""
    lora_targets: list[str] | str = "all-linear"
    """Names of layers that get adapters, or one regular expression of whole names."""
    lora_init: str = "default"
    """How adapters begin: ``default``, ``gaussian``, ``olora``, ``orthogonal``, ``pissa``, or
    ``pissa_niter_4``, PiSSA by a fast decomposition (Meng et al. 2024, https://arxiv.org/abs/2404.02948)."""
    lora_dora: bool = False
    """Train the lengths of weights apart from their directions: DoRA (Liu et al. 2024,
    https://arxiv.org/abs/2402.09353)."""
    lora_rslora: bool = False
    """Divide by the root of the rank: rsLoRA (Kalajdzievski 2023, https://arxiv.org/abs/2312.03732)."""
    modules_to_save: list[str] = []
    """Names of layers that are trained whole beside the adapters: ``embed_tokens``, ``lm_head``."""
    adapter: Annotated[str | None, BeforeValidator(exported_by)] = None
    """A folder of an adapter or of a run, or a name on the hub, to train on; none: new ones."""
    load_in_4bit: bool = False
    """QLoRA: keep the base in 4 bits (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314)."""
    load_in_8bit: bool = False
    """Keep the base in 8 bits."""
    quantization: Literal["bitsandbytes", "torchao"] = "bitsandbytes"
    """The package that does so; torchao: 8 bits alone."""

    batch_size: PositiveInt = 4
    """Rows on each device."""
    workers: NonNegativeInt = 0
    """Processes that read, for each rank."""
    epochs: PositiveInt = 2
    """Passes over the data."""
    learning_rate: Positive = 2e-3
    """The highest; ``scheduler`` says what follows."""
    embedding_learning_rate: Positive | None = None
    """Of the embeddings, where they are trained; none: ``learning_rate``."""
    head_learning_rate: Positive | None = None
    """Of the head, where it is trained and is not the embeddings again; none: ``learning_rate``."""
    lora_plus_ratio: Positive | None = None
    """LoRA+: how many times as high the rate of the adapters' second matrices is (Hayou et al. 2024,
    https://arxiv.org/abs/2402.12354); none: as high."""
    optimizer: OptimizerSetting = "AdamW"
    """A name, or a class with its arguments: ``{class: AdamW, betas: [0.9, 0.95]}``."""
    weight_decay: Amount = 0.0
    """Of matrices; vectors, as biases and norms, have none."""
    scheduler: SchedulerSetting = "cosine"
    """A name, or a class with its arguments: ``{class: cosine, end: 0.1}``."""
    warmup: Warmup = "3%"
    """How long the learning rate rises: a part of the run, epochs (``0.5ep``) or steps."""
    neftune_alpha: Positive | None = None
    """Noise on the embeddings in training (Jain et al. 2023, https://arxiv.org/abs/2310.05914)."""

    export: bool = True
    """At the end, write the model or the adapter, and the tokenizer, into the run's ``exported``."""
    export_merged: bool = False
    """With ``export`` write the model with the adapter merged into it, too, into ``merged``."""
    samples: list[str] | Path = []
    """Questions, or a file with one a line: what the model answers is logged during training."""
    samples_every: str | PositiveInt = "1ep"
    """How often, a duration: ``100st``, ``0.5ep``, ``10min``."""

    def check(self, recipe: str) -> None:
        """Refuse settings that do not go together, and packages that are missing.

        Raises:
            PacelineError: which says what to change.
        """
        require_packages(recipe, "transformers", "peft")
        if self.quantized() is not None:
            self._check_quantized()
            require_packages(recipe, self.quantization)
        self._check_method()
        if self.model != TINY and "learning_rate" not in self.model_fields_set:
            raise PacelineError(
                f"{recipe}: the default learning rate is for the tiny model alone",
                code="recipe-settings",
                fix="preset=lora or preset=full, or learning_rate=...",
            )
        for key, name in (("optimizer", "learning_rate"), ("optimizer", "weight_decay")):
            value = getattr(self, key)
            short = {"learning_rate": "lr"}.get(name, name)
            if isinstance(value, dict) and short in value:
                raise PacelineError(
                    f"{self._place(key)}: {short} is a setting beside it",
                    code="recipe-settings",
                    fix=f"{name}: ...",
                )

    def quantized(self) -> Quantization | None:
        """How the base is quantized."""
        if not (self.load_in_4bit or self.load_in_8bit):
            return None
        if self.quantization == "torchao":
            return "torchao-8"
        return "bitsandbytes-4" if self.load_in_4bit else "bitsandbytes-8"

    def _check_quantized(self) -> None:
        given = "load_in_4bit" if self.load_in_4bit else "load_in_8bit"
        if self.load_in_4bit and (self.load_in_8bit or self.quantization == "torchao"):
            raise PacelineError(
                "load_in_4bit is without load_in_8bit, and of bitsandbytes: peft has no adapters on 4 bits"
                " of torchao",
                code="recipe-settings",
                fix="load_in_8bit=true alone, or quantization=bitsandbytes",
            )
        if self.method != "lora" or self.model == TINY:
            raise PacelineError(
                f"{given} is for method=lora, of a model that is loaded from files", code="recipe-settings"
            )
        if self.lora_init.startswith(("pissa", "olora")):
            raise PacelineError(
                f"{given}: lora_init={self.lora_init} changes the base, which is quantized",
                code="recipe-settings",
            )
        if self.export_merged:
            raise PacelineError(
                f"export_merged: a base that {given} keeps is not merged",
                code="recipe-settings",
                fix="export the adapter, load it on the base in full precision, and merge_and_unload()",
            )

    def _check_method(self) -> None:
        """Settings of another method than the one that is chosen would do nothing."""
        of_lora = [name for name in type(self).model_fields if name.startswith("lora_")]
        for method, names in {
            "lora": [*of_lora, "modules_to_save", "adapter", "export_merged"],
            "freeze": ["train_layers", "train_modules"],
        }.items():
            for name in names:
                if self.method != method and name in self.model_fields_set:
                    raise PacelineError(
                        f"{self._place(name)}: it is for method={method}",
                        code="recipe-settings",
                        got=self.method,
                    )
        if self.method == "freeze" and not (self.train_layers or self.train_modules):
            raise PacelineError(
                "method=freeze trains nothing",
                code="recipe-settings",
                fix="train_layers=2, or train_modules",
            )

    def model_arguments(self) -> dict[str, Any]:
        """Arguments of ``load_causal_model``, kept with the run."""
        lora = {
            "r": self.lora_rank,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": self.lora_targets,
            "init_lora_weights": self.lora_init == "default" or self.lora_init,
            "use_dora": self.lora_dora,
            "use_rslora": self.lora_rslora,
            "modules_to_save": self.modules_to_save or None,
        }
        return {
            "model": self.model,
            "lora": lora if self.method == "lora" else None,
            "quantization": self.quantized(),
            "dtype": self.dtype,
            "attn_implementation": self.attn_implementation,
            "dropout": self.dropout,
            "gradient_checkpointing": self.gradient_checkpointing,
            "neftune_alpha": self.neftune_alpha,
            "adapter": self.adapter,
            "added_tokens": self.added_tokens,
            "trained": (self.train_layers, self.train_modules) if self.method == "freeze" else None,
        }

    def optimization(self) -> dict[str, Any]:
        """Arguments of ``configured``, kept with the run."""
        names = ("learning_rate", "embedding_learning_rate", "head_learning_rate", "lora_plus_ratio")
        more = ("optimizer", "weight_decay", "scheduler", "warmup")
        return {name: getattr(self, name) for name in (*names, *more)}


class PreferenceConfig(LanguageModelConfig):
    """Settings of every recipe that learns which answers are preferred."""

    length: PositiveInt = 128
    """The most tokens of a sample."""
    batch_size: PositiveInt = 8
    """Pairs on each device."""
    epochs: PositiveInt = 1
    """Passes over the data."""
    learning_rate: Positive = 1e-3
    """The highest; ``scheduler`` says what follows."""
    warmup: Warmup = "10%"
    """How long the learning rate rises: a part of the run, epochs (``0.5ep``) or steps."""
    dropout: Part | None = 0.0
    """The rate of the dropout layers of the model, and of its reference; none: what they have."""
