"""What a stopping rule is: it decides whether to draw another token, and can never take one back. Knows no models.

A rule sees plain numbers, so that the same object decides in `generate` and in a replay of recorded traces.
"""

from __future__ import annotations

from ..costs.profile import CostProfile
from .experience import Experience
from .plan import Plan
from .round import Round, Scope

ONE_TEXT = Scope(branches=1)


class StoppingRule:
    """Serves one generation. Subclasses override what they use.

    Attributes:
        needs (`frozenset[str]`): fields of `DraftedToken`, and `"seconds"` of `Round`, that the rule reads.
        shared (`bool`): one rule serves all texts of a batch, since what it weighs is the batch's.
        reason (`str`): why the rule ended a round, for `collect_stats`.
    """

    needs: frozenset[str] = frozenset()
    reason: str = "rule"
    shared: bool = False

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        """The decision for the next round."""
        return Plan(reason=self.reason)

    def end(self, round: Round) -> None:
        """Learns from a finished round."""


class TimedRule(StoppingRule):
    """A rule that counts seconds: it takes the costs that it is given, or learns them from its own rounds.

    Args:
        costs (`CostProfile`, *optional*): what a round costs; nothing is learned then.
        experience (`Experience`, *optional*): what the pair showed so far. Rules may share it, so whoever gives it
            adds the rounds.
    """

    needs = frozenset({"seconds"})
    shared = True

    def __init__(self, costs: CostProfile | None = None, experience: Experience | None = None):
        self.costs = costs
        self.learns = costs is None and experience is None
        self.experience = Experience() if experience is None else experience

    def current_costs(self, rows: int = 1, drafts: bool = True) -> CostProfile | None:
        """What a round of so many texts costs as far as is known; `None` while too little was measured."""
        return self.costs or self.experience.costs.profile(rows, drafts)

    def end(self, round: Round) -> None:
        if self.learns:
            self.experience.hear(round)
