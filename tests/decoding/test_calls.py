"""What a call of `generate` may ask for besides text, as plain decoding has it: one row and many, chain and tree."""

import copy

import pytest
import torch
from models import byte_tokenizer, heard, prompt, ragged, similar_draft, tiny_model
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig

GREEDY, SAMPLING = {"do_sample": False}, {"do_sample": True, "top_k": 30}
MODES = pytest.mark.parametrize("mode", (GREEDY, SAMPLING), ids=("greedy", "sampling"))
INPUTS = {"one": {"input_ids": prompt(9)}, "many": ragged(4, 13, 9)}
SHAPES = pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)


def ours(draft, branches: int = 3) -> dict:
    return {
        "assistant_model": draft, "candidate_generator": SpecDecPP,
        "stopping_config": StoppingConfig(rule="eagle-2", settings={"depth": 4}),
        "drafting_config": DraftingConfig(branches=branches, max_nodes=8),
    }  # fmt: skip


@pytest.fixture(scope="module")
def draft(target):
    return similar_draft(target)


def both(target, draft, make=dict, seed=0, **settings):
    """What plain decoding says and what chains and trees say, each with settings of its own by `make`."""
    settings = {"max_new_tokens": 18, "eos_token_id": [2, 100]} | settings
    found = []
    for more in ({}, ours(draft, 1), ours(draft, 3)):
        torch.manual_seed(seed)
        found.append((target.generate(**settings, **more, **make()), torch.get_rng_state()))
    plain, after = found[0]
    for output, then in found[1:]:
        assert torch.equal(then, after)
        if isinstance(plain, torch.Tensor):
            assert output.tolist() == plain.tolist()
        else:
            assert output.sequences.tolist() == plain.sequences.tolist()
    return [output for output, _ in found]


# Logits processors.


def by_row_and_text(input_ids, scores):
    """A caller's own: what may come depends on the row, the length and the tokens so far."""
    rows = torch.arange(len(input_ids))
    favoured = (input_ids.sum(-1) + 7 * rows + input_ids.shape[1]) % 60 + 4
    return scores.scatter_add(1, favoured[:, None] + torch.arange(40), torch.full((len(scores), 40), 3.0))


@MODES
@SHAPES
@pytest.mark.parametrize(
    "processors",
    [
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"logits_processor": LogitsProcessorList([by_row_and_text])},
        {"min_new_tokens": 9, "bad_words_ids": [[17], [40, 41]], "forced_eos_token_id": 2},
        {"prefix_allowed_tokens_fn": lambda row, ids: [4 + (int(ids[-1]) + row) % 9, 20, 21 + len(ids) % 5]},
        {"min_p": 0.02, "typical_p": 0.9, "renormalize_logits": True, "suppress_tokens": list(range(4, 60))},
    ],
    ids=lambda processors: next(iter(processors)),
)
def test_logits_processors(target, draft, mode, inputs, processors):
    both(target, draft, **inputs, **mode, **processors)


def test_a_processor_that_reads_ids_is_given_those_of_the_tree(target, draft):
    """Each call sees a text that some row and path really has, with as many rows as the batch."""
    seen = []

    def watch(input_ids, scores):
        seen.append(tuple(input_ids[0].tolist()))
        assert len(input_ids) == len(scores) == 3
        return scores

    target.generate(
        **INPUTS["many"], **GREEDY, max_new_tokens=6, logits_processor=LogitsProcessorList([watch]), **ours(draft)
    )
    assert max(map(len, seen)) > min(map(len, seen)) == 13


# Scores and logits.


@MODES
@SHAPES
def test_scores_and_logits(target, draft, mode, inputs):
    """Compared until a row ends; the tokens that follow are padding."""
    settings = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain, *found = both(target, draft, **inputs, **mode, **settings)
    generated = plain.sequences[:, inputs["input_ids"].shape[1] :]
    for output in found:
        for name in ("scores", "logits"):
            expected, given = (torch.stack(getattr(each, name)) for each in (plain, output))
            assert given.shape == expected.shape and len(given) == generated.shape[1]
            for row, tokens in enumerate(generated.tolist()):
                ends = [i for i, token in enumerate(tokens, start=1) if token in (2, 100)]
                until = ends[0] if ends else len(tokens)
                torch.testing.assert_close(given[:until, row], expected[:until, row], atol=1e-3, rtol=1e-4)


def test_scores_alone_and_none(target, draft):
    settings = INPUTS["many"] | GREEDY | {"return_dict_in_generate": True}
    for output in both(target, draft, **settings, output_scores=True):
        assert output.scores and output.logits is None
    for output in both(target, draft, **settings):
        assert output.scores is None and output.logits is None and output.past_key_values is not None


# Where texts end.


class StopsAt(StoppingCriteria):
    """Ends the rows whose last token is one of `tokens`."""

    def __init__(self, *tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


@MODES
@pytest.mark.parametrize("eos", (None, [2, 100]))
def test_stop_strings_and_criteria_in_a_batch(target, draft, mode, eos):
    inputs, tokenizer = INPUTS["many"], byte_tokenizer()
    texts = [tokenizer.decode([i]) for i in range(260)]
    broken = [i for i in range(3, 264) if i >= 260 or not (texts[i].isascii() and texts[i].isprintable())]
    settings = mode | {"eos_token_id": eos, "pad_token_id": 0, "suppress_tokens": broken}
    torch.manual_seed(0)
    plain = target.generate(**inputs, **settings, max_new_tokens=18)[:, 13:].tolist()
    for places in ((3, 7, 12), (9, 2, 2), (1, 14, 5)):
        texts = [tokenizer.decode(row[place : place + 2]) for row, place in zip(plain, places, strict=True)]
        found, *_ = both(target, draft, **inputs, **settings, stop_strings=texts, tokenizer=tokenizer)
        criterion = StopsAt(*(row[place] for row, place in zip(plain, places, strict=True)))
        also, *_ = both(target, draft, **inputs, **settings, stopping_criteria=StoppingCriteriaList([criterion]))
        assert max(found.shape[1], also.shape[1]) < 13 + 18


@MODES
def test_a_criterion_that_all_rows_must_meet(target, draft, mode):
    """Without an end-of-sequence token plain decoding goes on until every row has met a criterion at one time."""
    torch.manual_seed(0)
    plain = target.generate(**INPUTS["many"], **mode, max_new_tokens=18, eos_token_id=None)[:, 13:]
    tokens = plain[:, 4].tolist()
    criteria = StoppingCriteriaList([StopsAt(*tokens)])
    found, *_ = both(target, draft, **INPUTS["many"], **mode, eos_token_id=None, stopping_criteria=criteria)
    assert found.shape[1] <= 13 + 5


def test_rows_that_end_leave_and_the_rest_goes_on(target, draft):
    plain = target.generate(**INPUTS["many"], **GREEDY, max_new_tokens=18, eos_token_id=None)[:, 13:]
    eos = [int(plain[0, 2]), int(plain[1, 9])]
    with heard() as rounds:
        both(target, draft, **INPUTS["many"], **GREEDY, eos_token_id=eos, pad_token_id=0)
    assert {each.rows for each in rounds} >= {2, 3}


@MODES
@SHAPES
@pytest.mark.parametrize("new_tokens", (1, 2, 3, 5))
def test_few_tokens(target, draft, mode, inputs, new_tokens):
    for output in both(target, draft, **inputs, **mode, max_new_tokens=new_tokens, eos_token_id=None):
        assert output.shape[1] == inputs["input_ids"].shape[1] + new_tokens


def test_a_max_length_of_one_token_more(target, draft):
    for output in both(target, draft, input_ids=prompt(9), **GREEDY, max_new_tokens=None, max_length=10):
        assert output.shape[1] == 10


class Recorder(BaseStreamer):
    def __init__(self):
        self.puts, self.ended = [], False

    def put(self, value):
        self.puts.append(value.tolist())

    def end(self):
        self.ended = True


@MODES
def test_streamers_get_a_token_a_put(target, draft, mode):
    """As plain decoding: the prompt, then one token a put, then the end."""
    streamers = []

    def make():
        streamers.append(Recorder())
        return {"streamer": streamers[-1]}

    output, *_ = both(target, draft, make, input_ids=prompt(9), **mode)
    assert all(streamer.ended for streamer in streamers)
    plain, *found = (streamer.puts for streamer in streamers)
    assert plain[1:] == [[token] for token in output[0, 9:].tolist()]
    assert all(puts == plain for puts in found)


# Several sequences, other vocabularies, adapters.


@pytest.mark.parametrize("length", (1, 6))
def test_several_sequences_of_a_prompt(target, draft, length):
    for output in both(target, draft, input_ids=prompt(length), **SAMPLING, num_return_sequences=3):
        assert len(output) == 3 and len({tuple(row) for row in output.tolist()}) == 3
    both(target, draft, **INPUTS["many"], **SAMPLING, num_return_sequences=2)


@MODES
@SHAPES
@pytest.mark.parametrize("size", (4096, 4352))
def test_a_vocabulary_padded_otherwise(mode, inputs, size):
    """Qwen2.5's sizes differ (151936 and 152064) though the tokenizer is one."""
    target = tiny_model(vocab_size=4224)
    draft = tiny_model(vocab_size=size)
    with torch.no_grad():
        shared = min(size, 4224)
        for ours, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            ours[:shared] = theirs[:shared] if ours.shape != theirs.shape else theirs
    with heard() as rounds:
        both(target, draft, **inputs, **mode)
    assert sum(each.accepted for each in rounds) > 0


@MODES
@SHAPES
def test_a_target_with_lora(target, draft, mode, inputs):
    config = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    tuned = get_peft_model(copy.deepcopy(target), config)
    plain, *_ = both(tuned, draft, **inputs, **mode)
    torch.manual_seed(0)
    assert plain.tolist() != target.generate(**inputs, **mode, max_new_tokens=18, eos_token_id=[2, 100]).tolist()


@MODES
@SHAPES
def test_prompts_read_in_chunks(target, draft, mode, inputs):
    read, length = [], inputs["input_ids"].shape[1]
    hook = target.register_forward_pre_hook(
        lambda module, args, kwargs: read[-1].append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        for chunk in (1, 4, 50):
            both(target, draft, lambda: read.append([]) or {}, **inputs, **mode, prefill_chunk_size=chunk)
            sizes = [min(chunk, length - begin) for begin in range(0, length, chunk)]
            for own in read[-2:]:  # the last part is read beside a draft
                own = own[: len(sizes)]
                assert own[:-1] == sizes[:-1] and own[-1] >= sizes[-1]
    finally:
        hook.remove()


# Caches that hold a prefix.


@pytest.fixture(scope="module", params=("llama", "mistral", "gemma3", "qwen2_mixed"))
def pair(request):
    target = tiny_model(request.param)
    return target, similar_draft(target)


def cache_of(target, ids, **more) -> DynamicCache:
    """A cache as `generate` makes it, with sliding layers where the target has them."""
    with torch.no_grad():
        return target(ids, past_key_values=DynamicCache(config=target.config), use_cache=True, **more).past_key_values


def assert_equal(caches) -> None:
    plain, *found = caches
    for cache in found:
        assert cache.get_seq_length() == plain.get_seq_length()
        for a, b in zip(cache.layers, plain.layers, strict=True):
            assert type(a) is type(b)
            torch.testing.assert_close(a.keys, b.keys, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(a.values, b.values, atol=1e-3, rtol=1e-3)


@MODES
@pytest.mark.parametrize("held", (1, 5, 20, 24))
def test_a_cache_that_holds_a_prefix(pair, mode, held):
    ids, caches = prompt(25), []

    def make():
        caches.append(cache_of(pair[0], ids[:, :held]))
        return {"past_key_values": caches[-1]}

    both(*pair, make, input_ids=ids, **mode, eos_token_id=None)
    assert_equal(caches)


def test_two_turns_of_a_chat_and_plain_decoding_afterwards(pair):
    """The cache that comes back holds what plain decoding's would, so that either may go on from it."""
    target, draft = pair
    texts = []
    for turns in ((None, None, None), (1, 3, None), (3, 3, 3), (None, 1, 3)):
        torch.manual_seed(0)
        cache, text = DynamicCache(config=target.config), prompt(14)
        for seed, branches in enumerate(turns):
            more = {} if branches is None else ours(draft, branches)
            text = target.generate(
                text, attention_mask=torch.ones_like(text), past_key_values=cache, max_new_tokens=12,
                eos_token_id=None, **SAMPLING, **more,
            )  # fmt: skip
            assert cache.get_seq_length() == text.shape[1] - 1
            text = torch.cat((text, prompt(5, seed)), dim=-1)
        texts.append(text.tolist())
    assert all(text == texts[0] for text in texts)


@MODES
def test_a_batch_with_a_cache(pair, mode):
    target, caches = pair[0], []
    inputs = ragged(6, 15, 11)
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    def make():
        first = {"attention_mask": mask[:, :12], "position_ids": positions[:, :12]}
        caches.append(cache_of(target, inputs["input_ids"][:, :12], **first))
        return {"past_key_values": caches[-1]}

    both(*pair, make, **inputs, **mode)


@MODES
def test_new_ids_alone_with_a_longer_mask(pair, mode):
    """As a caller gives them who holds the rest in the cache."""
    ids = prompt(20)

    def make():
        return {"past_key_values": cache_of(pair[0], ids[:, :14])}

    both(*pair, make, input_ids=ids[:, 14:], attention_mask=torch.ones(1, 20, dtype=torch.long), **mode)


def test_the_cache_that_comes_back_is_that_of_the_text(pair):
    plain, *found = both(*pair, input_ids=prompt(20), **GREEDY, eos_token_id=None, return_dict_in_generate=True)
    assert_equal([plain.past_key_values, *(output.past_key_values for output in found)])
