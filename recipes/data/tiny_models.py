"""Small random models, a tokenizer and conversations: to try recipes without a network."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from paceline.recipes.data.text import english_documents

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of many models: https://github.com/openai/openai-python/blob/v0.28.1/chatml.md"""
Message = dict[str, str]
VOCABULARY = 1024
ANSWER = 400
"""The longest answer, in characters."""


def no_folder_too(value: Any, info: ValidationInfo) -> Any:
    """A setting that may name what is built in: refused where a folder of the current one has that name.

    Raises:
        ValueError: which names both.
    """
    if value in ("tiny", "english") and Path(value).exists():
        raise ValueError(
            f"{value} is built in, and a folder of this name is here: {info.field_name}=./{value} takes "
            f"the folder; for what is built in rename it, or leave {info.field_name} out"
        )
    return value


@cache
def tiny_tokenizer() -> Any:
    """Byte-level BPE of the English that Python carries, with ``CHATML`` as its template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in english_documents()[0]), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A",
        pair="<|im_start|> $A <|im_end|> $B:1",
        special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
    )


def tiny_llama(rewards: bool = False) -> Any:
    """A Llama of 0.8 million random parameters, drawn from torch's generator.

    Args:
        rewards: With a head that gives one number for a row in place of the next token.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        num_labels=1 if rewards else 2,
    )
    return (LlamaForSequenceClassification if rewards else LlamaForCausalLM)(config)


def tiny_bert(labels: int) -> Any:
    """A BERT of 0.8 million random parameters that tells texts of so many labels apart."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=1024,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=0,
            num_labels=labels,
        )
    )


def tiny_vit(labels: list[str]) -> Any:
    """A Vision Transformer of 0.4 million random parameters for images of 32 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            id2label=dict(enumerate(labels)),
            label2id={name: number for number, name in enumerate(labels)},
        )
    )


def tiny_conversations() -> tuple[list[list[Message]], list[list[Message]]]:
    """Each paragraph of Python's reference asks for the next: to train on, and of held-out documents."""
    found: list[list[list[Message]]] = []
    for documents in english_documents():
        found.append([])
        for name, text in documents:
            paragraphs = [part.strip() for part in text.split("\n\n") if len(part.strip()) > 40]
            for first, second in pairwise(paragraphs):
                asked = f"Continue this part of {name!r}:\n{first[-ANSWER:]}"
                found[-1].append(
                    [
                        {"role": "user", "content": asked},
                        {"role": "assistant", "content": second[:ANSWER]},
                    ]
                )
    return found[0], found[1]


def shuffled(text: str, draw: random.Random) -> str:
    """The same words in another order."""
    words = text.split(" ")
    draw.shuffle(words)
    return " ".join(words)
