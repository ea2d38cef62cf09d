"""The stages that evaluate: which step of a module they run, and which phase their values belong to."""

from __future__ import annotations

STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
PHASES = {"validate": "val", "test": "test", "predict": "predict"}
