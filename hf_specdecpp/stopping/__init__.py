"""When to stop drafting: rules as plain objects over plain numbers, and the config that names one."""

from .config import RULES, StoppingConfig
from .cost_aware import CostAware
from .costs import CostProfile, RunningCosts
from .plan import Plan
from .round import DraftedToken, Round, Scope
from .rule import StoppingRule

__all__ = [
    "RULES",
    "CostAware",
    "CostProfile",
    "DraftedToken",
    "Plan",
    "Round",
    "RunningCosts",
    "Scope",
    "StoppingConfig",
    "StoppingRule",
]
