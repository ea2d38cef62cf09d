"""Answers that a language model gives while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paceline import PacelineError
from paceline.callbacks import Callback
from paceline.durations import Cadence, Duration, StepPosition


class SampleAnswers(Callback):
    """Logs what the model answers to questions, as a text ``train/samples``, every so often.

    Rank 0 takes the likeliest token each time; nothing is drawn, and training continues as without it.

    Args:
        tokenizer: Of transformers, with a chat template.
        questions: What is asked, each alone.
        every: A duration.
        most: Tokens of an answer.
        system: The system prompt; None: none.

    Raises:
        PacelineError: for a duration that is none; in a fit, where a strategy splits the weights.
    """

    def __init__(
        self,
        tokenizer: Any,
        questions: Sequence[str],
        every: str | int = "1ep",
        most: int = 128,
        system: str | None = None,
    ) -> None:
        self.tokenizer, self.questions, self.most = tokenizer, list(questions), most
        self.every = Duration.parse(every)
        self._start = [{"role": "system", "content": system}] if system else []
        self._cadence: Cadence | None = None

    def on_fit_start(self, trainer: Any) -> None:
        if any(
            hasattr(one, "placements") or hasattr(one, "ds_shape") for one in trainer.module.parameters()
        ):
            raise PacelineError(
                "samples: answers are generated of whole weights, and this strategy splits them",
                code="recipe-settings",
                fix="leave samples out, and ask a checkpoint: paceline chat RUN",
            )
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._cadence.restart(trainer.counters.seconds())

    def next_due(self, at: StepPosition) -> float:
        return 0 if self._cadence is None else self._cadence.next_step(at)

    def on_step_boundary(self, trainer: Any) -> None:
        if self._cadence is None or not trainer.counters.is_due(self._cadence):
            return
        if trainer.is_global_zero:
            texts = [
                f"**{question}**\n\n{self._answer(trainer.module.model, question)}"
                for question in self.questions
            ]
            trainer.module.log_text("samples", "\n\n".join(texts))

    @torch.no_grad()
    def _answer(self, model: Any, question: str) -> str:
        given = self.tokenizer.apply_chat_template(
            [*self._start, {"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        training = [part for part in model.modules() if part.training]
        model.eval()
        try:
            found = model.generate(
                **given.to(model.device),
                max_new_tokens=self.most,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        finally:
            for part in training:
                part.training = True
        new = found[0, given["input_ids"].shape[1] :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True)).strip()


def questions_of(samples: list[str] | Path) -> list[str]:
    """The questions of a setting: as they are, or the lines of a file.

    Raises:
        PacelineError: for a file that cannot be read.
    """
    if isinstance(samples, list):
        return samples
    try:
        lines = samples.expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PacelineError(
            f"samples: {samples} cannot be read: {error.strerror}",
            code="file-unreadable",
            allowed="a list, or a file with a question a line",
        ) from None
    return [line.strip() for line in lines if line.strip()]
