"""What a caller keeps for later generations: the store of texts and the table of successors."""

import copy
import threading

import pytest
import torch
from models import VOCAB, heard, prompt, ragged, similar_draft, tiny_model

from hf_specdecpp import DraftingConfig, LookupStore, RecyclingTable, SpecDecPP, StoppingConfig

OURS = {"candidate_generator": SpecDecPP, "do_sample": False, "max_new_tokens": 24, "eos_token_id": None}

COSTS = {"costs": {"draft_seconds": 0.01, "verify_seconds": [1.0, 1.0001]}, "uses_head": False}
FREE = {"stopping_config": StoppingConfig(rule="cost-aware", settings=COSTS)}  # trees pay, by no clock


def accepted(rounds, source: str) -> int:
    return sum(token.source == source for each in rounds for token, is_accepted in each.verified() if is_accepted)


def test_a_generation_enters_when_it_has_ended(target):
    store = LookupStore()
    assert len(store) == 0 and repr(store).startswith("LookupStore(0 of 500000 tokens, ")
    output = target.generate(prompt(9), **OURS, lookup_store=store)
    text = output[0].tolist()
    assert store.matches(text[:6], 3, 99)[-1].tokens == text[6:]
    assert len(store) == len(text) + 1  # and the end of the text
    store.clear()
    assert len(store) == 0 and store.matches(text[:6], 1, 9) == []


def test_padding_does_not_enter(target):
    store = LookupStore()
    output = target.generate(**ragged(4, 9), **OURS, lookup_store=store)
    assert len(store) == 4 + 24 + 1 + 9 + 24 + 1
    assert store.matches([0], 1, 9) == [] or 0 in output[:, 9:]


def test_the_same_work_again_is_looked_up(target):
    """The second time every token is proposed by the store, and a table that was kept knows what came."""
    for keyword, kept, source in (
        ("lookup_store", LookupStore(), "lookup"), ("recycling_table", RecyclingTable(VOCAB), "recycling")
    ):  # fmt: skip
        drafting, counts = DraftingConfig((source,)), []
        for _ in range(2):
            with heard() as rounds:
                target.generate(prompt(9), **OURS, **FREE, drafting_config=drafting, **{keyword: kept})
            counts.append(accepted(rounds, source))
        assert counts[1] > counts[0] + 3, source


def test_a_generation_that_fails_adds_nothing(target):
    store = LookupStore()

    def fail(input_ids, scores):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        target.generate(prompt(9), **OURS, lookup_store=store, stopping_criteria=[fail])
    assert len(store) == 0


def test_a_kept_table_serves_beside_a_draft_unasked(target):
    table, draft = RecyclingTable(VOCAB), similar_draft(target)
    config = StoppingConfig(rule="cost-aware", settings={"uses_head": False})
    target.generate(prompt(9), **OURS, assistant_model=draft, stopping_config=config, recycling_table=table)
    assert "(0 of" not in repr(table)


def test_the_store_holds_no_more_than_it_was_told():
    store = LookupStore(max_tokens=100)
    for text in range(50):
        store.add([text] * 30)
    assert len(store) == 100 and store.index.nbytes == 100 * 40
    assert store.matches([49] * 3, 3, 4) and not store.matches([40] * 3, 3, 4)


def test_the_hook_takes_them_as_well(target):
    store = LookupStore()
    hook = SpecDecPP(
        assistant_model=similar_draft(target), lookup_store=store,
        stopping_config=StoppingConfig(rule="cost-aware", settings={"uses_head": False}),
    )  # fmt: skip
    output = target.generate(prompt(9), do_sample=False, max_new_tokens=8, custom_generate=hook)
    assert len(store) == output.shape[1] + 1


def test_threads_share_a_store_and_a_table():
    """Each generates for a prompt of its own, all with one store, and each gets plain decoding's text."""
    target = tiny_model()
    prompts = [prompt(9, seed) for seed in range(4)]
    plain = [target.generate(ids, **OURS | {"candidate_generator": None}).tolist() for ids in prompts]
    store, table, found = LookupStore(max_tokens=200), RecyclingTable(VOCAB), [None] * 4
    own = [copy.deepcopy(target) for _ in prompts]

    def work(number):
        for _ in range(3):
            found[number] = (
                own[number].generate(prompts[number], **OURS, lookup_store=store, recycling_table=table).tolist()
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == plain and len(store) == 200


def test_bad_input_gets_one_sentence(target):
    draft = similar_draft(target)
    for most in (0, -1, 2.5, True, "many"):
        with pytest.raises(ValueError, match="max_tokens counts tokens and must be a whole number from 1"):
            LookupStore(max_tokens=most)
    with pytest.raises(ValueError, match="vocab_size counts tokens"):
        RecyclingTable(0)
    for text in ("a text", [[1, 2]], torch.ones(2, 2), [1.5], [-1]):
        with pytest.raises(TypeError, match="holds token ids: add one text at a time"):
            LookupStore().add(text)
    with pytest.raises(TypeError, match="lookup_store must be a LookupStore, got list"):
        target.generate(prompt(9), **OURS, lookup_store=[])
    with pytest.raises(TypeError, match="recycling_table must be a RecyclingTable, got dict"):
        target.generate(prompt(9), **OURS, recycling_table={})
    other = LookupStore()
    other.add([5, VOCAB])
    with pytest.raises(ValueError, match=f"holds the token {VOCAB} and the target has {VOCAB} tokens"):
        target.generate(prompt(9), **OURS, lookup_store=other)
    with pytest.raises(ValueError, match=rf"is for 9 tokens and .*: give it RecyclingTable\({VOCAB}\)"):
        target.generate(prompt(9), **OURS, recycling_table=RecyclingTable(9))
    fixed = StoppingConfig(rule="fixed", settings={"length": 2})
    for more in ({"stopping_config": fixed}, {"drafting_config": DraftingConfig(("model",))}):
        settings = {"stopping_config": StoppingConfig(rule="cost-aware", settings={"uses_head": False})} | more
        with pytest.raises(ValueError, match=r"lookup_store is for the source 'lookup', and .* drafts from model"):
            target.generate(prompt(9), **OURS, assistant_model=draft, lookup_store=LookupStore(), **settings)
