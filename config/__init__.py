"""Configuration: what ``paceline fit`` reads, and what a recipe declares.

A recipe is a module with a ``Config``, ``PRESETS`` and ``build``: docs/guides/configuration.md.
"""

from __future__ import annotations

from .class_settings import OptimizerSetting, SchedulerSetting, make_optimizer, make_scheduler
from .experiment import Experiment
from .run_config import RunConfig
from .shapes import for_shapes, shapes_alone

__all__ = [
    "Experiment",
    "OptimizerSetting",
    "RunConfig",
    "SchedulerSetting",
    "for_shapes",
    "make_optimizer",
    "make_scheduler",
    "shapes_alone",
]
