"""The verifier's walk, by hand."""

import pytest
import torch
from models import prompt, similar_draft

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.decoding.verify import normalised, walk
from hf_specdecpp.drafting.draft import Draft, Node
from hf_specdecpp.stopping import DraftedToken


def tree(*nodes: tuple[int, int]) -> tuple[list[Node], list[int]]:
    """From the parent's number and the token of each node."""
    made: list[Node] = []
    for parent, token in nodes:
        before = None if parent < 0 else made[parent]
        made.append(Node(0, before, DraftedToken(1 if before is None else before.token.position + 1), token))
    return made, [parent for parent, _ in nodes]


TREE = tree((-1, 5), (-1, 6), (0, 7), (0, 8), (1, 7), (3, 9))


def test_it_follows_the_targets_own_choices():
    # Behind the text and behind each of the six nodes.
    assert walk(*TREE, [5, 8, 0, 0, 9, 0, 1]) == [0, 3, 5]
    assert walk(*TREE, [6, 8, 7, 0, 9, 4, 1]) == [1, 4]
    assert walk(*TREE, [5, 6, 7, 0, 9, 0, 1]) == [0]
    assert walk(*TREE, [7, 8, 7, 0, 9, 0, 1]) == []
    assert walk([], [], [3]) == []


def test_a_token_among_other_nodes_children_is_none_of_its_own():
    """7 follows both roots; only the one behind the accepted root counts."""
    assert walk(*TREE, [6, 7, 7, 0, 0, 0, 0]) == [1, 4]


def test_shapes_of_a_draft():
    nodes, parents = TREE
    chain, _ = tree((-1, 3), (0, 4))
    draft = Draft([nodes, chain], ["depth", "depth"])
    assert draft.parents == [parents, [-1, 0]] and draft.most == 6 and not draft.is_chain
    assert draft.ids().tolist() == [[5, 6, 7, 8, 7, 9], [3, 4, 0, 0, 0, 0]]
    assert Draft([chain, []], ["length", "no_room"]).is_chain and [n.id for n in nodes[5].path] == [5, 8, 9]


def test_what_is_left_is_a_distribution():
    left = normalised(torch.tensor([0.3, -0.2, 0.1]), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(left, torch.tensor([0.75, 0.0, 0.25]))
    otherwise = torch.tensor([0.0, 1.0])
    assert torch.equal(normalised(torch.tensor([0.0, -1e-9]), otherwise), otherwise)


@pytest.mark.parametrize("branches", (1, 3), ids=("chain", "tree"))
@pytest.mark.parametrize(
    "mode",
    ({"do_sample": False}, {"do_sample": True, "top_k": 20}, {"do_sample": False, "repetition_penalty": 1.3}),
    ids=("greedy", "sampling", "processed"),
)
@pytest.mark.parametrize("rows", (1, 3))
def test_choosing_at_once_as_on_an_accelerator_and_in_turn_are_the_same(target, monkeypatch, rows, mode, branches):
    """The same text as plain decoding's, the same scores, and the same rounds."""
    inputs = torch.cat([prompt() + row for row in range(rows)])
    config = StoppingConfig(None, 1, 3, "eagle-2", {"branches": 3, "nodes": 7, "depth": 3})
    if branches == 1:
        config = StoppingConfig(None, 3, 3, "fixed", {"length": 3})
    settings = dict(mode, max_new_tokens=24, return_dict_in_generate=True, output_scores=True, output_logits=True)
    ours = dict(
        assistant_model=similar_draft(target), candidate_generator=SpecDecPP, stopping_config=config,
        drafting_config=DraftingConfig(("model",), branches=branches),
    )  # fmt: skip
    found, rounds = [], []
    for keywords in ({}, ours, ours):
        torch.manual_seed(0)
        with collect_stats() as stats:
            found.append(target.generate(inputs, **settings, **keywords))
        rounds.append((stats.rounds, stats.drafted, stats.accepted))
        if keywords:
            monkeypatch.setattr("hf_specdecpp.decoding.verify.reads_at_once", lambda device: False)
    plain, in_turn, at_once = found
    assert torch.equal(plain.sequences, in_turn.sequences) and torch.equal(plain.sequences, at_once.sequences)
    assert rounds[1] == rounds[2] and rounds[1][2] > 0
    for kind in ("scores", "logits"):
        for one, other in zip(in_turn[kind], at_once[kind], strict=True):
            torch.testing.assert_close(one, other)
