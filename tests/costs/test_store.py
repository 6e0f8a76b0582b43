import copy
import json

import pytest
import torch
from models import prompt, similar_draft, tiny_model, with_head
from transformers import BitsAndBytesConfig

from hf_specdecpp import SpecDecPP, StoppingConfig
from hf_specdecpp.costs import store as calibration
from hf_specdecpp.costs.store import Calibration, loaded_as, pair_identity, stored_calibration, stored_path
from hf_specdecpp.drafting.pair import Pair
from hf_specdecpp.stopping import CostProfile

LINE = CostProfile(0.5, (1.1, 1.2, 1.3, 1.4))


def test_it_survives_its_file_and_answers_with_the_nearest_context(tmp_path):
    found = Calibration({"device": "cpu"}, {64: LINE, 512: CostProfile(0.5, (2.0, 3.0))})
    found.save(tmp_path / "folder" / "costs.json")
    again = Calibration.load(tmp_path / "folder" / "costs.json")
    assert again == found
    assert again.at(10) == LINE and again.at(400).verification(2) == 3.0


def test_the_fit_is_the_papers_line_and_says_how_good_it_is():
    fit = Calibration({}, {64: LINE}).linear_fit()
    assert fit["base_seconds"] == pytest.approx(1.0) and fit["slope_seconds"] == pytest.approx(0.1)
    assert fit["r2"] == pytest.approx(1.0) and fit["draft_seconds"] == 0.5
    steps = Calibration({}, {64: CostProfile(0.5, (1.0, 1.0, 1.0, 2.0, 2.0, 2.0))}).linear_fit()
    assert 0.5 < steps["r2"] < 0.9


DAMAGED = (
    "", "{}", "[]", '{"pair": {}, "profiles": {"64": {"draft": 1}}}', '{"pair": {}, "profiles": {}}',
    '{"pair": {}, "profiles": {"long": {"draft_seconds": 1, "verify_seconds": [1]}}}',
    '{"pair": {}, "profiles": {"64": {"draft_seconds": -1, "verify_seconds": [1]}}}',
)  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, content):
    (tmp_path / "costs.json").write_text(content)
    with pytest.raises(ValueError, match="holds no calibration"):
        Calibration.load(tmp_path / "costs.json")


@pytest.mark.parametrize("content", [*DAMAGED, None])
def test_a_stored_calibration_that_cannot_be_read_counts_as_none(target, content):
    """With a warning: every `generate` of the pair asks for it."""
    draft = similar_draft(target)
    path = stored_path(pair_identity(target.config, draft))
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_text(content)
    assert stored_calibration(target.config, draft) is None


def test_another_dtype_thread_count_or_model_has_another_calibration(target, monkeypatch):
    draft = similar_draft(target)
    paths = {stored_path(pair_identity(target.config, draft))}
    assert paths == {stored_path(pair_identity(target.config, draft))}
    paths.add(stored_path(pair_identity(target.config, similar_draft(target).bfloat16())))
    paths.add(stored_path(pair_identity(tiny_model("qwen3").config, draft)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    paths.add(stored_path(pair_identity(target.config, draft)))
    monkeypatch.setattr(
        "hf_specdecpp.evidence.conditions.processor", lambda: "another processor"
    )  # of one home on two machines
    paths.add(stored_path(pair_identity(target.config, draft)))
    paths.add(stored_path(pair_identity(tiny_model().to("meta"), draft)))
    paths.add(stored_path(pair_identity(tiny_model().half(), draft)))
    for name, value in (("_attn_implementation", "eager"), ("quantization_config", {"load_in_4bit": True})):
        for role in ("target", "draft"):
            loaded = {"target": tiny_model(), "draft": similar_draft(target)}
            setattr(loaded[role].config, name, value)
            paths.add(stored_path(pair_identity(loaded["target"].config, loaded["draft"])))
    assert len(paths) == 11


def test_a_draft_that_was_moved_has_other_costs(target):
    draft, config = similar_draft(target), copy.deepcopy(target.config)
    config.dtype = target.dtype  # as `from_pretrained` writes it there
    before = pair_identity(config, draft)
    assert pair_identity(target, draft) == before
    moved = pair_identity(config, draft.to("meta"))
    assert {name for name in before if before[name] != moved[name]} == {"draft_device", "target_device"}


def test_a_quantised_model_is_told_by_its_settings(target):
    config = copy.deepcopy(target.config)
    assert loaded_as(config, torch.float16).endswith("float16 sdpa not quantised")
    config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    assert '"load_in_8bit": true' in loaded_as(config, torch.float16)


def test_generate_finds_what_was_calibrated(target):
    """With a draft that is said to cost three steps, the cost-aware rule hardly begins to draft."""
    from hf_specdecpp import collect_stats

    drafted = []
    for seconds in (0.001, 3.0):
        draft = with_head(similar_draft(target))
        base = draft.get_base_model()
        pair = pair_identity(target, base)
        Calibration(pair, {64: CostProfile(seconds, (1.0, 1.0))}).save(stored_path(pair))
        with collect_stats() as stats:
            target.generate(
                prompt(), assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=40, do_sample=False,
                stopping_config=StoppingConfig(rule="cost-aware"),
            )  # fmt: skip
        drafted.append(stats.drafted_by["model"])
    assert drafted[0] > 3 * drafted[1]
    assert json.loads(next(calibration.CACHE.glob("*.json")).read_text())["pair"]["draft"].endswith(
        "float32 sdpa not quantised"
    )


def test_a_calibration_is_what_generations_begin_with_and_learn_on_from(target):
    """Costs that were measured of chains say that wide trees are free; one that stayed would be believed for ever."""
    draft = similar_draft(target)
    pair, found = Pair(draft, None, StoppingConfig(rule="cost-aware", settings={"uses_head": False})), []
    identity = pair_identity(target, draft)
    Calibration(identity, {64: CostProfile(0.1, (1.0, 1.0, 1.0)), 512: LINE}).save(stored_path(identity))
    for _ in range(2):
        (rule,), experience = pair.rules(pair.settings(target.generation_config), 60, 1, target)
        known = rule.rule.current_costs()
        found.append((known.draft_seconds, known.verification(3), known.verification(20)))
        for _ in range(20):
            experience.costs.add(1, 0.3, 5.0, width=20)
    assert found[0] == pytest.approx((0.1, 1.0, 1.0))
    assert found[1][0] == pytest.approx(0.3) and found[1][1] == pytest.approx(1.0) and found[1][2] > 4.0
