"""When to stop drafting: rules as plain objects over plain numbers, and the config that names one."""

from ..costs.profile import CostProfile, RunningCosts
from .config import RULES, StoppingConfig
from .cost_aware import CostAware
from .experience import Experience
from .plan import Plan
from .round import DraftedToken, Round, Scope
from .rule import ONE_TEXT, StoppingRule

__all__ = [
    "ONE_TEXT",
    "RULES",
    "CostAware",
    "CostProfile",
    "DraftedToken",
    "Experience",
    "Plan",
    "Round",
    "RunningCosts",
    "Scope",
    "StoppingConfig",
    "StoppingRule",
]
