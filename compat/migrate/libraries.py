"""The libraries that are known, each with its tables."""

from __future__ import annotations

from .accelerate_names import ACCELERATE
from .composer_names import COMPOSER
from .lightning.names import LIGHTNING
from .tables import Library
from .transformers_names import TRANSFORMERS

LIBRARIES: tuple[Library, ...] = (LIGHTNING, ACCELERATE, TRANSFORMERS, COMPOSER)
