import json

import pytest

from hf_specdecpp import DraftingConfig


@pytest.mark.parametrize(
    "config",
    [
        DraftingConfig(), DraftingConfig(("model", "lookup"), 3, 7, "rejection"),
        DraftingConfig(sources=["recycling"], branches=1),
    ],
)  # fmt: skip
def test_it_survives_json(config):
    stored = json.loads(json.dumps(config.to_dict()))
    assert DraftingConfig(**stored) == config and hash(DraftingConfig(**stored)) == hash(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sources": ("model", "oracle")},
            r"sources are some of model, lookup, recycling, each once, got \('model', 'o",
        ),
        ({"sources": "model"}, "each once, got 'model'"),
        ({"sources": 3}, "each once, got 3"),
        ({"sources": ()}, r"each once, got \(\)"),
        ({"sources": ("lookup", "lookup")}, "each once"),
        ({"branches": 0}, "branches counts tokens and must be a whole number from 1, got 0"),
        ({"branches": 1.5}, "whole number from 1, got 1.5"),
        ({"branches": True}, "whole number from 1, got True"),
        ({"max_nodes": 0}, "max_nodes counts tokens and must be a whole number from 1, got 0"),
        ({"coupling": "gumbel"}, "there is no coupling 'gumbel': choose one of seeded, rejection"),
    ],
)
def test_bad_input_is_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        DraftingConfig(**settings)
