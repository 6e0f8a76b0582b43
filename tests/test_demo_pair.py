import pytest

from hf_specdecpp.demo_pair import CACHE, DRAFT, HEADS, HUB_ID, public_name, shipped


def test_names_in_results_say_nothing_of_this_machine():
    assert public_name(str(CACHE / "SmolLM2-135M-Instruct")) == HUB_ID
    assert public_name(str(HEADS / "greedy")) == "recipes/smollm2-135m/heads/greedy"
    assert public_name("org/model") == "org/model"


def test_an_installation_without_the_recipes_says_so():
    assert shipped(DRAFT) == str(DRAFT)
    with pytest.raises(ValueError, match="come with a clone of the repository"):
        shipped(DRAFT / "nothing")
