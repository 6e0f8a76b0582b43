"""Proposals from the text itself: what followed the newest tokens where they stood before. No model, no training."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from numbers import Integral

from torch import Tensor

from ..decoding.law import Law
from ..decoding.sequences import Sequences
from ..stopping import DraftedToken
from .draft import Node
from .ngrams import Match, NgramIndex


class LookupStore:
    """Texts of earlier generations, for lookups in later ones: `generate(..., lookup_store=store)`.

    Work that repeats itself gains: the same documents, forms or code again and again. When a generation ends its texts
    enter the store, prompts included; the output of later ones is exact whatever the store holds. Nothing is shared
    unless you pass it: give generations of different users stores of their own. Threads may use one at once.

    It takes about 40 bytes a token. Once it is full the oldest tokens are forgotten.

    Args:
        max_tokens (`int`): the most tokens that are held.

    Raises:
        ValueError: if `max_tokens` is no whole number from 1.
    """

    def __init__(self, max_tokens: int = 500_000):
        if not isinstance(max_tokens, Integral) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise ValueError(f"max_tokens counts tokens and must be a whole number from 1, got {max_tokens!r}")
        self.max_tokens = int(max_tokens)
        self.lock = threading.Lock()
        self.clear()

    def add(self, input_ids: Tensor | Sequence[int]) -> None:
        """Adds a text, as the target's tokenizer encodes it.

        Args:
            input_ids (`torch.LongTensor` of shape `(length,)` or `list[int]`): its tokens, no padding.

        Raises:
            TypeError: for what is no list of token ids.
        """
        tokens = input_ids.tolist() if isinstance(input_ids, Tensor) else list(input_ids)
        if not all(isinstance(token, Integral) and token >= 0 for token in tokens):
            raise TypeError(
                "a lookup_store holds token ids: add one text at a time, tokenizer(text).input_ids or a tensor of "
                f"shape (length,), got {str(input_ids)[:40]!r}"
            )
        with self.lock:
            self.index.extend(tokens)
            self.index.end_text()
            self.largest_id = max(self.largest_id, *tokens, -1)

    def clear(self) -> None:
        """Forgets all."""
        with self.lock:
            self.index, self.largest_id = NgramIndex(capacity=self.max_tokens), -1

    def matches(self, newest: list[int], n: int, length: int) -> list[Match]:
        """See `NgramIndex.matches`."""
        with self.lock:
            return self.index.matches(newest, n, length)

    def check(self, vocab_size: int) -> None:
        """Raises `ValueError` if a token that was added is none of the target's."""
        if self.largest_id >= vocab_size:
            raise ValueError(
                f"the lookup_store holds the token {self.largest_id} and the target has {vocab_size} tokens: give "
                "each tokenizer a store of its own"
            )

    def __len__(self) -> int:
        """The tokens that are held, and one place for the end of each text."""
        return self.index.end - self.index.begin

    def __repr__(self) -> str:
        return f"LookupStore({len(self)} of {self.max_tokens} tokens, {self.index.nbytes / 1e6:.1f} MB)"


class Lookup:
    """Looks the newest tokens of each text up in the text so far (prompt lookup; SuffixDecoding, arXiv 2411.04975).

    Of the places where the longest n-gram stood, in the text and in the store, what followed is proposed as a tree:
    the share of the places that agree on a token, of those that agree on all before it, is its probability, and how
    many tokens before the tree agree is its evidence, by which the rule learns what lookups are worth.

    Args:
        length (`int`): the longest continuation.
        max_ngram (`int`): the longest n-gram that is looked up first; agreement is then counted beyond it.
        branches (`int`): the most tokens proposed behind one.
        store (`LookupStore`, *optional*): texts besides.

    Raises:
        ValueError: for a length or n-gram below 1.
    """

    name = "lookup"

    def __init__(
        self,
        sequences: Sequences,
        law: Law,
        length: int = 20,
        max_ngram: int = 3,
        branches: int = 2,
        store: LookupStore | None = None,
    ):
        if length < 1 or max_ngram < 1:
            raise ValueError(
                "prompt_lookup_num_tokens and max_matching_ngram_size count tokens and must be 1 or more, got "
                f"{length} and {max_ngram}"
            )
        self.sequences, self.law, self.store = sequences, law, store
        self.length, self.max_ngram, self.branches = length, max_ngram, branches
        self.indexes = [NgramIndex(max_ngram) for _ in sequences.texts]

    def propose(self, number: int, limit: int) -> list[Node]:
        """Continuations of a row's text, parents before children.

        Args:
            number (`int`): of the row among those that go on.
            limit (`int`): the most tokens on a path.
        """
        row = self.sequences.going[number]
        nodes: list[Node] = []
        level: list[tuple[Node | None, list[Match]]] = [(None, self._matches(row, min(self.length, limit)))]
        for depth in range(min(self.length, limit)):
            grown = []
            for parent, matches in level:
                follow = followed(matches, depth)
                count = sum(map(len, follow.values()))
                tokens = self.law.favoured(row, list(follow), [len(own) for own in follow.values()], depth)
                for rank, token in enumerate(tokens[: self.branches], start=1):
                    own = follow[token]
                    evidence = max(match.agreement for match in own)
                    seen = DraftedToken(depth + 1, len(own) / count, rank=rank, source=self.name, evidence=evidence)
                    nodes.append(Node(number, parent, seen, token))
                    grown.append((nodes[-1], own))
            level = grown
        return nodes

    def _matches(self, row: int, length: int) -> list[Match]:
        """Where the longest n-gram at the end of a text stood before, the oldest first."""
        text, padding, index = self.sequences.texts[row], self.sequences.padding[row], self.indexes[row]
        index.extend(text[padding + index.end :])
        newest = text[max(len(text) - index.most_agreement, padding) :]
        for n in range(self.max_ngram, 0, -1):
            found = [] if self.store is None else self.store.matches(newest, n, length)
            found += index.matches(newest, n, length)
            if found:
                return found
        return []


def followed(matches: list[Match], depth: int) -> dict[int, list[Match]]:
    """Those that go on so far by the token there, the likeliest first: most agreement, most places, the newest."""
    follow: dict[int, list[Match]] = {}
    for match in reversed(matches):
        if depth < len(match.tokens):
            follow.setdefault(match.tokens[depth], []).append(match)
    order = sorted(follow, key=lambda t: (-max(match.agreement for match in follow[t]), -len(follow[t])))
    return {token: follow[token][::-1] for token in order}
