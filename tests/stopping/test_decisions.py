"""Plans decide what rules decided before there were plans: `decisions.json` is what they said token by token.

Rules that learn costs say there what they do since few rounds count in part.
"""

import json
import random
from pathlib import Path

import pytest

from hf_specdecpp.stopping import RULES, DraftedToken, Round, StoppingConfig
from hf_specdecpp.stopping.trees import Cape, Eagle2

MOST = 12
GOLDEN = json.loads((Path(__file__).parent / "decisions.json").read_text())


def some_rounds(count: int = 80, seed: int = 1):
    """Of each round the longest draft, and for each of its tokens whether it would be accepted."""
    r = random.Random(seed)
    for _ in range(count):
        acceptances = [round(r.random() ** 0.3, 3) for _ in range(MOST)]
        tokens = [
            DraftedToken(k + 1, round(r.random() ** 0.4, 3), round(3 * r.random() ** 2, 3), acceptances[k])
            for k in range(MOST)
        ]
        yield tokens, [r.random() < acceptance for acceptance in acceptances]


def decided(config: StoppingConfig) -> list[int]:
    """The lengths of the drafts, the rule learning from one round to the next."""
    rule, lengths = config.filled_from(None).new_rule(), []
    for tokens, coins in some_rounds():
        plan, drafted = rule.plan(), []
        for token in tokens[: MOST if plan.cap is None else min(plan.cap, MOST)]:
            drafted.append(token)
            if not plan.goes_on(drafted):
                break
        accepted = next((i for i, coin in enumerate(coins[: len(drafted)]) if not coin), len(drafted))
        lengths.append(len(drafted))
        rule.end(Round(drafted, accepted, False, 0.11 * len(drafted), 1.0 + 0.05 * len(drafted)))
    return lengths


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["config"]["rule"])
def test_a_plan_decides_as_its_rule_did(golden):
    assert " ".join(map(str, decided(StoppingConfig(**golden["config"])))) == golden["lengths"]


def test_every_rule_that_there_was_is_here():
    later = {name for name, rule in RULES.items() if rule in (Cape, Eagle2)}
    assert {golden["config"]["rule"] for golden in GOLDEN} == set(RULES) - later
    assert len({golden["lengths"] for golden in GOLDEN}) > 20
