"""Where n-grams stood in texts, as they grow and as the oldest are forgotten. Knows token ids alone."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

END_OF_TEXT = -1  # in the place of a token


@dataclass(frozen=True)
class Match:
    """A place where the newest tokens of a text stood before.

    Attributes:
        agreement (`int`): how many tokens before the place are those at the end of the text.
        tokens (`list[int]`): what follows there, at least one.
    """

    agreement: int
    tokens: list[int]


class NgramIndex:
    """Finds n-grams in texts by their hashes: linked lists of places as in LZ77 coders, compared where they lead.

    A token costs the same to add, and n-grams the same to find, however long the texts are. It takes about
    `4 + 12 max_ngram` bytes a token.

    Args:
        max_ngram (`int`): the longest n-gram that is found by its hash; how far a place agrees is counted beyond it.
        capacity (`int`): the most places that are remembered, one for each token and for each end of a text; beyond
            it the oldest are forgotten.
    """

    most_places = 8  # of an n-gram, the newest
    most_steps = 32  # from place to place, those of other n-grams with equal hashes included
    most_agreement = 32

    def __init__(self, max_ngram: int = 3, capacity: int = sys.maxsize):
        self.max_ngram, self.capacity = max_ngram, capacity
        self._begin_with(min(256, capacity))

    def _begin_with(self, size: int) -> None:
        self.size, self.end = size, 0
        self.tokens = array("i", [0]) * size
        # Of each n the place behind the newest n-gram of a hash, and of each place that behind the one before it.
        self.newest = [array("q", [-1]) * size for _ in range(self.max_ngram)]
        self.before = [array("i", [0]) * size for _ in range(self.max_ngram)]  # as distances, 0 for none
        self.recent: tuple[int, ...] = ()

    @property
    def begin(self) -> int:
        """The oldest place that is remembered; `end` is the next one."""
        return max(self.end - self.size, 0)

    @property
    def nbytes(self) -> int:
        tables = (self.tokens, *self.newest, *self.before)
        return sum(table.itemsize * len(table) for table in tables)

    def extend(self, tokens: Iterable[int]) -> None:
        """Goes on with the newest text."""
        for token in tokens:
            if self.end == self.size < self.capacity:
                self._grow()
            place, slot = self.end, self.end % self.size
            for n, (newest, before) in enumerate(zip(self.newest, self.before, strict=True), start=1):
                if n > len(self.recent):
                    break
                bucket = hash(self.recent[-n:]) % self.size
                distance = place - newest[bucket]
                before[slot] = distance if newest[bucket] >= 0 and distance < self.size else 0
                newest[bucket] = place
            self.tokens[slot] = token
            self.end = place + 1
            self.recent = (*self.recent, token)[-self.max_ngram :]

    def end_text(self) -> None:
        """What comes next is another text."""
        self.recent = ()
        self.extend((END_OF_TEXT,))
        self.recent = ()

    def matches(self, newest: list[int], n: int, length: int) -> list[Match]:
        """Where the last `n` tokens of `newest` stood, the oldest first.

        Args:
            newest (`list[int]`): the end of a text, `most_agreement` tokens of it if it has so many. Where the index
                ends without `end_text`, it is that text.
            n (`int`): 1 or more; n-grams beyond `max_ngram` are looked for among the places of shorter ones.
            length (`int`): the most tokens of a match.
        """
        if len(newest) < n:
            return []
        hashed = min(n, self.max_ngram)
        place = self.newest[hashed - 1][hash(tuple(newest[-hashed:])) % self.size]
        found, begin = [], self.begin
        for _ in range(self.most_steps):
            if not begin <= place < self.end or len(found) == self.most_places:
                break
            agreement = self._agreement(newest, place, begin)
            if agreement >= n:
                tokens = self._behind(place, length)
                if tokens:
                    found.append(Match(agreement, tokens))
            distance = self.before[hashed - 1][place % self.size]
            if not distance:
                break
            place -= distance
        return found[::-1]

    def _agreement(self, newest: list[int], place: int, begin: int) -> int:
        most, count = min(self.most_agreement, len(newest), place - begin), 0
        while count < most and self.tokens[(place - 1 - count) % self.size] == newest[-1 - count]:
            count += 1
        return count

    def _behind(self, place: int, length: int) -> list[int]:
        found: list[int] = []
        for at in range(place, place + length):
            # A place in the text that is going on: what follows it beyond the end is what is found here.
            token = self.tokens[at % self.size] if at < self.end else found[at - self.end]
            if token == END_OF_TEXT:
                break
            found.append(token)
        return found

    def _grow(self) -> None:
        tokens = self.tokens
        self._begin_with(min(2 * self.size, self.capacity))
        for token in tokens:
            if token == END_OF_TEXT:
                self.end_text()
            else:
                self.extend((token,))
