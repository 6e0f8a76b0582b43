import torch
from conftest import prompt
from hf_specdecpp.decoding.cache import Slots, growing_cache
from transformers import DynamicCache


def test_it_holds_what_a_dynamic_cache_holds(target):
    """Through growth beyond the room, cropping, and new tokens over cropped ones."""
    caches = growing_cache(), DynamicCache()
    for length, seed, crop in ((5, 0, 0), (1, 1, 0), (90, 2, 40), (3, 3, 2), (200, 4, 0), (1, 5, 1)):
        ids = prompt(length, seed)
        ours, theirs = (target(ids, past_key_values=cache).logits for cache in caches)
        assert torch.equal(ours, theirs)
        for cache in caches:
            cache.crop(-crop)
        for a, b in zip(*(cache.layers for cache in caches), strict=True):
            assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


def test_rows_move_and_the_rest_goes(target):
    cache = growing_cache()
    target(torch.cat([prompt(6, seed) for seed in range(5)]), past_key_values=cache)
    before = [layer.keys.clone() for layer in cache.layers]
    for layer, keys in zip(cache.layers, before, strict=True):
        layer.move_rows(torch.tensor([4]), torch.tensor([1]), 3)
        assert torch.equal(layer.keys, keys[[0, 4, 2]])
    ids = torch.cat([prompt(1, seed) for seed in range(3)])
    target(ids, past_key_values=cache)
    for layer, keys in zip(cache.layers, before, strict=True):
        assert layer.keys.shape[-2] == 7 and torch.equal(layer.keys[..., :6, :], keys[[0, 4, 2]])
