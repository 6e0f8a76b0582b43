"""The index of n-grams against a search through all texts, as it grows and as it forgets."""

import random

import pytest

from hf_specdecpp.drafting.ngrams import END_OF_TEXT, Match, NgramIndex


def found_by_search(held: list[int], newest: list[int], n: int, length: int, most: int) -> list[Match]:
    """All places of an n-gram among `held`, ends of texts included."""
    found = []
    for place in range(n, len(held)):
        agreement = 0
        while agreement < min(place, len(newest)) and held[place - 1 - agreement] == newest[-1 - agreement]:
            agreement += 1
        tokens = held[place : place + length]
        if END_OF_TEXT in tokens:
            tokens = tokens[: tokens.index(END_OF_TEXT)]
        if agreement >= n and tokens:
            found.append(Match(min(agreement, NgramIndex.most_agreement), tokens))
    return found[-most:]


@pytest.mark.parametrize("capacity", (10**9, 700, 50, 3, 1))
@pytest.mark.parametrize("max_ngram", (1, 3))
def test_it_finds_what_a_search_finds(monkeypatch, capacity, max_ngram):
    """Texts of a few words, so that hashes are met again, places are forgotten, and tables grow."""
    monkeypatch.setattr(NgramIndex, "most_steps", 10**6)
    monkeypatch.setattr(NgramIndex, "most_places", 10**6)
    r = random.Random(capacity)
    index, everything = NgramIndex(max_ngram, capacity), []
    for _ in range(60):
        text = [r.randrange(12) for _ in range(r.randrange(40))]
        index.extend(text)
        index.end_text()
        everything += [*text, END_OF_TEXT]
        held = everything[-capacity:]
        assert index.end - index.begin == len(held)
        for n in (1, 2, 3, 5):
            newest = [r.randrange(12) for _ in range(r.randrange(6))]
            assert index.matches(newest, n, 4) == found_by_search(held, newest, n, 4, 10**6)


def test_the_newest_places_are_a_bounded_number():
    index = NgramIndex()
    index.extend([1, 2] * 60)
    assert len(index.matches([1, 2], 2, 3)) == NgramIndex.most_places
    index.end_text()
    index.extend([1, 2, 9])
    index.end_text()
    assert index.matches([1, 2], 2, 3)[-1] == Match(2, [9])


def test_a_text_that_grows_token_by_token_does_not_find_its_own_end():
    index = NgramIndex()
    for token in (4, 5, 6):
        index.extend([token])
        assert index.matches([4, 5, 6][: index.end], 1, 3) == []
    index.extend([4])
    assert index.matches([4, 5, 6, 4], 1, 3) == [Match(1, [5, 6, 4])]


def test_what_follows_a_place_near_the_end_goes_on_into_what_is_found():
    """A text that repeats three tokens used to be proposed three of them and no more."""
    index = NgramIndex()
    index.extend([9, 4, 5, 6, 4, 5, 6])
    assert index.matches([9, 4, 5, 6, 4, 5, 6], 3, 8) == [Match(3, [4, 5, 6, 4, 5, 6, 4, 5])]


def test_the_steps_and_the_memory_do_not_grow_with_the_texts():
    class Counted(NgramIndex):
        compared = 0

        def _agreement(self, *arguments):
            self.compared += 1
            return super()._agreement(*arguments)

    index = Counted(capacity=4096)
    index.extend([7] * 10_000)
    index.end_text()
    assert index.nbytes == 4096 * (4 + 12 * 3)
    index.matches([7] * 16, 3, 5)
    assert index.compared <= NgramIndex.most_steps
