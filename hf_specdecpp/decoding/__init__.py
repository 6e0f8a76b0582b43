"""One loop: draft, verify, commit, stop. What decodes is here; what proposes is in `drafting/`."""

from .mode import Decoding, draw_beside, draw_tokens

__all__ = ["Decoding", "draw_beside", "draw_tokens"]
