"""What stands where the user's dataset was, and lets everything else through to it."""

from __future__ import annotations

from typing import Any


class DatasetProxy:
    """Wraps ``inner``: a loader subclass may ask its dataset for anything."""

    inner: Any

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        # Dunders are asked of the type, and a half-made copy has no dataset yet.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)
