"""What proposes without a model: lookups, the table of successors, and the tree that all sources share."""

import random
from collections import Counter

import pytest
import torch
from transformers import LogitsProcessorList

from hf_specdecpp.decoding.law import Law
from hf_specdecpp.decoding.mode import Decoding
from hf_specdecpp.decoding.sequences import Sequences
from hf_specdecpp.drafting.draft import Node
from hf_specdecpp.drafting.lookup import Lookup, LookupStore
from hf_specdecpp.drafting.mixture import first_chain, merge, survive
from hf_specdecpp.drafting.ngrams import NgramIndex
from hf_specdecpp.drafting.recycling import MOST_BYTES, Recycling, RecyclingTable
from hf_specdecpp.stopping import CostProfile, DraftedToken, Plan
from hf_specdecpp.stopping.forest import Forest

VOCAB = 64


def texts_of(*texts, max_length=400):
    """Sequences of the texts, padded on the left, and a greedy law."""
    longest = max(map(len, texts))
    padding = [longest - len(text) for text in texts]
    ids = torch.tensor([[0] * pad + text for pad, text in zip(padding, texts, strict=True)])
    sequences = Sequences(ids, padding, max_length)
    return sequences, Law(LogitsProcessorList(), Decoding(), sequences, VOCAB)


def paths(nodes: list[Node]) -> list[list[int]]:
    """From the text to each leaf."""
    parents = {id(node.parent) for node in nodes}
    return [[before.id for before in node.path] for node in nodes if id(node) not in parents]


# Lookups.


def test_what_followed_the_longest_ngram_is_proposed():
    sequences, law = texts_of([9, 1, 2, 3, 4, 5, 7, 2, 3, 8, 6, 1, 2, 3])
    nodes = Lookup(sequences, law, length=3).propose(0, 10)
    # "1 2 3" stood once before, and what followed it is proposed; "2 3" is not asked.
    assert paths(nodes) == [[4, 5, 7]]
    assert [n.token.position for n in nodes] == [1, 2, 3]
    assert {(n.token.probability, n.token.evidence) for n in nodes} == {(1, 3)}
    assert {n.token.source for n in nodes} == {"lookup"}


def test_several_continuations_share_the_probability():
    """Behind "2 3" came 4 twice and 8 once; the place whose past agrees furthest comes first."""
    sequences, law = texts_of([2, 3, 4, 6, 2, 3, 4, 5, 1, 2, 3, 8, 7, 9, 1, 2, 3])
    one = Lookup(sequences, law, length=2, max_ngram=2, branches=1).propose(0, 10)
    assert paths(one) == [[8, 7]] and one[0].token.evidence == 3
    both = Lookup(sequences, law, length=2, max_ngram=2, branches=2).propose(0, 10)
    # Behind "2 3 4" came 5 and 6, each once, and 5 is newer.
    assert paths(both) == [[8, 7], [4, 5], [4, 6]]
    probabilities = {tuple(before.id for before in n.path): n.token.probability for n in both}
    assert probabilities == {
        (8,): pytest.approx(1 / 3), (8, 7): 1, (4,): pytest.approx(2 / 3), (4, 5): 1 / 2, (4, 6): 1 / 2
    }  # fmt: skip
    assert [n.token.rank for n in both] == [1, 2, 1, 1, 2]


def test_limits_and_texts_without_a_match():
    sequences, law = texts_of([1, 2, 3, 1, 2], [4, 5, 6, 7, 8])
    lookup = Lookup(sequences, law)
    assert paths(lookup.propose(0, 2)) == [[3, 1]] and lookup.propose(1, 5) == []
    sequences, law = texts_of([3])
    assert Lookup(sequences, law).propose(0, 5) == []


def test_padding_is_no_text():
    """Two padding tokens and a prompt that begins with the padding token itself."""
    sequences, law = texts_of([5, 6, 7, 5], [0, 5])
    lookup = Lookup(sequences, law)
    assert paths(lookup.propose(0, 4)) == [[6, 7, 5, 6]] and lookup.propose(1, 4) == []


@pytest.mark.parametrize("seed", range(5))
def test_an_index_that_grew_is_one_built_anew(seed):
    r = random.Random(seed)
    sequences, law = texts_of([r.randrange(4) for _ in range(9)], [r.randrange(4) for _ in range(14)])
    grown = Lookup(sequences, law, branches=3)
    for _ in range(25):
        for row in (0, 1):
            sequences.append(row, [r.randrange(4) for _ in range(r.randrange(1, 5))])
        anew = Lookup(sequences, law, branches=3)
        for row in (0, 1):
            found, expected = grown.propose(row, 6), anew.propose(row, 6)
            assert paths(found) == paths(expected)
            assert [n.token for n in found] == [n.token for n in expected]


@pytest.mark.parametrize("max_ngram", (1, 2, 4, 9))
def test_the_longest_ngram_that_stood_before_is_the_one_that_is_looked_up(max_ngram):
    """As transformers does with the same number: from `max_matching_ngram_size` tokens down to 1, the first found."""
    r = random.Random(0)
    for _ in range(200):
        text = [r.randrange(5) for _ in range(r.randrange(2, 30))]
        sequences, law = texts_of(text)
        firsts = [
            node.id for node in Lookup(sequences, law, 3, max_ngram, branches=5).propose(0, 9) if not node.parent
        ]
        for n in range(min(max_ngram, len(text) - 1), 0, -1):
            places = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]]
            if places:
                break
        assert set(firsts) == {text[i] for i in places[-NgramIndex.most_places :]}


@pytest.mark.parametrize("asked", ({"length": 0}, {"max_ngram": 0}, {"length": -3}))
def test_lookups_of_nothing_are_told_so(asked):
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens and max_matching_ngram_size count tokens"):
        Lookup(*texts_of([1, 2]), **asked)


def test_the_store_is_looked_up_beside_the_text():
    sequences, law = texts_of([5, 1, 2, 3, 7, 1, 2, 3])
    store = LookupStore()
    store.add([9, 7, 1, 2, 3, 8, 8])
    store.add(torch.tensor([1, 2, 3, 6]))
    nodes = Lookup(sequences, law, length=2, branches=3, store=store).propose(0, 9)
    # Of equal agreement what is newer: the text, then the newest of the store.
    assert [n.id for n in nodes] == [8, 7, 6, 8, 1]
    assert [n.token.evidence for n in nodes[:3]] == [4, 3, 3]
    assert all(n.token.source == "lookup" for n in nodes)
    sequences, law = texts_of([4, 1, 2])  # nothing in the text itself
    assert paths(Lookup(sequences, law, length=2, branches=1, store=store).propose(0, 9)) == [[3, 6]]


def test_sampling_puts_what_the_noise_favours_first():
    """The seen shares are a distribution; under the seeded coupling its draw is the first proposal."""
    text, firsts = [1, 2, 9, 1, 2, 9, 1, 2, 9, 1, 2, 8, 1, 2], Counter()
    sequences, _ = texts_of(text)
    for seed in range(400):
        torch.manual_seed(seed)
        law = Law(LogitsProcessorList(), Decoding(True), sequences, VOCAB)
        firsts[Lookup(sequences, law, length=1).propose(0, 3)[0].id] += 1
        weighed = torch.zeros(VOCAB)
        weighed[[8, 9]] = torch.tensor([0.25, 0.75])
        assert Lookup(sequences, law, length=1).propose(0, 3)[0].id == (weighed / law.noise.at(0)[0]).argmax()
    assert firsts[9] / 400 == pytest.approx(0.75, abs=0.1)


def test_sampling_asks_the_noise_of_each_position():
    """Behind "1 2" came 9 alone, and behind that 4 and 5."""
    sequences, _ = texts_of([1, 2, 9, 4, 1, 2, 9, 5, 1, 2])
    seconds = Counter()
    for seed in range(200):
        torch.manual_seed(seed)
        law = Law(LogitsProcessorList(), Decoding(True), sequences, VOCAB)
        second = Lookup(sequences, law, length=2, branches=1).propose(0, 3)[1].id
        assert second == min((4, 5), key=lambda token: law.noise.at(1)[0, token])
        seconds[second] += 1
    assert min(seconds[4], seconds[5]) > 60


# The table of successors.


@pytest.mark.parametrize(("vocab_size", "k"), [(49152, 8), (152064, 3), (6, 6), (10_000_000, 1)])
def test_the_table_stays_small(vocab_size, k):
    table = RecyclingTable(vocab_size)
    assert table.k == k
    assert vocab_size > 500_000 or table.successors.nbytes <= MOST_BYTES == 2_000_000


def test_it_proposes_what_the_target_thought_of_before():
    sequences, _ = texts_of([3, 7])
    table = Recycling(sequences, RecyclingTable(VOCAB), most=30, depth=3)
    assert table.propose(0, 5) == []
    said = torch.full((3, VOCAB), -9.0)
    for row, best in enumerate(([4, 5, 6], [8, 9, 10], [11, 12, 13])):
        said[row, best] = torch.tensor([3.0, 2.0, 1.0])
    table.learn(torch.tensor([7, 4, 8]), said)
    nodes = table.propose(0, 5)
    assert [n.id for n in nodes[:3]] == [4, 5, 6] and len(nodes) <= 30
    assert [4, 8, 11] in paths(nodes) and max(n.token.position for n in nodes) == 3
    table.most = 9
    assert [n.id for n in table.propose(0, 5)] == [n.id for n in nodes[:9]]
    assert all(n.token.evidence == n.token.rank for n in nodes)
    assert {n.token.position for n in table.propose(0, 1)} == {1}
    table.learn(torch.tensor([7]), said[1:2])  # the newest word counts
    assert [n.id for n in table.propose(0, 1)][:3] == [8, 9, 10]


# One tree of all sources.


def chain(*tokens, source="model", evidence=0, probability=0.5):
    nodes: list[Node] = []
    for depth, token in enumerate(tokens, start=1):
        seen = DraftedToken(depth, probability, source=source, evidence=evidence)
        nodes.append(Node(0, nodes[-1] if nodes else None, seen, token))
    return nodes


def test_equal_tokens_in_equal_places_are_one_node():
    nodes = chain(1, 2, 3)
    merge(nodes, chain(1, 2, 4, 5, source="lookup", evidence=6))
    merge(nodes, chain(1, 7, source="recycling", evidence=1))
    assert paths(nodes) == [[1, 2, 3], [1, 2, 4, 5], [1, 7]] and len(nodes) == 6
    # The lookup's word on a token of the model is kept, that of the table is not.
    assert [(n.token.source, n.token.evidence) for n in nodes] == [
        ("model", 6), ("model", 6), ("model", 0), ("lookup", 6), ("lookup", 6), ("recycling", 1)
    ]  # fmt: skip
    again = list(nodes)
    merge(nodes, chain(1, 2, 4, source="lookup", evidence=6))
    assert nodes == again


def test_parents_come_before_children_after_a_merge():
    r = random.Random(0)
    for _ in range(50):
        nodes: list[Node] = []
        for source in ("model", "lookup", "recycling"):
            for _ in range(3):
                merge(nodes, chain(*(r.randrange(3) for _ in range(4)), source=source))
        places = {id(node): i for i, node in enumerate(nodes)}
        assert all(node.parent is None or places[id(node.parent)] < i for i, node in enumerate(nodes))
        assert len({(id(node.parent), node.id) for node in nodes}) == len(nodes)


def test_survival_multiplies_along_paths():
    nodes = chain(1, 2, 3)
    merge(nodes, chain(1, 5, probability=0.25))
    survive(nodes, Plan(factor=lambda token: token.probability))
    assert [node.survival for node in nodes] == [0.5, 0.25, 0.125, 0.125]


def test_a_rule_of_chains_takes_the_first_proposal():
    nodes = chain(1, 2, 3, source="lookup")
    merge(nodes, chain(1, 4, source="lookup"))
    assert [n.id for n in first_chain(nodes, Plan(2))] == [1, 2]
    assert [n.id for n in first_chain(nodes, Plan())] == [1, 2, 3]


def test_the_model_drafts_where_it_adds_more_than_its_price():
    def plan(**more):
        settings = {"costs": CostProfile(0.1, (1.0,)), "drafted": 2.0, "price": 1.0, "tries": False}
        return Forest(**settings | more)

    sure, unsure = chain(1, 2, source="lookup"), chain(3, source="lookup")
    sure[0].survival, unsure[0].survival = 0.9, 0.2
    assert plan().drafts_beside([unsure]) and not plan().drafts_beside([sure])
    assert plan(tries=True).drafts_beside([sure]) and not plan(price=2.5).drafts_beside([[]])
    assert plan(rows=2).drafts_beside([unsure, unsure]) and not plan(rows=2).drafts_beside([sure, unsure])
