"""Replay agrees with real runs round by round."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from models import CONFIGS, heard, prompt, similar_draft, tiny_model, with_head

from hf_specdecpp import AcceptanceHeadConfig, DraftingConfig, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.replay import oracle, replay
from hf_specdecpp.evidence.trace import Trace, judged, read_traces, record_trace, record_trees
from hf_specdecpp.stopping import CostProfile, Scope
from hf_specdecpp.training.responses import end_of_sequence, generate_responses

GREEDY = Decoding()
COSTS = CostProfile(0.1, (1.0, 1.05, 1.1, 1.3))
PROFILE = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.05, 1.1, 1.3]}
CHAINS = DraftingConfig(("model",), branches=1)
RECOMMENDED = AcceptanceHeadConfig()  # that of the random head
RULES = [
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


def recorded(target, draft, decoding=GREEDY, max_new_tokens=40, max_draft_length=20, seeds=range(4)):
    prompts = [prompt(5 + seed, seed) for seed in seeds]
    asked = [ids[0].tolist() for ids in prompts]
    responses = generate_responses(target, asked, decoding, max_new_tokens, end_of_sequence(target))
    traces = [
        record_trace(target, draft, ids, response, decoding, max_new_tokens, max_draft_length, seed)
        for seed, (ids, response) in enumerate(zip(asked, responses, strict=True))
    ]
    return draft, prompts, traces


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


@pytest.mark.parametrize("config", RULES, ids=named)
def test_replay_and_generate_count_the_same(target, greedy, config):
    draft, prompts, traces = greedy
    drafted = 0
    for ids, trace in zip(prompts, traces, strict=True):
        with collect_stats() as stats:
            output = target.generate(
                ids, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config, max_new_tokens=40,
                do_sample=False, drafting_config=CHAINS,
            )  # fmt: skip
        assert output[0, ids.shape[1] :].tolist() == trace.target_ids
        found = replay([trace], config.filled_from(RECOMMENDED).new_rule, COSTS)
        assert (found.rounds, found.tokens, found.drafted) == (stats.rounds, stats.tokens, stats.drafted)
        assert found.accepted == stats.accepted
        drafted += found.drafted
    assert drafted > 0


WINDOWED = {"sliding_window": 12, "layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize(
    ("architecture", "changes"), [*((name, {}) for name in CONFIGS), ("qwen3", WINDOWED)], ids=lambda v: str(v)[:20]
)
def test_drafts_side_by_side_are_those_drafted_alone(architecture, changes, monkeypatch):
    """For every architecture, positions in several passes, and outputs beyond a sliding window."""
    monkeypatch.setattr("hf_specdecpp.evidence.trace.DRAFTS_PER_PASS", 7)
    target = tiny_model(architecture, **changes)
    draft, prompts, found = recorded(target, similar_draft(target), max_new_tokens=24, max_draft_length=6, seeds=[0])
    trace = found[0][0]
    known = torch.cat((prompts[0][0], torch.tensor(trace.target_ids)))
    assert len(trace.drafts) == len(trace.target_ids) > 12
    for begin, drafts in enumerate(trace.drafts):
        prefix = known[None, : prompts[0].shape[1] + begin]
        for token in drafts.tokens:
            probabilities = draft(prefix).logits[0, -1].softmax(-1)
            prefix = torch.cat((prefix, probabilities.argmax()[None, None]), dim=-1)
            assert token.probability == pytest.approx(probabilities.max().item(), abs=1e-4)
        left = known[prefix.shape[1] - len(drafts.tokens) :][: len(drafts.tokens)]
        agree = prefix[0, -len(drafts.tokens) :][: len(left)] == left
        assert drafts.accepted == agree.int().cumprod(0).sum()
    assert 0 < sum(d.accepted for d in trace.drafts) < sum(len(d.tokens) for d in trace.drafts)


CHEAP = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.001]}
TREES = [
    StoppingConfig(rule="cost-aware", settings={"costs": CHEAP}),
    StoppingConfig(rule="cost-aware", settings={"costs": CHEAP, "uses_head": False}),
    StoppingConfig(rule="eagle-2", settings={"nodes": 5, "depth": 3}),
    StoppingConfig(rule="cape", settings={"length": 3}),
]


@cache
def trees(sample):
    """A draft and the traces of its trees for two prompts."""
    target = tiny_model()
    draft = with_head(similar_draft(target, 0.3), **HEADS["before"])
    asked = [prompt(5 + seed, seed)[0].tolist() for seed in range(2)]
    return draft, [record_trees(target, draft, ids, Decoding(sample), 30, 2, seed=n) for n, ids in enumerate(asked)]


@pytest.mark.parametrize("config", TREES, ids=named)
@pytest.mark.parametrize("sample", (False, True))
def test_replay_and_generate_count_the_same_in_trees(target, config, sample):
    draft, traces = trees(sample)
    decoding = Decoding(sample)
    drafting = DraftingConfig(("model",), branches=2, max_nodes=6)
    branched = 0
    for seed, trace in enumerate(traces):
        ids = prompt(5 + seed, seed)
        torch.manual_seed(seed)
        bounded = replace(config, max_draft_length=6)
        with heard() as rounds:
            output = target.generate(
                ids, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=bounded, max_new_tokens=30,
                drafting_config=drafting, **decoding.generate_kwargs(),
            )  # fmt: skip
        assert output[0, ids.shape[1] :].tolist() == trace.target_ids
        found = replay([trace], bounded.filled_from(RECOMMENDED).new_rule, COSTS, Scope(1, 2, 6))
        assert found.lengths == [len(each.drafted) for each in rounds]
        assert found.accepted == sum(each.accepted for each in rounds)
        branched += sum(each.parents is not None for each in rounds)
    assert branched > 0


def test_a_trace_survives_json(greedy):
    for trace in greedy[2]:
        assert Trace.from_json(trace.to_json()) == trace


def test_a_line_that_is_no_trace_is_named(tmp_path, greedy):
    path = tmp_path / "traces.jsonl"
    for line in ('{"target_ids": [1]}', greedy[2][0].to_json()[:50], "[]"):
        path.write_text(line)
        with pytest.raises(ValueError, match=r"traces.jsonl' holds a line that is no trace of this version, or half"):
            read_traces(path)


def test_the_oracle_discards_nothing_and_no_rule_beats_it(greedy):
    best = oracle(greedy[2], COSTS)
    assert best.discard_rate == 0 and best.speedup > 1
    for config in RULES:
        assert replay(greedy[2], config.filled_from(RECOMMENDED).new_rule, COSTS).speedup <= best.speedup + 1e-9


def test_hindsight_of_trees_is_that_of_the_chains_in_them(target):
    draft, traces = trees(False)
    chains = [
        record_trace(target, draft, prompt(5 + n, n)[0].tolist(), trace.target_ids, Decoding(), 30, 6)[0]
        for n, trace in enumerate(traces)
    ]
    assert oracle(traces, COSTS) == oracle(chains, COSTS)
    assert any(one.accepted > one.accepted_first for trace in traces for one in trace.drafts)


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
    _, _, found = recorded(target, draft, decoding, 60, 4, seeds=[1] * 12)  # the one prompt, by other draws
    traces = [trace for trace, _ in found]
    found = replay(
        traces,
        StoppingConfig(rule="fixed", settings={"length": 4}, min_draft_length=1, max_draft_length=4).new_rule,
        COSTS,
    )
    real, replayed = accepted / drafted, found.accepted / found.drafted
    error = (real * (1 - real) * (1 / drafted + 1 / found.drafted)) ** 0.5
    assert 0.1 < real < 0.9 and abs(real - replayed) < 5 * error
