"""Objectives of fine-tuning beside the likelihood of answers: preferences, labels, rewards, a teacher.

All are functions of log-probabilities, so that they can be checked and used without a model.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Objective = Literal["sigmoid", "ipo", "hinge", "orpo", "simpo"]
WITHOUT_REFERENCE = ("orpo", "simpo")
"""Objectives for which the model as it was does not count."""


class Answers(NamedTuple):
    """What a model says of answers.

    Attributes:
        log_probabilities: Of each answer, the sum over its tokens; (answers).
        tokens: How many each has; (answers).
    """

    log_probabilities: Tensor
    tokens: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over the tokens of each; (answers)."""
        return self.log_probabilities / self.tokens.clamp(min=1)


def preference_losses(
    objective: Objective,
    chosen: Answers,
    rejected: Answers,
    reference: tuple[Answers, Answers] | None = None,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    gamma: float = 0.5,
) -> Tensor:
    """The loss of each pair of answers.

    Args:
        objective: ``"sigmoid"``: DPO (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7).
            ``"ipo"``: IPO (Azar et al. 2023, https://arxiv.org/abs/2310.12036, equation 17), of means over
            tokens, as its authors advise. ``"hinge"``: SLiC (Zhao et al. 2023,
            https://arxiv.org/abs/2305.10425). ``"orpo"``: the odds ratio (Hong et al. 2024,
            https://arxiv.org/abs/2403.07691, equation 7), without the likelihood that ORPO adds to it.
            ``"simpo"``: SimPO (Meng et al. 2024, https://arxiv.org/abs/2405.14734, equation 6).
        chosen: The model's of the answers that are preferred.
        rejected: Of the others.
        reference: Both of the reference; None for objectives that have none.
        beta: How closely the model is held to the reference; the weight of the odds ratio; the scale of
            SimPO's rewards.
        label_smoothing: The part of pairs whose order is taken to be wrong, of ``"sigmoid"`` and
            ``"simpo"`` (Mitchell 2023, https://ericmitchell.ai/cdpo.pdf).
        gamma: SimPO's margin.

    Returns:
        (pairs), to be averaged.

    Example:
        >>> one, other = (Answers(torch.tensor([total]), torch.tensor([4])) for total in (-2.0, -6.0))
        >>> preference_losses("simpo", one, other, beta=2.0, gamma=1.0)
        tensor([0.3133])
    """
    if objective == "orpo":
        odds = chosen.mean - rejected.mean
        odds = odds - (_log_of_rest(chosen.mean) - _log_of_rest(rejected.mean))
        return -beta * F.logsigmoid(odds)
    if objective == "simpo":
        return _smoothed(beta * (chosen.mean - rejected.mean) - gamma, label_smoothing)
    assert reference is not None
    if objective == "ipo":
        gain = (chosen.mean - reference[0].mean) - (rejected.mean - reference[1].mean)
        return (gain - 1 / (2 * beta)) ** 2
    margin = beta * reward_margins(chosen, rejected, reference)
    return torch.relu(1 - margin) if objective == "hinge" else _smoothed(margin, label_smoothing)


def reward_margins(chosen: Answers, rejected: Answers, reference: tuple[Answers, Answers] | None) -> Tensor:
    """By how much the model prefers the chosen answers, beyond the reference; (pairs)."""
    if reference is None:
        return chosen.mean - rejected.mean
    gains = [
        one.log_probabilities - other.log_probabilities
        for one, other in zip((chosen, rejected), reference, strict=True)
    ]
    return gains[0] - gains[1]


def single_losses(
    gains: Tensor,
    is_good: Tensor,
    divergence: Tensor,
    *,
    beta: float = 0.1,
    good_weight: float = 1.0,
    bad_weight: float = 1.0,
) -> Tensor:
    """The loss of each answer that is labelled good or bad: KTO.

    Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306, equation 8.

    Args:
        gains: The log-probabilities of the answers, less those of the reference; (answers).
        is_good: Whether each is; bool, (answers).
        divergence: Of the model from the reference, estimated on answers to other questions; a scalar.
        beta: How closely the model is held to the reference.
        good_weight: Of good answers.
        bad_weight: Of bad answers.

    Returns:
        (answers), to be averaged.

    Example:
        >>> gains, good = torch.tensor([2.0, 2.0]), torch.tensor([True, False])
        >>> single_losses(gains, good, torch.tensor(0.0), beta=1.0)
        tensor([0.1192, 0.8808])
    """
    sign = is_good.to(gains.dtype) * 2 - 1
    weights = torch.where(is_good, good_weight, bad_weight).to(gains.dtype)
    return weights * (1 - torch.sigmoid(sign * beta * (gains - divergence)))


def estimated_divergence(gains: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean gain of answers to other questions, at least 0; no gradient flows through it.

    Args:
        gains: The log-probabilities of such answers, less those of the reference; (answers).
        weights: What each counts; None: 1.

    Example:
        >>> estimated_divergence(torch.tensor([-1.0, 3.0]))
        tensor(1.)
    """
    total = gains.new_tensor(len(gains)) if weights is None else weights.sum()
    counted = gains if weights is None else weights * gains
    return (counted.detach().sum() / total.clamp(min=torch.finfo(total.dtype).tiny)).clamp(min=0)


def reward_losses(
    chosen: Tensor, rejected: Tensor, margins: Tensor | None = None, *, center: float = 0.0
) -> Tensor:
    """The loss of each pair of rewards.

    Bradley and Terry's model, with margins as Llama 2 has them (Touvron et al. 2023,
    https://arxiv.org/abs/2307.09288, equation 2), and rewards that are drawn to a mean of 0 (Eisenstein et
    al. 2023, https://arxiv.org/abs/2312.09244).

    Args:
        chosen: The rewards of the answers that are preferred; (pairs).
        rejected: Of the others.
        margins: By how much each is preferred; None: 0.
        center: The weight of the squared sum of both rewards.

    Returns:
        (pairs), to be averaged.

    Example:
        >>> reward_losses(torch.tensor([1.0]), torch.tensor([0.0]), center=0.1)
        tensor([0.4133])
    """
    difference = chosen - rejected if margins is None else chosen - rejected - margins
    return -F.logsigmoid(difference) + center * (chosen + rejected) ** 2


def distillation_losses(
    student: Tensor, teacher: Tensor, *, temperature: float = 1.0, divergence: float = 0.0
) -> Tensor:
    """How far a student's distribution of the next token is from a teacher's, of each token.

    The generalized Jensen-Shannon divergence (Agarwal et al. 2023, https://arxiv.org/abs/2306.13649,
    equation 1).

    Args:
        student: Logits (..., vocabulary).
        teacher: Likewise.
        temperature: Divides both.
        divergence: 0: the Kullback-Leibler divergence of the student from the teacher; 1: of the teacher
            from the student; between: of both from their mixture with so much of the teacher.

    Returns:
        (...), in nats.

    Example:
        >>> logits = torch.tensor([0.0, 1.0])
        >>> distillation_losses(logits, logits.flip(0))
        tensor(0.4621)
    """
    exact = torch.promote_types(student.dtype, torch.float32)
    ours, theirs = ((one.to(exact) / temperature).log_softmax(-1) for one in (student, teacher))
    if divergence == 0:
        return _divergence(theirs, ours)
    if divergence == 1:
        return _divergence(ours, theirs)
    part = torch.tensor(divergence, dtype=ours.dtype, device=ours.device)
    mixed = torch.logaddexp(ours + torch.log1p(-part), theirs + torch.log(part))
    return part * _divergence(theirs, mixed) + (1 - part) * _divergence(ours, mixed)


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Of log-probabilities: how many nats more ``other`` needs for what ``one`` says."""
    return (one.exp() * (one - other)).sum(-1)


def _smoothed(margins: Tensor, smoothing: float) -> Tensor:
    wrong = smoothing * F.logsigmoid(-margins) if smoothing else 0.0
    return -(1 - smoothing) * F.logsigmoid(margins) - wrong


def _log_of_rest(log_probabilities: Tensor) -> Tensor:
    """``log(1 - exp(x))`` of x below 0, by whichever form is exact there."""
    near = log_probabilities > -0.6931471805599453  # log 2
    close = torch.where(near, log_probabilities, -1.0)
    far = torch.where(near, -1.0, log_probabilities)
    return torch.where(near, torch.log(-torch.expm1(close)), torch.log1p(-torch.exp(far)))
