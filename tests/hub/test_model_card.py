import json

import pytest
from huggingface_hub import ModelCard

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.hub.model_card import UNWRITTEN, head_card

CONFIG = AcceptanceHeadConfig(
    base_model_name_or_path="org/draft", target_name_or_path="org/target", hidden_size=576, rule="cost-aware",
    rule_settings={"mean_acceptance": 0.36}, threshold=0.2, max_draft_length=12,
)  # fmt: skip


def card(folder, config=CONFIG, license="mit", data=("org/one", "org/two")):
    """As the Hub would read it."""
    return ModelCard(str(head_card(folder, "user/head", config, license, data)))


def test_the_card_tells_pair_use_settings_data_and_metrics(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"binary_kl": 0.434206, "labels": 4753, "note": "not a number"}))
    (tmp_path / "reliability.png").touch()
    made = card(tmp_path)
    assert made.data.to_dict() == {
        "base_model": "org/draft", "library_name": "peft", "license": "mit", "datasets": ["org/one", "org/two"],
        "pipeline_tag": "text-generation", "tags": ["acceptance-head", "speculative-decoding", "specdec++"],
    }  # fmt: skip
    for line in (
        "# Acceptance head: org/draft drafts for org/target",
        'draft = AutoModelForCausalLM.from_pretrained("user/head", dtype="auto")  # the draft with this head',
        "    do_sample=False",
        "| `rule` | cost-aware |",
        "| `mean_acceptance` | 0.36 |",
        "| `threshold` | 0.2 |",
        "| `max_draft_length` | 12 |",
        "| `binary_kl` | 0.4342 |",
        "| `labels` | 4753 |",
        "![Predicted against observed acceptance](reliability.png)",
    ):
        assert line in made.text.splitlines(), line
    assert "labels from `org/one`, `org/two`" in made.text and "note" not in made.text


@pytest.mark.parametrize(
    "draft",
    (
        {"draft_signature": "eagle3-1x576-49152"}, {"draft_signature": "dspark-5x2560-151936"},
        {"base_model_name_or_path": "org/target"},
    ),
    ids=("EAGLE-3", "DSpark", "MTP"),
)  # fmt: skip
def test_a_head_of_a_draft_that_reads_the_target_is_loaded_by_load_draft(tmp_path, draft):
    config = AcceptanceHeadConfig(**CONFIG.to_dict() | draft)
    lines = card(tmp_path, config).text.splitlines()
    assert "from hf_specdecpp import SpecDecPP, load_draft" in lines
    assert 'draft = load_draft("user/head", target=target)  # the draft with this head' in lines


def test_a_head_without_metrics_promises_none(tmp_path):
    made = card(tmp_path, data=())
    assert made.data.datasets is None
    assert "held-out" not in made.text and ".png" not in made.text and "labels from" not in made.text


def test_the_card_of_a_sampling_head_samples(tmp_path):
    decoding = {"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.9}
    config = AcceptanceHeadConfig(**CONFIG.to_dict() | {"decoding": decoding, "tied": True})
    made = card(tmp_path, config)
    assert "do_sample=True, temperature=0.6, top_k=0, top_p=0.9\n)" in made.text
    assert "sampling (temperature 0.6, top-k 0, top-p 0.9, rejection coupling)" in made.text
    assert "one SiLU block applied 3 times" in made.text


@pytest.mark.parametrize("mark", UNWRITTEN)
def test_a_card_that_nobody_wrote_is_made_anew(tmp_path, mark):
    (tmp_path / "README.md").write_text(f"---\nbase_model: /home/me/draft\n---\n\n{mark}\n\nOld.\n")
    made = card(tmp_path)
    assert "Old." not in made.text and made.data.base_model == "org/draft"


def test_pefts_template_is_recognised(tmp_path, draft):
    draft.save_pretrained(tmp_path)
    assert UNWRITTEN[0] in (tmp_path / "README.md").read_text()


def test_a_card_that_somebody_wrote_is_kept_and_completed(tmp_path):
    """But for the draft, without which the Hub and PEFT do not find what the head belongs to."""
    text = "# Mine\n\nBraces {stay} as they are.\n"
    (tmp_path / "README.md").write_text(f"---\nlicense: cc-by-4.0\nbase_model: /home/me/draft\n---\n{text}")
    made = card(tmp_path)
    assert made.text == text
    assert made.data.license == "cc-by-4.0" and made.data.base_model == "org/draft"
    assert made.data.datasets == ["org/one", "org/two"] and "specdec++" in made.data.tags


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("README.md", "---\n[\n---\n", "must be UTF-8 with a front matter in YAML"),
        ("README.md", "---\nonly words\n---\n", "must be UTF-8 with a front matter in YAML"),
        ("metrics.json", "[]", "must hold numbers by name"),
        ("metrics.json", "{", "must hold numbers by name"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}' {message}"):
        card(tmp_path)
