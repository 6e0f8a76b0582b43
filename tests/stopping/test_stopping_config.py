import inspect
import json
import math

import pytest

from hf_specdecpp import AcceptanceHeadConfig, StoppingConfig
from hf_specdecpp.stopping import RULES
from hf_specdecpp.stopping.rules import AcceptanceThreshold, AnyOf, EntropyBound


@pytest.mark.parametrize("threshold", (-0.1, 1.1, math.nan, "0.5", True))
def test_a_threshold_outside_0_to_1_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold must be a number between 0 and 1, got"):
        StoppingConfig(threshold=threshold)
    with pytest.raises(ValueError, match="threshold must be a number between 0 and 1, got"):
        AcceptanceHeadConfig(threshold=threshold)


@pytest.mark.parametrize("low, high", [(3, 2), (0, 4), (0, None), (None, 0), (-1, -1), (None, 2.5), ("3", None)])
def test_bounds_that_cross_are_refused(low, high):
    with pytest.raises(ValueError, match="1 <= min_draft_length <= max_draft_length"):
        StoppingConfig(min_draft_length=low, max_draft_length=high)


def test_what_is_left_out_comes_from_the_head():
    head = AcceptanceHeadConfig(threshold=0.6, min_draft_length=3, max_draft_length=9)
    assert StoppingConfig().filled_from(head) == StoppingConfig(0.6, 3, 9, "specdec++")
    assert StoppingConfig(0.2).filled_from(head) == StoppingConfig(0.2, 3, 9, "specdec++")
    assert StoppingConfig(max_draft_length=2).filled_from(head) == StoppingConfig(0.6, 2, 2, "specdec++")
    assert StoppingConfig(min_draft_length=12).filled_from(head) == StoppingConfig(0.6, 12, 12, "specdec++")
    assert StoppingConfig(rule="svip").filled_from(head) == StoppingConfig(None, 3, 9, "svip")
    assert StoppingConfig(rule="svip").filled_from(None) == StoppingConfig(None, 1, 20, "svip")


def test_a_head_may_recommend_another_rule_and_a_threshold_means_specdecpp():
    head = AcceptanceHeadConfig(rule="cost-aware", rule_settings={"mean_acceptance": 0.4}, min_draft_length=1)
    filled = StoppingConfig().filled_from(head)
    assert filled == StoppingConfig(None, 1, 20, "cost-aware", {"mean_acceptance": 0.4})
    assert filled.new_rule().rule.acceptance.at(1) == pytest.approx(0.4)
    assert StoppingConfig(0.5).filled_from(head) == StoppingConfig(0.5, 1, 20, "specdec++")


def test_it_goes_to_json_and_back():
    inner = {"rule": "svip", "threshold": 0.4, "settings": {"scale": 0.2}}
    config = StoppingConfig(None, 2, 9, "any", {"rules": [inner, {"rule": "specdec++", "threshold": 0.6}]})
    again = StoppingConfig(**json.loads(json.dumps(config.to_dict())))
    assert again == config
    rule = again.new_rule().rule
    assert isinstance(rule, AnyOf) and isinstance(rule.rules[0], EntropyBound) and rule.rules[0].scale == 0.2
    assert isinstance(rule.rules[1], AcceptanceThreshold) and rule.rules[1].threshold == 0.6
    svip = StoppingConfig(rule="svip", threshold=0.4).to_dict()
    assert StoppingConfig(rule="all", settings={"rules": [svip]}).new_rule().rule.rules[0].threshold == 0.4
    costs = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.1]}
    assert StoppingConfig(rule="cost-aware", settings={"costs": costs}).new_rule().rule.costs.round(
        1
    ) == pytest.approx(1.2)


def test_only_rules_that_read_the_heads_judgement_need_a_head():
    settings = {"fixed": {"length": 3}, "any": {"rules": [{"rule": "svip"}]}, "all": {"rules": [{"rule": "svip"}]}}
    needy = {
        n
        for n in RULES
        if StoppingConfig(rule=n, settings=settings.get(n, {}), threshold=0.5 if n == "specdec++" else None).needs_head
    }
    assert needy == {"specdec++", "cost-aware"}
    assert not StoppingConfig(rule="cost-aware", settings={"uses_head": False}).needs_head


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rule": "best"}, "there is no rule 'best': choose one of adaedl, all"),
        (
            {"rule": "svip", "settings": {"gamma": 1}},
            "the rule 'svip' has no gamma: its settings are threshold, scale",
        ),
        ({"rule": "fixed"}, r"the rule 'fixed' needs a length: give settings=\{'length': ...\}"),
        ({"rule": "fixed", "settings": {"length": "3"}}, "length of the rule 'fixed' must be a whole number, got '3'"),
        ({"rule": "fixed", "settings": {"length": True}}, "must be a whole number, got True"),
        ({"rule": "svip", "settings": {"scale": None}}, "scale of the rule 'svip' must be a number, got None"),
        ({"rule": "cost-aware", "settings": {"uses_head": 0}}, "uses_head .* must be True or False, got 0"),
        ({"rule": "cost-aware", "settings": {"costs": {"draft": 1}}}, "costs are seconds, like .* got {'draft': 1}"),
        ({"rule": "goodput", "settings": {"costs": 0.1}}, "costs are seconds, like"),
        ({"rule": "any", "settings": {"rules": ["svip"]}}, "as a dictionary, like .* got 'svip'"),
        ({"rule": "any", "settings": {"rules": [{"threshold": 0.3}]}}, "as a dictionary, like"),
        ({"rule": "all", "settings": {"rules": [{"rule": "svip", "scale": 1}]}}, "as a dictionary, like"),
        ({"rule": "all", "settings": {"rules": [{"rule": "svip", "threshold": 3}]}}, "threshold must be a number"),
        ({"rule": "all", "settings": {"rules": [{"rule": "best"}]}}, "there is no rule 'best'"),
        ({"rule": "all", "settings": {"rules": [{"rule": "specdec++"}]}}, "needs a threshold: give threshold="),
        (
            {"rule": "all", "settings": {"rules": [{"rule": "svip", "max_draft_length": 3}]}},
            "bounds of a draft's length belong beside rule='all'",
        ),
        ({"rule": "heuristic", "threshold": 0.3}, "has no threshold"),
        ({"rule": "any"}, r"the rule 'any' needs settings=\{'rules'"),
        ({"settings": {"length": 3}}, "belong to a rule"),
        ({"rule": "fixed", "settings": [3]}, r"by name, like \{'length': 3\}, got \[3\]"),
        ({"rule": "fixed", "settings": {"length": -1}}, "length counts drafted tokens"),
    ],
)
def test_rules_and_settings_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StoppingConfig(**arguments)


def test_a_setting_of_a_rule_among_the_arguments_is_told_where_it_goes():
    meant = r"of the rules cape, fixed, heuristic: write StoppingConfig\(rule='cape', settings=\{'length': 3\}\)"
    with pytest.raises(TypeError, match="StoppingConfig has no length, a setting " + meant):
        StoppingConfig(length=3)
    with pytest.raises(TypeError, match="has no treshold: it takes threshold, min_draft_length"):
        StoppingConfig(treshold=0.5)
    assert list(inspect.signature(StoppingConfig).parameters)[:2] == ["threshold", "min_draft_length"]
