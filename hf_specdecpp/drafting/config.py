"""`DraftingConfig`: what is drafted and how drafts are verified, as a value that goes to and from JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Literal

from ..decoding.mode import COUPLINGS

SOURCES = ("model", "lookup", "recycling")


@dataclass(frozen=True)
class DraftingConfig:
    """What a round may draft. `StoppingConfig` says when it ends.

    Args:
        sources (`tuple[str, ...]`, *optional*): what proposes: `"model"`, the draft; `"lookup"`, the text so far;
            `"recycling"`, a table of what the target thought of before. Left out, all at hand that the rule can weigh:
            the cost-aware rule takes what is worth its time, other rules stop a model.
        branches (`int`, *optional*): the most tokens drafted behind one: 1 makes chains, more make trees under the
            rules that plan them (`"cost-aware"`, `"eagle-2"`, `"cape"`). Left out, the rule chooses between chains and
            trees by what they cost.
        max_nodes (`int`, *optional*): the most drafted tokens of a text that the target verifies in one pass. Left
            out, 32, or 7 where each costs whether it is drafted or not (`reproducible`).
        coupling (`str`): how sampling verifies. `"seeded"`: draft and target choose under the noise that plain
            decoding would use at each position, and a token is accepted if both choose it, so that the same seed gives
            plain decoding's text (arXiv 2408.07978). `"rejection"`: speculative sampling (arXiv 2211.17192), in trees
            recursive rejection (arXiv 2402.14160); the law is the target's, the text is another.
        reproducible (`bool`): every pass of the target behind the prompt has one width, `1 + max_nodes` tokens,
            drafted or not, in a static cache. A token then has the same bits whatever else is in the pass, so in any
            dtype the output is that of plain decoding in this mode (a rule of fixed length 0). Drafts are chains.

    Raises:
        ValueError: for numbers below 1, or a coupling that there is not.
    """

    sources: tuple[str, ...] | None = None
    branches: int | None = None
    max_nodes: int | None = None
    coupling: Literal["seeded", "rejection"] = "seeded"
    reproducible: bool = False

    def __post_init__(self):
        if self.sources is not None:
            given = self.sources if isinstance(self.sources, (list, tuple)) else ()
            if not given or any(name not in SOURCES or given.count(name) > 1 for name in given):
                raise ValueError(f"sources are some of {', '.join(SOURCES)}, each once, got {self.sources!r}")
            object.__setattr__(self, "sources", tuple(given))
        for name in ("branches", "max_nodes"):
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool) and value >= 1
            if not whole and value is not None:
                raise ValueError(f"{name} counts tokens and must be a whole number from 1, got {value!r}")
        if not isinstance(self.reproducible, bool):
            raise ValueError(f"reproducible must be True or False, got {self.reproducible!r}")
        if self.reproducible and (self.branches or 1) > 1:
            raise ValueError(
                f"branches={self.branches}: in a tree keys lie in another order than in the text, which changes bits; "
                "leave out branches or reproducible"
            )
        if self.coupling not in COUPLINGS:
            raise ValueError(f"there is no coupling {self.coupling!r}: choose one of {', '.join(COUPLINGS)}")

    @property
    def most_nodes(self) -> int:
        return self.max_nodes or (7 if self.reproducible else 32)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; `DraftingConfig(**config.to_dict())` is equal."""
        return asdict(self)
