import pytest

from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.recipe import Recipe

YAML = """
target: org/target
draft: org/draft
prompts: prompts.jsonl
judge: {}
modes: {greedy: {do_sample: false}}
rows: {procedure: on-policy}
head: {num_layers: 0}
training: {learning_rate: 1e-3}
states: []
max_new_tokens: 8
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(YAML)
    return path


def test_settings_become_what_they_are(path):
    recipe = Recipe.read(path, ["rows.mixing=0.5", "limit=3"])
    assert recipe.prompts == ["prompts.jsonl"] and recipe.limit == 3 and recipe.rows == Rows("on-policy", 0.5)
    assert recipe.training_arguments(path.parent).learning_rate == 0.001
    config = recipe.head_config("greedy")
    assert (config.num_layers, config.decoding["do_sample"], config.rule) == (0, False, "cost-aware")


def test_a_copy_of_the_target_goes_by_the_name_of_the_published_one(path, tmp_path):
    assert Recipe.read(path, [f"target={tmp_path}"]).head_config("greedy").target_name_or_path == "org/target"
    assert Recipe.read(path, ["target=org/other"]).head_config("greedy").target_name_or_path == "org/other"


def test_what_is_no_recipe_is_refused(path):
    path.write_text(YAML.replace("draft: org/draft\n", ""))
    with pytest.raises(ValueError, match=r"pair.yaml lacks settings or has wrong ones: .* 'draft'"):
        Recipe.read(path)
    path.write_text("- a list")
    with pytest.raises(ValueError, match=r"pair.yaml holds no settings by name"):
        Recipe.read(path)
