"""Trees by their worth, against brute force over all trees of a few nodes."""

import random
from itertools import combinations

import pytest

from hf_specdecpp.drafting.draft import Node
from hf_specdecpp.stopping import CostAware, CostProfile, DraftedToken, Round, Scope
from hf_specdecpp.stopping.forest import Forest, best_path, depth_first
from hf_specdecpp.stopping.trees import Cape, Eagle2


def grown(r: random.Random, count: int, row: int = 0) -> list[Node]:
    """A random tree, parents first; the probability of a token is that it is accepted behind its parent."""
    nodes: list[Node] = []
    left: dict[int | None, float] = {None: 1.0}
    for number in range(count):
        parent = r.choice([None, *nodes])
        key = None if parent is None else id(parent)
        chance = r.uniform(0, left[key])  # siblings are alternatives: together they have at most 1
        left[key] -= chance
        rank = 1 + sum(n.parent is parent for n in nodes)
        depth = 1 if parent is None else parent.token.position + 1
        node = Node(row, parent, DraftedToken(depth, chance, rank=rank), number)
        node.survival = chance * (1.0 if parent is None else parent.survival)
        left[id(node)] = 1.0
        nodes.append(node)
    return nodes


def forest(costs: CostProfile, **settings) -> Forest:
    made = {"factor": lambda token: token.probability, "costs": costs, "branches": 3, "chooses": True}
    return Forest(**made | settings)


def is_tree(chosen) -> bool:
    ids = {id(node) for node in chosen}
    return all(node.parent is None or id(node.parent) in ids for node in chosen)


@pytest.mark.parametrize("seed", range(25))
def test_what_is_taken_is_the_best_of_all_trees(seed):
    """Expected tokens less the value of the time: no other choice of nodes with their parents has more."""
    r = random.Random(seed)
    nodes = grown(r, 7)
    costs = CostProfile(0.1, (1.0, *(1.0 + s for s in sorted(r.uniform(0, 0.5) for _ in range(7)))))
    value, most = r.uniform(0.2, 2.0), r.choice([2, 4, 32])

    def worth(chosen) -> float:
        return sum(node.survival for node in chosen) - value * (costs.verification(len(chosen) + 1) - 1.0)

    trees = [c for n in range(min(most, 7) + 1) for c in combinations(nodes, n) if is_tree(c)]
    [taken] = forest(costs, value=value, max_nodes=most).take([nodes])
    assert is_tree(taken) and len(taken) <= most
    assert worth(taken) == pytest.approx(max(map(worth, trees)))
    places = [id(node) for node in taken]
    assert all(node.parent is None or places.index(id(node.parent)) < i for i, node in enumerate(taken))


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_is_the_best_path(seed):
    nodes = grown(random.Random(seed), 8)
    expected = max((node.path for node in nodes), key=lambda path: sum(n.survival for n in path))
    assert best_path(nodes) == expected and best_path([]) == []
    [taken] = forest(CostProfile(0.1, (1.0,)), branches=1).take([nodes])  # verification is free: all of it
    assert taken == expected[: len(taken)] and all(node.survival == 0 for node in expected[len(taken) :])


@pytest.mark.parametrize("seed", range(10))
def test_texts_of_a_batch_share_the_passes(seed):
    """Of equally wide drafts the best; each row takes its own likeliest nodes."""
    r = random.Random(seed)
    rows = [grown(r, 5, row) for row in range(3)]
    costs = CostProfile(0.1, (1.0, 1.2, 1.3, 1.7, 1.8, 2.2))
    taken = forest(costs, value=1.5, rows=3).take(rows)

    def worth(width: int) -> float:
        likeliest = (sorted((n.survival for n in own), reverse=True)[:width] for own in rows)
        return sum(map(sum, likeliest)) - 1.5 * (costs.verification(width + 1) - 1.0)

    width = max(map(len, taken))
    assert worth(width) == pytest.approx(max(map(worth, range(6)))) and all(map(is_tree, taken))


def test_depth_first_puts_the_likeliest_child_behind_its_parent():
    nodes = grown(random.Random(3), 9)
    order = depth_first(nodes)
    assert sorted(map(id, order)) == sorted(map(id, nodes)) and is_tree(order)
    for i, node in enumerate(order):
        children = [n for n in nodes if n.parent is node]
        if children:
            assert order[i + 1] is max(children, key=lambda n: n.survival)


def level(*chances, row=0, parent=None):
    depth = 1 if parent is None else parent.token.position + 1
    return [Node(row, parent, DraftedToken(depth, c, rank=k), k) for k, c in enumerate(chances, start=1)]


def test_growth_goes_on_while_a_level_is_worth_its_pass():
    """With one branch and no look ahead: while the survival times the next acceptance exceeds the time's value."""
    costs = CostProfile(0.2, (1.0,))
    for chance in (0.1, 0.3, 0.5, 0.7, 0.9):
        plan = forest(costs, value=1.0, horizon=1, branches=1, ranked=lambda depth: [0.5])
        nodes = level(chance)
        assert bool(plan.expand(nodes)) == (chance * 0.5 > 1.0 * 0.2)
        assert nodes[0].survival == chance


def test_looking_ahead_counts_all_that_can_come():
    """By hand: two levels of two branches behind a sure token are worth 2 passes, one level is not worth its pass."""
    costs = CostProfile(0.5, (1.0,))
    plan = forest(costs, value=1.0, branches=2, ranked=lambda depth: [0.3, 0.15] if depth == 2 else [0.9, 0.1])
    # One level yields 0.45 for 0.5; the second another 0.45 for 0.5; a steeper second level would be worth both.
    assert not plan.expand(level(1.0))
    better = forest(costs, value=1.0, branches=2, ranked=lambda depth: [0.3, 0.15] if depth == 2 else [2.0, 0.1])
    assert better.expand(level(1.0))


def test_bounds_of_growth():
    costs = CostProfile(0.01, (1.0,))
    plan = forest(costs, value=1.0, cap=2, expanded=2, ranked=lambda depth: [0.9])
    first = level(0.3, 0.6, 0.05)
    chosen = plan.expand(first)
    assert [n.token.rank for n in chosen] == [2, 1]  # the likeliest two
    assert plan.expand(level(0.9, parent=first[0])) == []  # at the cap
    low = forest(CostProfile(5.0, (1.0,)), value=1.0, floor=2, ranked=lambda depth: [0.9])
    assert low.expand(level(0.1)) and not low.expand(level(0.9, parent=first[0]))  # from the floor on it is asked


def verified(rule, scope, chances=(0.6, 0.3, 0.1), depth=4):
    """The tree that a rule makes where every node has children of these probabilities."""
    plan, drafted = rule.plan(scope), []
    newest = level(*chances[: plan.branches])
    while newest:
        drafted += newest
        newest = [c for node in plan.expand(newest) for c in level(*chances[: plan.branches], parent=node)]
    [taken] = plan.take([drafted])
    return plan, drafted, taken


def test_eagle_2_is_its_papers_tree():
    """The likeliest two of a level grow, and the likeliest five of all are verified."""
    plan, drafted, taken = verified(Eagle2(branches=2, nodes=5, depth=3), Scope(1, 3))
    assert plan.branches == 2 and len(drafted) == 2 + 4 + 4
    likeliest = sorted((n.survival for n in drafted), reverse=True)[:5]
    assert sorted((n.survival for n in taken), reverse=True) == likeliest and is_tree(taken)
    assert Eagle2(depth=3).plan(Scope(1, 1)).is_blind and len(verified(Eagle2(), Scope(1, 3, 4))[2]) == 4


def test_cape_has_more_alternatives_where_the_draft_is_unsure():
    """Seven tokens up to a probability of 0.3, then five, three and one."""
    for chance, count in ((0.2, 7), (0.5, 5), (0.7, 3), (0.9, 1)):
        rest = [(1 - chance) / 7] * 6
        _, drafted, taken = verified(Cape(length=2), Scope(1, None), (chance, *rest))
        assert len(drafted) == 14 and len(taken) == 2 * count and is_tree(taken)
    assert Cape(2).plan(Scope(1, 1)).is_blind


@pytest.mark.parametrize("rule", (Eagle2, Cape))
def test_lengths_below_one_are_refused(rule):
    with pytest.raises(ValueError, match="must be 1 or more, got 0"):
        rule(**{"depth" if rule is Eagle2 else "length": 0})


def test_the_cost_aware_rule_learns_second_choices_from_trees():
    costs = CostProfile(0.05, (1.0, 1.001))
    rule, scope = CostAware(costs, uses_head=False), Scope(1, 3)
    tokens = [DraftedToken(1, 0.5, rank=1), DraftedToken(1, 0.3, rank=2), DraftedToken(2, 0.4, rank=1)]
    before = rule.seen.of_rank(2).mean, rule.acceptance.mean
    for _ in range(60):
        assert isinstance(rule.plan(scope), Forest)
        rule.end(Round(tokens, 1, parents=[-1, -1, 0], path=[1], passes=2, width=4))
    assert rule.seen.of_rank(2).mean > before[0] + 0.2 and rule.acceptance.mean < before[1] - 0.2
    seen = list(Round(tokens, 1, parents=[-1, -1, 0], path=[1]).verified())
    assert [(token.rank, accepted) for token, accepted in seen] == [(1, False), (2, True)]
