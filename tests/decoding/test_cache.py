import torch
from models import prompt
from transformers import DynamicCache

from hf_specdecpp.decoding.cache import Slots, growing_cache


def test_it_holds_what_a_dynamic_cache_holds(target):
    """Through growth beyond the room, taking back, and new tokens over what was taken back."""
    slots = Slots()
    growing, dynamic = growing_cache(slots), DynamicCache()
    for length, seed, crop in ((5, 0, 0), (1, 1, 0), (90, 2, 40), (3, 3, 2), (200, 4, 0), (1, 5, 1)):
        ids = prompt(length, seed)
        ours, theirs = (target(ids, past_key_values=cache).logits for cache in (growing, dynamic))
        assert torch.equal(ours, theirs)
        slots.begin += length - crop
        dynamic.crop(-crop)
        for a, b in zip(growing.layers, dynamic.layers, strict=True):
            assert torch.equal(a.keys[..., : slots.begin, :], b.keys)
            assert torch.equal(a.values[..., : slots.begin, :], b.values)


def test_rows_move_and_the_rest_goes(target):
    slots = Slots()
    cache = growing_cache(slots)
    target(torch.cat([prompt(6, seed) for seed in range(5)]), past_key_values=cache)
    before = [layer.keys[..., :6, :].clone() for layer in cache.layers]
    slots.begin = 6
    for layer in cache.layers:
        layer.move_rows(torch.tensor([4]), torch.tensor([1]), 3)
    target(torch.cat([prompt(1, seed) for seed in range(3)]), past_key_values=cache)
    for layer, keys in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys[..., :6, :], keys[[0, 4, 2]])


def test_rows_of_different_lengths_write_where_they_end(target):
    slots = Slots(0, torch.tensor([[0, 1, 2], [2, 3, 4]]))
    cache = growing_cache(slots)
    ids = prompt(3)
    target(ids.repeat(2, 1), past_key_values=cache, position_ids=torch.arange(3).repeat(2, 1),
           attention_mask=torch.zeros(2, 1, 3, 3))  # fmt: skip
    layer = cache.layers[0]  # keys and values of the first layer know their token and position alone
    for held in (layer.keys, layer.values):
        assert torch.equal(held[0, :, 0:3], held[1, :, 2:5]) and not held[1, :, :2].any()
