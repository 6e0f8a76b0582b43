"""Proposals from the text itself: what followed the newest tokens where they stood before. No model, no training."""

from __future__ import annotations

from collections import Counter

from ..decoding.law import Law
from ..decoding.sequences import Sequences
from ..stopping import DraftedToken
from .draft import Node


class Lookup:
    """Looks the newest tokens of each text up in the text so far (prompt lookup; SuffixDecoding, arXiv 2411.04975).

    An index of n-grams is kept as the texts grow, at the same cost for every token. Of the places where the longest
    n-gram stood the likeliest continuations are proposed: the share of the places that agree on the first token is its
    probability, and how many tokens before it agree is its evidence, by which the rule learns what lookups are worth.

    Args:
        length (`int`): the longest continuation.
        max_ngram (`int`): the longest n-gram that is looked up first; agreement is then counted beyond it.
        branches (`int`): the most continuations proposed.
    """

    name = "lookup"
    most_places = 8  # of an n-gram that are looked at, the newest
    most_evidence = 16

    def __init__(self, sequences: Sequences, law: Law, length: int = 10, max_ngram: int = 3, branches: int = 2):
        self.sequences, self.law = sequences, law
        self.length, self.max_ngram, self.branches = length, max_ngram, branches
        self.indexed = [0] * len(sequences.texts)
        # Of each row and n the places behind each n-gram.
        self.places: list[list[dict[tuple[int, ...], list[int]]]] = [
            [{} for _ in range(max_ngram)] for _ in sequences.texts
        ]

    def propose(self, number: int, limit: int) -> list[Node]:
        """Continuations of a row's text, parents before children.

        Args:
            number (`int`): of the row among those that go on.
            limit (`int`): the most tokens on a path.
        """
        row = self.sequences.going[number]
        text = self.sequences.texts[row]
        self._index(row, text)
        nodes: list[Node] = []
        for rank, (place, evidence, share) in enumerate(self._matches(row, text), start=1):
            parent = None
            for depth, token in enumerate(text[place : place + min(self.length, limit)], start=1):
                seen = DraftedToken(
                    depth, share if depth == 1 else 1.0, rank=rank, source=self.name, evidence=evidence
                )
                parent = Node(number, parent, seen, token)
                nodes.append(parent)
        return nodes

    def _index(self, row: int, text: list[int]) -> None:
        """Adds the n-grams that end before the newest token: what follows them is known."""
        for end in range(max(self.indexed[row], 1), len(text)):
            for n in range(1, min(self.max_ngram, end - self.sequences.padding[row]) + 1):
                found = self.places[row][n - 1].setdefault(tuple(text[end - n : end]), [])
                found.append(end)
                if len(found) > self.most_places:
                    del found[0]
        self.indexed[row] = len(text)

    def _matches(self, row: int, text: list[int]) -> list[tuple[int, int, float]]:
        """Where the likeliest continuations begin, how many tokens before agree, and the share of places with each."""
        for n in range(min(self.max_ngram, len(text) - 1), 0, -1):
            places = self.places[row][n - 1].get(tuple(text[-n:]), ())
            if places:
                break
        else:
            return []
        agree = {place: self._agreement(text, place, n, self.sequences.padding[row]) for place in places}
        shares = Counter(text[place] for place in places)
        best: dict[int, int] = {}  # of each first token the place of the longest agreement, of equals the newest
        for place in places:
            token = text[place]
            if token not in best or agree[place] >= agree[best[token]]:
                best[token] = place
        ordered = sorted(best, key=lambda token: (agree[best[token]], shares[token], best[token]), reverse=True)
        ordered = self.law.favoured(row, ordered, [shares[token] for token in ordered])
        return [(best[t], agree[best[t]], shares[t] / len(places)) for t in ordered[: self.branches]]

    def _agreement(self, text: list[int], place: int, n: int, padding: int) -> int:
        """How many tokens before `place` are those at the end of `text`."""
        while n < self.most_evidence and place - n > padding and text[place - n - 1] == text[-n - 1]:
            n += 1
        return n
