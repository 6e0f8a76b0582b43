"""Replay agrees with real runs round by round."""

import pytest
import torch
from conftest import prompt, similar_draft, with_head

from hf_specdecpp import AcceptanceHeadConfig, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.replay import oracle, replay
from hf_specdecpp.stopping import CostProfile
from hf_specdecpp.trace import Trace, judged, record_trace

COSTS = CostProfile(0.1, (1.0, 1.05, 1.1, 1.3))
PROFILE = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.05, 1.1, 1.3]}
RECOMMENDED = AcceptanceHeadConfig()  # that of the random head
CONFIGS = [
    StoppingConfig(rule="fixed", settings={"length": 3}),
    StoppingConfig(rule="heuristic", settings={"length": 5}),
    StoppingConfig(rule="confidence", threshold=0.4),
    StoppingConfig(rule="confidence", threshold=0.2, settings={"adapt": False}),
    StoppingConfig(rule="cumulative-confidence", threshold=0.8),
    StoppingConfig(rule="svip", threshold=0.6),
    StoppingConfig(rule="adaedl", threshold=0.2),
    StoppingConfig(rule="specdec++", threshold=0.5, min_draft_length=2),
    StoppingConfig(rule="goodput", settings={"costs": PROFILE}),
    StoppingConfig(rule="drop-in", settings={"costs": PROFILE}),
    StoppingConfig(rule="cost-aware", settings={"costs": PROFILE}),
    StoppingConfig(rule="cost-aware", settings={"costs": PROFILE, "uses_head": False}),
    StoppingConfig(
        rule="any", settings={"rules": [{"rule": "svip", "threshold": 0.7}, {"rule": "specdec++", "threshold": 0.7}]}
    ),
    StoppingConfig(
        rule="all", settings={"rules": [{"rule": "svip", "threshold": 0.5}, {"rule": "confidence", "threshold": 0.4}]}
    ),
]


def named(config: StoppingConfig) -> str:
    return f"{config.rule}{'-no-head' if config.settings.get('uses_head') is False else ''}"


HEADS = {"after": {}, "before": {"reads": "before", "features": ["entropy", "position"]}}


def recorded(target, draft):
    prompts = [prompt(5 + seed, seed) for seed in range(4)]
    return draft, prompts, [record_trace(target, draft, ids, Decoding(), 40) for ids in prompts]


@pytest.fixture(scope="module")
def by_head(target):
    return {name: recorded(target, with_head(similar_draft(target), **head)) for name, head in HEADS.items()}


@pytest.fixture(params=list(HEADS))
def greedy(by_head, request):
    draft, prompts, found = by_head[request.param]
    return draft, prompts, [trace for trace, _ in found]


def test_a_trace_judged_by_another_head_is_the_trace_of_that_head(by_head):
    for name, other in (("after", "before"), ("before", "after")):
        layer = acceptance_layer(by_head[name][0])
        head, config = layer.acceptance_head["default"], layer.head_configs["default"]
        for (trace, states), (expected, _) in zip(by_head[other][2], by_head[name][2], strict=True):
            found = judged(trace, states, head, config)
            assert found.judged_late == expected.judged_late == (name == "after")
            for ours, theirs in zip(found.drafts, expected.drafts, strict=True):
                assert [t.position for t in ours.tokens] == [t.position for t in theirs.tokens]
                for a, b in zip(ours.tokens, theirs.tokens, strict=True):
                    assert a.acceptance == pytest.approx(b.acceptance, abs=1e-2)


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_replay_and_generate_count_the_same(target, greedy, config):
    draft, prompts, traces = greedy
    drafted = 0
    for ids, trace in zip(prompts, traces, strict=True):
        with collect_stats() as stats:
            output = target.generate(
                ids, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config, max_new_tokens=40,
                do_sample=False,
            )  # fmt: skip
        assert output[0, ids.shape[1] :].tolist() == trace.target_ids
        found = replay([trace], config.filled_from(RECOMMENDED).new_rule, COSTS)
        assert (found.rounds, found.tokens, found.drafted) == (stats.rounds, stats.tokens, stats.drafted)
        assert found.accepted == stats.accepted
        drafted += found.drafted
    assert drafted > 0


def test_a_trace_survives_json(greedy):
    for trace in greedy[2]:
        assert Trace.from_json(trace.to_json()) == trace


def test_the_oracle_discards_nothing_and_no_rule_beats_it(greedy):
    best = oracle(greedy[2], COSTS)
    assert best.discard_rate == 0 and best.speedup > 1
    for config in CONFIGS:
        assert replay(greedy[2], config.filled_from(RECOMMENDED).new_rule, COSTS).speedup <= best.speedup + 1e-9


def test_a_rule_that_may_draft_more_than_was_recorded_is_refused(greedy):
    with pytest.raises(ValueError, match="the traces hold drafts of"):
        replay(greedy[2], StoppingConfig(rule="fixed", settings={"length": 30}, max_draft_length=40).new_rule, COSTS)


def test_sampled_traces_accept_as_often_as_sampled_runs(target):
    """The coupling has the law of speculative sampling: mean acceptance within 4 standard errors."""
    draft = with_head(similar_draft(target), decoding={"do_sample": True})
    decoding = Decoding(True, top_k=20)
    torch.manual_seed(0)
    ids = prompt(6)
    config = StoppingConfig(rule="fixed", settings={"length": 4}, min_draft_length=1, max_draft_length=20)
    accepted = drafted = 0
    for _ in range(12):
        with collect_stats() as stats:
            target.generate(
                ids, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config, max_new_tokens=60,
                **decoding.generate_kwargs(),
            )  # fmt: skip
        accepted, drafted = accepted + stats.accepted, drafted + stats.drafted
    traces = [record_trace(target, draft, ids, decoding, 60, max_draft_length=4)[0] for _ in range(12)]
    found = replay(
        traces,
        StoppingConfig(rule="fixed", settings={"length": 4}, min_draft_length=1, max_draft_length=4).new_rule,
        COSTS,
    )
    real, replayed = accepted / drafted, found.accepted / found.drafted
    error = (real * (1 - real) * (1 / drafted + 1 / found.drafted)) ** 0.5
    assert 0.1 < real < 0.9 and abs(real - replayed) < 5 * error
