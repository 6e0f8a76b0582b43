"""What happens in a generation, round by round: the one record of it, and who listens."""

from __future__ import annotations

from collections.abc import Callable

from ..stopping import Round

Listener = Callable[[Round], None]

__all__ = ["Listener", "Round"]
