"""The law of the library: the output is the target's own."""

from itertools import pairwise

import pytest
import torch
from conftest import CONFIGS, prompt, similar_draft, tiny_model, with_head
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from hf_specdecpp import SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.stopping import RULES

THRESHOLDS = (0.0, 0.3, 0.7, 1.0)


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request):
    target = tiny_model(request.param)
    return target, with_head(similar_draft(target, noise=0.4 if request.param == "gpt2" else 0.15))


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_greedy_output_is_the_targets_token_for_token(pair, threshold):
    target, draft = pair
    with collect_stats() as stats:
        for seed, (length, new_tokens) in enumerate([(1, 2), (3, 40), (19, 25)]):
            ids = prompt(length, seed)
            plain = target.generate(ids, max_new_tokens=new_tokens, do_sample=False)
            ours = target.generate(
                ids, max_new_tokens=new_tokens, do_sample=False, assistant_model=draft,
                candidate_generator=SpecDecPP, stopping_config=StoppingConfig(threshold=threshold),
            )  # fmt: skip
            assert ours.tolist() == plain.tolist()
    # The comparison would mean little if nothing had been drafted, accepted and rejected.
    assert 0 < stats.accepted < stats.drafted


def test_bounds_of_the_draft_do_not_change_the_output(target, draft):
    ids = prompt(5)
    plain = target.generate(ids, max_new_tokens=30, do_sample=False)
    for low, high in [(1, 1), (1, 2), (2, 3), (4, 9), (30, 60)]:
        settings = StoppingConfig(0.5, min_draft_length=low, max_draft_length=high)
        ours = target.generate(
            ids, max_new_tokens=30, do_sample=False, assistant_model=draft, candidate_generator=SpecDecPP,
            stopping_config=settings,
        )  # fmt: skip
        assert ours.tolist() == plain.tolist()


# Sampling. Attention and MLP are silenced, so the next token depends on the last one only: a generation is a Markov
# chain with a known transition matrix, and one call of `generate` yields thousands of independent transitions.

STATES = 6
FALSE_ALARM = 1e-4


def markov_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=STATES, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.mul_(18)
    return model


@pytest.fixture(scope="module")
def chain():
    target = markov_model(0)
    other = markov_model(5)
    draft = markov_model(0)
    with torch.no_grad():  # between the two: it accepts often, and its errors are large
        draft.lm_head.weight.copy_(0.5 * (target.lm_head.weight + other.lm_head.weight))
    decoding = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return target, with_head(draft, decoding=decoding)


def transition_matrix(model, **warpers) -> torch.Tensor:
    """(state, next state)."""
    from hf_specdecpp.decoding import Decoding

    with torch.no_grad():
        logits = model(torch.arange(STATES)[:, None]).logits[:, -1].float()
    return Decoding(True, **warpers).processed(logits).softmax(-1).double()


def p_value(target, tokens: list[int], **warpers) -> float:
    """Of Pearson's chi-square test that `tokens` are a walk of the target's chain; 0 for an impossible step."""
    expected = transition_matrix(target, **warpers)
    observed = torch.zeros(STATES, STATES, dtype=torch.double)
    for a, b in pairwise(tokens):
        observed[a, b] += 1
    expected = expected * observed.sum(1, keepdim=True)
    if (observed[expected == 0] > 0).any():
        return 0.0
    usable = expected >= 5
    statistic = ((observed - expected) ** 2 / expected)[usable].sum().item()
    freedom = (usable.sum(1) - 1).clamp(min=0).sum().item()
    return chi2.sf(statistic, freedom)


def walk(target, draft, steps: int = 2500, generator=SpecDecPP, seed: int = 0, stopping_config=None, **warpers):
    set_seed(seed)
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | warpers
    output = target.generate(
        torch.tensor([[0]]), max_new_tokens=steps, do_sample=True, assistant_model=draft,
        candidate_generator=generator, stopping_config=stopping_config, **settings,
    )  # fmt: skip
    return output[0].tolist()


@pytest.mark.parametrize("threshold", (0.0, 0.4, 1.0))
def test_sampled_output_has_the_targets_distribution(chain, threshold):
    """Chi-square over all transitions, with a false-alarm rate of 1e-4 a case."""
    target, draft = chain
    with collect_stats() as stats:
        tokens = walk(target, draft, stopping_config=StoppingConfig(threshold, max_draft_length=6))
    assert p_value(target, tokens, top_k=0) > FALSE_ALARM
    assert 0.2 < stats.acceptance_rate < 0.95


def test_sampling_behind_warpers_has_the_warped_distribution(chain):
    target, draft = chain
    warpers = {"temperature": 1.4, "top_k": 4}
    tokens = walk(target, draft, stopping_config=StoppingConfig(0.4), **warpers)
    assert p_value(target, tokens, **warpers) > FALSE_ALARM
    assert p_value(target, tokens, top_k=0) < FALSE_ALARM  # and not the unwarped one


COSTS = {"draft_seconds": 0.1, "verify_seconds": [1.0, 1.05, 1.1]}
EVERY_RULE = {
    "adaedl": {},
    "all": {"rules": [{"rule": "svip", "threshold": 0.2}, {"rule": "confidence", "threshold": 0.6}]},
    "any": {"rules": [{"rule": "svip", "threshold": 0.5}, {"rule": "specdec++", "threshold": 0.4}]},
    "confidence": {},
    "cost-aware": {"costs": COSTS},
    "cumulative-confidence": {},
    "drop-in": {"costs": COSTS},
    "fixed": {"length": 3},
    "goodput": {"costs": COSTS},
    "heuristic": {"length": 3},
    "svip": {},
}


def test_every_rule_is_here():
    assert set(EVERY_RULE) | {"specdec++"} == set(RULES)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_no_rule_changes_the_distribution(chain, rule):
    """The same chi-square test, with a false-alarm rate of 1e-4 a rule; each draws a lot and is rejected often."""
    target, draft = chain
    settings = StoppingConfig(rule=rule, settings=EVERY_RULE[rule], max_draft_length=8)
    with collect_stats() as stats:
        tokens = walk(target, draft, stopping_config=settings)
    assert p_value(target, tokens, top_k=0) > FALSE_ALARM
    assert stats.drafted > 200 and 0.1 < stats.acceptance_rate < 0.98


class DropsItsOwnToken(SpecDecPP):
    """The mistake that the rule must never make: it takes back a drawn token because it was not the likeliest."""

    def get_candidates(self, input_ids, **kwargs):
        candidate_ids, logits = super().get_candidates(input_ids, **kwargs)
        if logits is not None and logits.shape[1] > 1 and candidate_ids[0, -1] != logits[0, -1].argmax():
            return candidate_ids[:, :-1], logits[:, :-1]
        return candidate_ids, logits


def test_dropping_a_drawn_token_by_its_own_score_is_caught(chain):
    """The negative control: the same chi-square test must reject a biased rule (p about 1e-12, whatever the seed)."""
    target, draft = chain
    pairs = StoppingConfig(rule="fixed", settings={"length": 2})
    tokens = walk(target, draft, steps=5000, generator=DropsItsOwnToken, stopping_config=pairs)
    assert p_value(target, tokens, top_k=0) < FALSE_ALARM
