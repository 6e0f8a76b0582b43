import json

import pytest
from models import card_of, prompts, similar_draft, with_head
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from hf_specdecpp import AcceptanceHeadConfig, StoppingConfig
from hf_specdecpp.costs.store import Calibration
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.replay import replay
from hf_specdecpp.evidence.trace import read_traces, record_traces
from hf_specdecpp.stopping import CostProfile
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import label_prompts
from hf_specdecpp.training.sweep import variants, worth
from hf_specdecpp_cli import app

COSTS = CostProfile(0.1, (1.0, 1.05, 1.1, 1.3))


@pytest.fixture(scope="module")
def material(target, tokenizer, tmp_path_factory):
    """Labels made in two ways, traces with states, and costs."""
    folder = tmp_path_factory.mktemp("sweep")
    similar_draft(target, noise=0.25).save_pretrained(folder / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    rows = prompts(tokenizer, 40)
    for name, made in (("labels", Rows()), ("mixed", Rows("specdec++", 0.3))):
        card = card_of((target, draft), rows, made, modes={"greedy": Decoding()}, max_new_tokens=12)
        label_prompts(target, draft, rows, folder / name, card)
    others = [row["prompt_ids"] for row in prompts(tokenizer, 44)][-4:]
    record_traces(target, with_head(draft), others, folder / "traces.jsonl", Decoding(), 16, 4, keep_states=True)
    Calibration({}, {128: COSTS}).save(folder / "costs.json")
    return folder


def test_one_choice_is_changed_at_a_time(material):
    base = AcceptanceHeadConfig(num_layers=1, reads="before", features=["probability"])
    found = variants(base, [material / "labels", material / "mixed"])
    assert found[0].name == "base" and len({v.name for v in found}) == len(found)
    for variant in found[1:]:
        changed = [name for name, value in variant.config.items() if getattr(base, name) != value]
        assert changed or variant.label == "overlap" or variant.labels == material / "mixed"
    assert {v.choice for v in found} == {
        "base", "depth", "blocks", "rejection-weight", "reads", "features", "label", "rows"
    }  # fmt: skip
    assert found[-1].name == "rows specdec++, mixing 0.3"
    few = variants(base, [material / "labels"], ["depth", "reads"])
    assert [v.name for v in few] == ["base", "depth 0", "depth 2", "depth 3", "depth 4", "reads after"]
    with pytest.raises(ValueError, match="no choice 'width': choose among depth, blocks"):
        variants(base, [material / "labels"], ["width"])


def test_a_draft_of_blocks_has_no_state_after_a_token(material, tmp_path):
    card = json.loads((material / "labels" / "labels.json").read_text())
    (tmp_path / "labels.json").write_text(json.dumps(card | {"draft_signature": "dflash-5x2560-151936"}))
    base = AcceptanceHeadConfig(num_layers=1, reads="before")
    assert [v.name for v in variants(base, [tmp_path], ["reads"])] == ["base"]


def test_worth_is_the_best_threshold_and_the_untuned_rule(material):
    traces = read_traces(material / "traces.jsonl")
    found = worth(traces, COSTS, 0.5)
    for h in (0.2, 0.9):
        other = replay(traces, StoppingConfig(h, 1, 4, "specdec++").new_rule, COSTS).speedup
        assert other <= found["threshold_speedup"]
    at = replay(traces, StoppingConfig(found["threshold"], 1, 4, "specdec++").new_rule, COSTS).speedup
    assert at == found["threshold_speedup"] and found["cost_aware_speedup"] > 0


def run(material, *more):
    arguments = ("train", "--labels", material / "labels", "--output", material / "heads", "--dtype", "float32",
                 "--epochs", 1, "--sweep", *more)  # fmt: skip
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
def test_the_sweep_trains_judges_and_draws_every_variant_once(material):
    evidence = ("--labels", material / "mixed", "--traces", material / "traces.jsonl", "--costs",
                material / "costs.json")  # fmt: skip
    result = run(material, *evidence)
    assert result.exit_code == 0, result.output
    written = json.loads((material / "heads" / "sweep.json").read_text())
    rows = written["variants"]
    procedures = [card["procedure"] for card in written["labels"]]
    assert written["command"] and procedures == ["on-policy", "specdec++"]
    table = (material / "heads" / "sweep.md").read_text().splitlines()
    assert len(table) == len(rows) + 2 and table[2].startswith("| base | ")
    assert len(rows) == len(list((material / "heads").glob("*/adapter_config.json"))) > 12
    assert len({row["binary_kl"] for row in rows}) > 8 and all(row["cost_aware_speedup"] > 0 for row in rows)
    assert (material / "heads" / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    times = {path: path.stat().st_mtime_ns for path in (material / "heads").glob("*/metrics.json")}
    assert run(material, *evidence).exit_code == 0
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_a_sweep_without_evidence_and_two_labels_without_a_sweep_are_refused(material):
    assert "give --traces and --costs" in run(material).stderr
    arguments = ["train", "--labels", "a", "--labels", "b", "--output", "c"]
    assert "one folder of labels, got 2" in CliRunner().invoke(app, arguments).stderr
