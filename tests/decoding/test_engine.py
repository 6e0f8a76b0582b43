"""The engine against plain passes over whole texts."""

import copy

import pytest
import torch
from models import prompt, tiny_model, with_head
from transformers import DynamicCache, LlamaConfig

from hf_specdecpp.decoding.engine import Engine, can_take_masks
from hf_specdecpp.decoding.masks import additive, ancestry, windows

WINDOWED = ("llama", "mistral", "gemma3", "qwen2_mixed")  # windows of 12, 8 and 9 tokens


@pytest.fixture(scope="module", params=(*WINDOWED, "gpt2", "opt"))
def model(request):
    return tiny_model(request.param)


def plain(model, *texts: list[int]) -> torch.Tensor:
    """The logits behind the last token of each text, alone and without a cache."""
    with torch.no_grad():
        return torch.stack([model(torch.tensor([text]), use_cache=False).logits[0, -1] for text in texts])


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)


def of(engine, rows, **more):
    with torch.no_grad():
        return engine.read(torch.tensor(rows), **more).logits


TEXT = prompt(19)[0].tolist()
# A tree of seven nodes behind the newest token, and their paths.
PARENTS = [-1, 0, 0, 1, 1, 2, 5]
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 5, 6]]
NODES = prompt(7, 5)[0].tolist()


def test_chains_read_in_parts(model):
    engine = Engine(model, [0])
    for part in (TEXT[:7], TEXT[7:8], TEXT[8:]):
        logits = of(engine, [part])
        assert logits.shape[1] == len(part)
        engine.keep([list(range(len(part)))])
    close(logits[0, -1:], plain(model, TEXT))
    assert engine.lengths == [19] and of(engine, [[5, 6, 7]], keep=2).shape[1] == 2


def test_what_is_not_kept_was_never_read(model):
    engine = Engine(model, [0])
    of(engine, [TEXT[:16]])
    engine.keep([list(range(12))])
    of(engine, [[9, 9, 9, 9]])
    engine.keep([[]])
    close(of(engine, [TEXT[12:15]])[0], plain(model, TEXT[:13], TEXT[:14], TEXT[:15]))


def test_every_node_of_a_tree_sees_its_path_alone(model):
    engine = Engine(model, [0])
    of(engine, [TEXT])
    engine.keep([list(range(19))])
    logits = of(engine, [NODES], parents=torch.tensor([PARENTS]))
    close(logits[0], plain(model, *(TEXT + [NODES[i] for i in path] for path in PATHS)))
    path = PATHS[-1]
    engine.keep([path])
    longer = TEXT + [NODES[i] for i in path]
    close(of(engine, [[8, 9]])[0], plain(model, [*longer, 8], [*longer, 8, 9]))


def test_a_tree_that_grows_by_levels(model):
    """As a draft reads it: nodes behind nodes of earlier passes, by their numbers since the last `keep`."""
    engine = Engine(model, [0])
    of(engine, [TEXT])
    engine.keep([list(range(19))])
    for begin, end in ((0, 1), (1, 3), (3, 7)):
        logits = of(engine, [NODES[begin:end]], parents=torch.tensor([PARENTS[begin:end]]))
        expected = plain(model, *(TEXT + [NODES[i] for i in path] for path in PATHS[begin:end]))
        close(logits[0], expected)
    engine.keep([PATHS[4]])
    close(of(engine, [[8]])[0], plain(model, [*TEXT, *(NODES[i] for i in PATHS[4]), 8]))


def padded(*texts):
    longest = max(map(len, texts))
    return [[0] * (longest - len(text)) + text for text in texts], [longest - len(text) for text in texts]


def test_rows_that_grow_each_at_its_pace(model):
    """Left-padded prompts, paths of different lengths, trees among them, and rows that leave."""
    texts = [TEXT[:5], TEXT[3:17], TEXT[6:15]]
    rows, padding = padded(*texts)
    engine = Engine(model, padding)
    close(of(engine, rows, keep=1)[:, -1], plain(model, *texts))
    engine.keep([list(range(14))] * 3)
    nodes = [NODES, NODES[::-1], [*NODES[2:], 4, 5]]
    taken = [PATHS[6], PATHS[1], PATHS[3]]
    for _ in range(2):
        logits = of(engine, nodes, parents=torch.tensor([PARENTS] * 3))
        for row, text in enumerate(texts):
            close(logits[row], plain(model, *(text + [nodes[row][i] for i in path] for path in PATHS)))
        engine.keep(taken)
        texts = [text + [nodes[row][i] for i in taken[row]] for row, text in enumerate(texts)]
    assert engine.lengths == [14 + 2 * len(path) for path in taken] and engine.is_ragged
    engine.leave([0, 2])
    texts = [texts[0], texts[2]]
    logits = of(engine, [[11, 12], [13, 14]])
    for row, (text, new) in enumerate(zip(texts, ([11, 12], [13, 14]), strict=True)):
        close(logits[row], plain(model, text + new[:1], text + new))
    engine.keep([[0], [0, 1]])
    engine.leave([1])
    close(of(engine, [[7]])[0], plain(model, [*texts[1], 13, 14, 7]))
    assert engine.padding == [padding[2]]


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_users_cache_is_gone_on_from_and_given_back(architecture):
    model = tiny_model(architecture)

    def read(cache, ids):
        with torch.no_grad():
            return model(torch.tensor([ids]), past_key_values=cache).logits[0]

    ours, theirs = (DynamicCache(config=model.config) for _ in range(2))
    for cache in (ours, theirs):
        read(cache, TEXT[:14])
    engine = Engine(model, [0])
    engine.adopt(ours)
    close(of(engine, [TEXT[14:]])[0, -1:], plain(model, TEXT))
    engine.keep([list(range(5))])
    of(engine, [NODES], parents=torch.tensor([PARENTS]))
    engine.keep([PATHS[-1]])
    engine.give_back(ours)
    longer = TEXT + [NODES[i] for i in PATHS[-1]]
    read(theirs, longer[14:])
    assert ours.get_seq_length() == theirs.get_seq_length() == 23
    # What plain decoding says behind it, through sliding layers as well, beyond another window.
    for step in range(10):
        close(*(read(cache, [step + 4]) for cache in (ours, theirs)))
    engine.give_back(empty := DynamicCache(config=model.config))
    assert empty.get_seq_length() == 23


def test_states_are_those_that_the_head_reads(target):
    model = with_head(copy.deepcopy(target)).get_base_model()
    engine = Engine(model, [0])
    with torch.no_grad():
        seen = engine.read(torch.tensor([TEXT]), keep=1)
        expected = model.model(torch.tensor([TEXT])).last_hidden_state
    close(seen.states[:, -1], expected[:, -1])
    assert seen.logits.shape[1] == 1 and Engine(target, [0]).read(torch.tensor([TEXT])).states is None


def test_ancestry_by_hand():
    """A tree of five nodes, and a chain with a second root that stands for padding."""
    seen, depths = ancestry(torch.tensor([[-1, 0, 0, 1, -1], [-1, 0, 1, -1, -1]]))
    assert depths.tolist() == [[0, 1, 1, 2, 0], [0, 1, 2, 0, 0]]
    assert seen[0].int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]
    ]  # fmt: skip
    assert seen[1, 2].tolist() == [True, True, True, False, False]


def test_windows_of_layer_types():
    assert windows(tiny_model("llama").config) == {"full_attention": None}
    assert windows(tiny_model("mistral").config) == {"sliding_attention": 12}
    assert windows(tiny_model("gemma3").config) == {"full_attention": None, "sliding_attention": 8}
    assert windows(tiny_model("qwen2").config) == {"full_attention": None}
    assert windows(LlamaConfig(layer_types=["full_attention", "chunked_attention"], num_hidden_layers=2)) == {}


def test_models_that_take_no_masks_are_told():
    model = tiny_model("llama")
    assert can_take_masks(model) and can_take_masks(tiny_model("gpt2"))
    model.config._attn_implementation = "flash_attention_2"
    assert not can_take_masks(model)


def test_the_mask_that_is_added():
    mask = additive(torch.tensor([[[True, False]]]), torch.float16)
    assert mask.shape == (1, 1, 1, 2) and mask.tolist() == [[[[0.0, torch.finfo(torch.float16).min]]]]
