"""`StoppingConfig`: the rule by its name, its settings and the bounds, as a value that goes to and from JSON."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Protocol, get_type_hints

from ..costs.profile import CostProfile
from .cost_aware import CostAware
from .experience import Experience
from .rule import StoppingRule
from .rules import (
    AcceptanceThreshold,
    AdaEDL,
    AllOf,
    AnyOf,
    Bounded,
    Confidence,
    CumulativeConfidence,
    DropIn,
    EntropyBound,
    FixedLength,
    Goodput,
    Heuristic,
)
from .trees import Cape, Eagle2

RULES: dict[str, type[StoppingRule]] = {
    "adaedl": AdaEDL,
    "all": AllOf,
    "any": AnyOf,
    "cape": Cape,
    "confidence": Confidence,
    "cost-aware": CostAware,
    "cumulative-confidence": CumulativeConfidence,
    "drop-in": DropIn,
    "eagle-2": Eagle2,
    "fixed": FixedLength,
    "goodput": Goodput,
    "heuristic": Heuristic,
    "specdec++": AcceptanceThreshold,
    "svip": EntropyBound,
}
MAX_DRAFT_LENGTH = 20  # of drafts without a recommendation, as in transformers and in the paper


class Recommendation(Protocol):
    """What the config of an acceptance head recommends."""

    threshold: float
    min_draft_length: int
    max_draft_length: int
    rule: str
    rule_settings: Mapping[str, Any]


@dataclass(frozen=True)
class StoppingConfig:
    """When a round of drafting ends. What is left out is taken from the recommendation in the head's config.

    The newest drafted token is always submitted, and so is the one before it whose score crossed the threshold: a rule
    that dropped a drawn token for its own score would bias sampling.

    Args:
        threshold (`float`, *optional*): of a rule that has one, in [0, 1]. For SpecDec++: stop once the probability
            that the target rejects at least one drafted token exceeds this. It compares with the head's calibrated
            probability, so it is comparable between heads (and not with the paper's values, which belong to a loss
            weight of 6).
        min_draft_length (`int`, *optional*): the rule is not asked before so many tokens were drafted. A head
            that reads the state after a token judges it in the pass that draws the next one, so for SpecDec++ 1 and 2
            then mean the same.
        max_draft_length (`int`, *optional*): a round never drafts more tokens than this.
        rule (`str`, *optional*): one of `RULES`. Left out, it is `"specdec++"` where a threshold is given, else what
            the head recommends.
        settings (`dict`): further keywords of the rule's class. `"any"` and `"all"` take `rules`, a list of
            `StoppingConfig` as dictionaries; `"cost-aware"` and `"goodput"` take `costs`, a `CostProfile` as one.

    Raises:
        TypeError: for another keyword, such as a setting of a rule.
        ValueError: for a threshold outside [0, 1], bounds that cross, an unknown rule, or settings that it does not
            have.
    """

    threshold: float | None = None
    min_draft_length: int | None = None
    max_draft_length: int | None = None
    rule: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.threshold is not None:
            check_threshold(self.threshold)
        check_bounds(
            1 if self.min_draft_length is None else self.min_draft_length,
            (self.min_draft_length or 1) if self.max_draft_length is None else self.max_draft_length,
        )
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings are the rule's by name, like {{'length': 3}}, got {self.settings!r}")
        if self.rule is None and self.settings:
            raise ValueError(f"settings {sorted(self.settings)} belong to a rule: name it with rule=")
        if self.rule is not None:
            make_rule(self.rule, self.threshold, self.settings, filled=False)

    @property
    def needs(self) -> frozenset[str]:
        """What the rule reads, see `StoppingRule`. Say it of filled settings."""
        return make_rule(self.rule, self.threshold, self.settings).needs

    @property
    def needs_head(self) -> bool:
        """Whether the rule asks the acceptance head. Say it of filled settings."""
        return "acceptance" in self.needs

    @property
    def needs_seconds(self) -> bool:
        """Whether the rule counts seconds. Say it of filled settings."""
        return "seconds" in self.needs

    def filled_from(self, head: Recommendation | None) -> StoppingConfig:
        """These settings with the head's recommendation in place of what was left out.

        A bound that the caller gives moves the recommended other bound out of its way. Without a head, drafts have
        1 to 20 tokens.
        """
        low, high = self.min_draft_length, self.max_draft_length
        recommended = (1, MAX_DRAFT_LENGTH) if head is None else (head.min_draft_length, head.max_draft_length)
        if low is None:
            low = recommended[0] if high is None else min(recommended[0], high)
        if high is None:
            high = max(recommended[1], low)
        rule, settings, threshold = self.rule, self.settings, self.threshold
        if rule is None:
            rule = "specdec++"
            if threshold is None and head is not None:
                rule, settings = head.rule, head.rule_settings
        if rule == "specdec++" and threshold is None and head is not None:
            threshold = head.threshold
        return replace(
            self, threshold=threshold, min_draft_length=low, max_draft_length=high, rule=rule, settings=settings
        )

    def new_rule(self, experience: Experience | None = None, costs: CostProfile | None = None) -> StoppingRule:
        """The rule of filled settings, for one generation.

        Args:
            experience (`Experience`, *optional*): what the pair showed so far, for rules that count seconds. The
                caller adds each round to it, before the rule's `end`.
            costs (`CostProfile`, *optional*): for such rules where their settings name none, instead of learning.
        """
        rule = make_rule(self.rule, self.threshold, self.settings, experience, costs)
        return Bounded(rule, self.min_draft_length, self.max_draft_length)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; `StoppingConfig(**config.to_dict())` is equal."""
        return asdict(self)


def telling_what_was_meant(init: Callable[..., None]) -> Callable[..., None]:
    """`init` of `StoppingConfig`, which for an unknown keyword says where the settings of a rule go."""

    @functools.wraps(init)
    def wrapper(self, *args: Any, **kwargs: Any) -> None:
        fields = list(inspect.signature(init).parameters)[1:]
        for name in kwargs:
            rules = [rule for rule, made in RULES.items() if name in inspect.signature(made).parameters]
            if name not in fields and rules:
                raise TypeError(
                    f"StoppingConfig has no {name}, a setting of the rules {', '.join(rules)}: write StoppingConfig("
                    f"rule={rules[0]!r}, settings={{{name!r}: {kwargs[name]!r}}})"
                )
            if name not in fields:
                raise TypeError(f"StoppingConfig has no {name}: it takes {', '.join(fields)}")
        init(self, *args, **kwargs)

    return wrapper


StoppingConfig.__init__ = telling_what_was_meant(StoppingConfig.__init__)  # type: ignore[method-assign]


def make_rule(
    name: str,
    threshold: float | None,
    settings: Mapping[str, Any],
    experience: Experience | None = None,
    costs: CostProfile | None = None,
    filled: bool = True,
) -> StoppingRule:
    """The rule called `name`.

    With `filled` false a threshold that only the head can recommend may still be missing.

    Raises:
        ValueError: for an unknown rule, or settings that it does not have.
    """
    if name not in RULES:
        raise ValueError(f"there is no rule {name!r}: choose one of {', '.join(RULES)}")
    arguments = dict(settings)
    if threshold is not None:
        arguments["threshold"] = threshold
    elif name == "specdec++" and not filled:
        arguments["threshold"] = 0.7
    if name in ("any", "all"):
        parts = arguments.pop("rules", None)
        if arguments or not parts or not isinstance(parts, (list, tuple)):
            raise ValueError(
                f"the rule {name!r} needs settings={{'rules': [...]}}, each a StoppingConfig as a dictionary, and has "
                "no other settings"
            )
        return RULES[name](*(make_rule(**part_of(name, part), experience=experience, costs=costs) for part in parts))
    known = get_type_hints(RULES[name].__init__)
    is_timed = known.pop("experience", None) is not None
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(
            f"the rule {name!r} has no {', '.join(unknown)}: its settings are {', '.join(known) or 'none'}"
        )
    needed = [n for n, p in inspect.signature(RULES[name]).parameters.items() if p.default is p.empty]
    missing = [n for n in needed if n not in arguments]
    if missing:
        where = "threshold=" if missing == ["threshold"] else f"settings={{{missing[0]!r}: ...}}"
        raise ValueError(f"the rule {name!r} needs a {missing[0]}: give {where}")
    for setting, value in arguments.items():
        check_setting(name, setting, value, known[setting])
    if not isinstance(arguments.get("costs"), CostProfile | None):
        arguments["costs"] = costs_of(arguments["costs"])
    if is_timed and arguments.get("costs") is None:
        arguments |= {"experience": experience, "costs": costs}
    return RULES[name](**arguments)


def part_of(name: str, part: Any) -> dict[str, Any]:
    """The arguments of `make_rule` for one of the `rules` of the rule `name`.

    Raises:
        ValueError: unless it is a `StoppingConfig` as a dictionary, with a rule and without bounds.
    """
    fields = {"rule", "threshold", "settings", "min_draft_length", "max_draft_length"}
    if not isinstance(part, Mapping) or part.get("rule") is None or set(part) - fields:
        raise ValueError(
            f"each of the rules of {name!r} is a StoppingConfig as a dictionary, like {{'rule': 'svip', 'threshold': "
            f"0.3}} or config.to_dict(), got {part!r}"
        )
    if part.get("min_draft_length") is not None or part.get("max_draft_length") is not None:
        raise ValueError(f"the bounds of a draft's length belong beside rule={name!r}, not inside its rules")
    if part.get("threshold") is not None:
        check_threshold(part["threshold"])
    return {"name": part["rule"], "threshold": part.get("threshold"), "settings": part.get("settings") or {}}


def check_setting(rule: str, name: str, value: Any, kind: Any) -> None:
    """Raises `ValueError` unless `value` is of the type `kind` that the rule's class says; costs are checked later."""
    expected = {int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "True or False")}.get(kind)
    if expected and (not isinstance(value, expected[0]) or isinstance(value, bool) != (kind is bool)):
        raise ValueError(f"{name} of the rule {rule!r} must be {expected[1]}, got {value!r}")


def costs_of(given: Any) -> CostProfile:
    """A `CostProfile` from its fields.

    Raises:
        ValueError: unless they are seconds.
    """
    try:
        return CostProfile(**given)
    except TypeError as error:
        raise ValueError(
            "costs are seconds, like {'draft_seconds': 0.005, 'verify_seconds': [0.04, 0.041]}, the latter of a pass "
            f"over 1, 2, ... tokens, got {given!r}"
        ) from error


def check_threshold(threshold: float) -> None:
    """Raises `ValueError` unless `threshold` is a number in [0, 1]."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a number between 0 and 1, got {threshold!r}")


def check_bounds(min_draft_length: int, max_draft_length: int) -> None:
    """Raises `ValueError` unless they are whole numbers with 1 <= `min_draft_length` <= `max_draft_length`."""
    whole = isinstance(min_draft_length, Integral) and isinstance(max_draft_length, Integral)
    if not whole or not 1 <= min_draft_length <= max_draft_length:
        raise ValueError(
            "the bounds of a draft's length are whole numbers with 1 <= min_draft_length <= max_draft_length, got "
            f"min_draft_length={min_draft_length} and max_draft_length={max_draft_length}"
        )
