"""Speculative sampling by rejection: the target's distribution, and mistakes that the same test must catch."""

import pytest
import torch
from models import heard, slow, with_head
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from hf_specdecpp import DraftingConfig, LookupStore, RecyclingTable, SpecDecPP, StoppingConfig
from hf_specdecpp.decoding import Decoding, verify
from hf_specdecpp.decoding.law import Law
from hf_specdecpp.drafting import model
from hf_specdecpp.drafting.draft import Node
from hf_specdecpp.drafting.informed.config import Eagle3Config
from hf_specdecpp.drafting.informed.dflash import DFlashForCausalLM, DSparkForCausalLM
from hf_specdecpp.drafting.informed.eagle3 import Eagle3ForCausalLM
from hf_specdecpp.stopping import DraftedToken

# Attention and MLP are silenced, so the next token depends on the last one only: a generation is a Markov chain with a
# known transition matrix, and one call of `generate` yields thousands of independent transitions.

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
def pair():
    target, other, draft = markov_model(0), markov_model(5), markov_model(0)
    with torch.no_grad():  # between the two: it accepts often, and its errors are large
        draft.lm_head.weight.copy_(0.5 * (target.lm_head.weight + other.lm_head.weight))
    decoding = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return target, with_head(draft, decoding=decoding)


def transition_matrix(model, **warpers) -> torch.Tensor:
    """(state, next state)."""
    with torch.no_grad():
        logits = model(torch.arange(STATES)[:, None]).logits[:, -1].float()
    return Decoding(True, **warpers).processed(logits).softmax(-1).double()


def p_value(target, texts: torch.Tensor, **warpers) -> float:
    """Of Pearson's chi-square test that `texts` are walks of the target's chain; 0 for an impossible step."""
    expected = transition_matrix(target, **warpers)
    steps = texts[:, :-1] * STATES + texts[:, 1:]
    observed = torch.bincount(steps.flatten(), minlength=STATES**2).view(STATES, STATES).double()
    expected = expected * observed.sum(1, keepdim=True)
    if (observed[expected == 0] > 0).any():
        return 0.0
    usable = expected >= 5
    statistic = ((observed - expected) ** 2 / expected)[usable].sum().item()
    freedom = (usable.sum(1) - 1).clamp(min=0).sum().item()
    return chi2.sf(statistic, freedom)


CHAIN = StoppingConfig(rule="fixed", settings={"length": 3})
TREE = StoppingConfig(rule="eagle-2", settings={"depth": 2, "branches": 3})
COSTS = {"draft_seconds": 0.05, "verify_seconds": [1.0, 1.001]}
COST_AWARE = StoppingConfig(rule="cost-aware", settings={"costs": COSTS})


def walks(target, draft, config, branches=None, sources=None, rows=48, steps=100, seed=0, generator=None, **warpers):
    """Texts of `rows` rows, and the rounds."""
    set_seed(seed)
    drafting = {"drafting_config": DraftingConfig(sources, branches, coupling="rejection")}
    with heard() as rounds:
        texts = target.generate(
            torch.arange(rows)[:, None] % STATES, max_new_tokens=steps, do_sample=True, assistant_model=draft,
            candidate_generator=generator or SpecDecPP, stopping_config=config, **({} if generator else drafting),
            **{"temperature": 1.0, "top_k": 0, "top_p": 1.0} | warpers,
        )  # fmt: skip
    return texts, rounds


CASES = {
    "chain": (CHAIN, {"branches": 1}),
    "chain by the head": (StoppingConfig(0.4, max_draft_length=6), {"branches": 1}),
    "tree": (TREE, {"branches": 3}),
    "wide tree": (StoppingConfig(rule="cape", settings={"length": 2}), {"branches": 5}),
    "tree by its worth": (COST_AWARE, {"branches": 2, "sources": ("model",)}),
    "mixed tree": (COST_AWARE, {"branches": 2, "sources": ("model", "lookup", "recycling")}),
    "chain behind warpers": (CHAIN, {"branches": 1, "temperature": 1.4, "top_k": 4}),
    "more branches than tokens": (TREE, {"branches": 3, "top_k": 2}),
}


SLOW = ("wide tree", "chain behind warpers", "tree by its worth")  # other cases have most of each


@pytest.mark.parametrize(
    "config, settings", [slow(*case) if name in SLOW else case for name, case in CASES.items()], ids=CASES
)
def test_the_output_has_the_targets_distribution(pair, config, settings):
    """Chi-square over all transitions, with a false-alarm rate of 1e-4 a case."""
    texts, rounds = walks(*pair, config, **settings)
    warpers = {name: settings[name] for name in ("temperature", "top_k") if name in settings}
    assert p_value(pair[0], texts, **{"top_k": 0} | warpers) > FALSE_ALARM
    if warpers:  # and not the unwarped one
        assert p_value(pair[0], texts, top_k=0) < FALSE_ALARM
    drafted, accepted = (sum(each.accepted for each in rounds), sum(len(each.drafted) for each in rounds))
    assert 0.02 * accepted < drafted < 0.95 * accepted
    assert any(each.parents is not None for each in rounds) == (settings["branches"] > 1)


def test_a_single_text_has_the_targets_distribution(pair):
    texts, _ = walks(*pair, TREE, rows=1, steps=1200)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM


@pytest.mark.parametrize("config, branches", [(CHAIN, 1), (TREE, 3)], ids=("chain", "tree"))
def test_a_draft_that_reads_the_target_leaves_its_distribution(pair, config, branches):
    """Even one that cannot say one of the tokens."""
    torch.manual_seed(2)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    draft = Eagle3ForCausalLM(Eagle3Config(vocab_size=STATES, draft_vocab_size=5, target_layers=[1], **shape)).eval()
    with torch.no_grad():
        draft.lm_head.weight.mul_(20)
    draft.borrow(pair[0])
    texts, rounds = walks(pair[0], draft, config, branches)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    assert 0.05 < sum(each.accepted for each in rounds) / sum(len(each.drafted) for each in rounds) < 0.95


@pytest.mark.parametrize("kind", (slow(DFlashForCausalLM), DSparkForCausalLM))
@pytest.mark.parametrize("rule, branches", [slow("fixed", 1), ("svip", 1), ("eagle-2", 3)])
def test_a_draft_of_blocks_leaves_the_distribution(pair, kind, rule, branches):
    """How much of a block is verified may depend on tokens before, never on the last itself."""
    torch.manual_seed(2)
    shape = {
        "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "num_hidden_layers": 1, "block_size": 5, "mask_token_id": 0, "markov_rank": 4, "vocab_size": STATES,
    }  # fmt: skip
    draft = kind(kind.config_class(**shape, draft_vocab_size=5, target_layers=[1], enable_confidence_head=False))
    with torch.no_grad():
        draft.lm_head.weight.mul_(20)
        draft.markov_head.markov_w1.weight.mul_(40)
        draft.markov_head.markov_w2.weight.mul_(40)
    draft.eval().borrow(pair[0])
    config = {"fixed": CHAIN, "svip": StoppingConfig(rule="svip"), "eagle-2": TREE}[rule]
    texts, rounds = walks(pair[0], draft, config, branches)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    assert 0.05 < sum(each.accepted for each in rounds) / sum(len(each.drafted) for each in rounds) < 0.95
    assert len({len(each.drafted) for each in rounds}) > 1


def test_lookups_alone_have_the_targets_distribution(pair):
    texts, rounds = walks(pair[0], None, None, rows=24)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM and sum(each.accepted for each in rounds) > 50


def test_what_earlier_generations_left_does_not_change_the_distribution(pair):
    kept = {"lookup_store": LookupStore(), "recycling_table": RecyclingTable(pair[0].config.vocab_size)}
    walks(*pair, COST_AWARE, rows=4, seed=1, **kept)
    texts, rounds = walks(*pair, COST_AWARE, branches=2, **kept)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    assert {token.source for each in rounds for token in each.drafted} >= {"lookup", "recycling"}


class InTransformersLoop(SpecDecPP):
    """A subclass runs transformers' own loop, which samples by rejection."""


@pytest.mark.parametrize("rule", ("adaedl", "confidence", "cumulative-confidence", "specdec++", "svip"))
def test_no_rule_of_transformers_loop_changes_the_distribution(pair, rule):
    settings = StoppingConfig(rule=rule, max_draft_length=6)
    texts, rounds = walks(*pair, settings, rows=1, steps=500, generator=InTransformersLoop)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    assert sum(len(each.drafted) for each in rounds) > 100


# Mistakes, which the same test must reject.


MANY = {"rows": 96, "steps": 80}
PAIRS = StoppingConfig(1.0, 2, 2, rule="cumulative-confidence")


def test_dropping_a_drawn_token_by_its_own_score_is_caught(pair, monkeypatch):
    """As if plans could choose among drawn tokens: one that was not the likeliest is taken back."""

    def likely(draft, plans):
        for nodes in draft.nodes:
            if len(nodes) > 1 and nodes[-1].id != draft.q[id(nodes[-1])].argmax():
                del nodes[-1]

    texts, _ = walks(*pair, PAIRS, branches=1, **MANY)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    monkeypatch.setattr(model, "taken", likely)
    texts, _ = walks(*pair, PAIRS, branches=1, **MANY)
    assert p_value(pair[0], texts, top_k=0) < FALSE_ALARM


def by_hand(forgets=False, keeps=False):
    """Recursive rejection of drawn siblings as its paper has it, with or without its two steps behind a rejection."""

    def verifier(nodes, parents, q, p):
        path, at = [], -1
        while True:
            r, left = p[at + 1], None
            for number, parent in enumerate(parents):
                if parent != at:
                    continue
                x, left = nodes[number].id, q[id(nodes[number])] if left is None else left
                if torch.rand(()) * left[x] < r[x]:
                    path.append(number)
                    break
                if not forgets:
                    r = (r - left).clamp(min=0)
                    r = r / r.sum()
                if not keeps:
                    left = left.clone()
                    left[x] = 0
                    left = left / left.sum()
            if path[-1:] == [at] or not path or parents[path[-1]] != at:
                return path, r
            at = path[-1]

    return verifier


def with_replacement(self, scores, rows, ahead, count=1):
    p = scores.softmax(-1)
    return torch.multinomial(p, count, replacement=True), p


@pytest.mark.parametrize(
    ("mistake", "verifier", "replaces"),
    [
        (False, by_hand(), False),
        (False, by_hand(keeps=True), True),  # siblings with replacement, verified as such
        (True, by_hand(forgets=True), False),
        (True, by_hand(), True),
    ],
    ids=("right", "right with replacement", "residual", "drawn with, verified without"),
)
def test_mistakes_with_siblings_are_caught(pair, monkeypatch, mistake, verifier, replaces):
    """What the verifier does behind a rejected sibling matters: the residual, and the draft's law that is left."""
    monkeypatch.setattr(verify, "recursive_rejection", verifier)
    if replaces:
        monkeypatch.setattr(Law, "ranked", with_replacement)
    texts, _ = walks(pair[0], markov_model(5), TREE, branches=2, **MANY)  # a draft that is rejected often
    assert (p_value(pair[0], texts, top_k=0) < FALSE_ALARM) == mistake


def test_noise_that_draft_and_target_share_is_caught_where_it_is_verified_by_rejection(pair, monkeypatch):
    """Half of either coupling: a token is accepted if u < p/q, and else the target chooses under the shared noise."""
    noise, laws, by_rejection = {}, set(), verify.recursive_rejection

    def of(law, row, step):
        if step not in noise:
            noise[step] = torch.empty(len(law.sequences.texts), STATES).exponential_()
        return noise[step][row]

    def under_noise(self, scores, rows, ahead, count=1):
        laws.add(self)
        p = scores.softmax(-1)
        steps = [self.sequences.generated(row) + more for row, more in zip(rows, ahead or [0] * len(p), strict=True)]
        shared = torch.stack([of(self, row, step) for row, step in zip(rows, steps, strict=True)])
        return (p / shared).topk(count).indices, p

    def rejection_under_noise(nodes, parents, q, p):
        path, rest = by_rejection(nodes, parents, q, p)
        if not nodes:
            return path, rest
        [law], row, behind = laws, nodes[0].row, p[path[-1] + 1 if path else 0]
        own = (behind / of(law, row, law.sequences.generated(row) + len(path))).argmax()
        return path, torch.eye(STATES)[own]

    one = StoppingConfig(rule="fixed", settings={"length": 1})
    texts, _ = walks(*pair, one, branches=1)
    assert p_value(pair[0], texts, top_k=0) > FALSE_ALARM
    monkeypatch.setattr(Law, "ranked", under_noise)
    monkeypatch.setattr(verify, "recursive_rejection", rejection_under_noise)
    texts, _ = walks(*pair, one, branches=1)
    assert p_value(pair[0], texts, top_k=0) < FALSE_ALARM


# The verifier alone.


def siblings(tokens, parent=None, depth=1):
    return [Node(0, parent, DraftedToken(depth, rank=rank), token) for rank, token in enumerate(tokens, start=1)]


@pytest.mark.parametrize("proposed", (0, 1, 2))
def test_the_verifier_yields_the_targets_law_over_two_levels(proposed):
    """Two drawn siblings, a drawn child behind the first, and some that are proposed for certain."""
    torch.manual_seed(0)
    p, q = torch.randn(4, 5).mul(1.5).softmax(-1), torch.randn(2, 5).mul(1.5).softmax(-1)
    counts, trials = torch.zeros(5, 5), 6000
    for _ in range(trials):
        first = siblings((q[0] / torch.empty(5).exponential_()).topk(2).indices.tolist())
        child = siblings(torch.multinomial(q[1], 1).tolist(), first[0], 2)
        certain = [n for n in siblings(range(proposed)) if n.id not in (first[0].id, first[1].id)]
        nodes = [*first, *child, *certain]
        parents = [-1 if n.parent is None else 0 for n in nodes]
        law = {id(n): q[0] for n in first} | {id(n): q[1] for n in child}
        # What the target says depends on the token alone: p[0] behind the text, p[1 + t % 3] behind the token t.
        behind = torch.stack([p[0], *(p[1 + n.id % 3] for n in nodes)])
        path, rest = verify.recursive_rejection(nodes, parents, law, behind)
        said = [nodes[i].id for i in path] + torch.multinomial(rest, 1).tolist()
        if len(said) < 2:
            said += torch.multinomial(p[1 + said[0] % 3], 1).tolist()
        counts[said[0], said[1]] += 1
    expected = trials * p[0][:, None] * p[1 + torch.arange(5) % 3]
    assert chi2.sf(((counts - expected) ** 2 / expected).sum().item(), 24) > FALSE_ALARM


def test_a_draft_that_is_the_target_is_accepted_whole():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.2, 0.2]])
    first = siblings([1])
    second = siblings([2], first[0], 2)
    law = {id(first[0]): p[0], id(second[0]): p[1]}
    for _ in range(50):
        path, rest = verify.recursive_rejection([*first, *second], [-1, 0], law, p)
        assert path == [0, 1] and torch.equal(rest, p[2])
