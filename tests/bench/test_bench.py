"""`specdecpp bench` and its report on a tiny pair on disk, and the verdict's words."""

import copy
import json
import shutil

import pytest
from typer.testing import CliRunner

from hf_specdecpp.bench import run as run_module
from hf_specdecpp.bench.measure import Row
from hf_specdecpp.bench.report import PAPER_SETS, against, paper_points
from hf_specdecpp.bench.run import read_result
from hf_specdecpp.bench.verdict import verdict
from hf_specdecpp_cli import app

METHODS = ("assisted=2", "lookup", "recommended")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def bench(pair, *arguments, head=True, methods=METHODS):
    given = ["--target", pair / "target", "--draft", pair / "draft", *(["--head", pair / "head"] if head else [])]
    chosen = [word for name in methods for word in ("--method", name)]
    return invoke("bench", *given, *chosen, "--dtype", "float32", "--max-new-tokens", 8, "--threads", 1, *arguments)


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    """The path of a result with two sets."""
    path = tmp_path_factory.mktemp("result") / "pair.json"
    sets = ("--set", f"alpaca={pair / 'prompts.jsonl'}", "--set", "mixed", "--count", 3, "--repeats", 2)
    done = bench(pair, *sets, "--output", path)
    assert done.exit_code == 0, done.output
    assert "Measured on alpaca, greedy, 3 prompts of" in done.output and "2 timed runs" in done.output
    return path


def test_a_result_says_everything_and_names_no_folder(measured, pair):
    text = measured.read_text()
    assert str(pair) not in text and len(text) < 50_000
    result = json.loads(text)
    assert {"command", "git_revision", "versions", "device", "threads", "models"} <= set(result)
    assert result["configuration"]["sets"] == ["alpaca=prompts.jsonl", "mixed"] and not result["unavailable"]
    assert len(result["costs"]["verify_seconds"]) == 9 and "r2" in result["costs"]["linear_fit"]
    for name in ("alpaca", "mixed"):
        found = result["sets"][name]
        assert found["prompts"] == found["replay"]["prompts"] == 3
        assert list(found["methods"]) == ["plain", *METHODS]
        for method in found["methods"].values():
            assert method["equal_to_plain"] == 3 and not method["differences"]
            assert [len(seconds) for seconds in method["by_prompt"]["seconds"]] == [2, 2, 2]
        assert "specdec++" in found["replay"]["thresholds"] and len(found["replay"]["fixed"]) == 8


def test_rules_learn_costs_as_they_do_for_users(pair, tmp_path, monkeypatch):
    """Costs that were calibrated for greedy chains made trees and sampling look worse than users have them."""
    asked, measure = [], run_module.measure

    def heard(bench, methods, *arguments):
        asked.extend(methods)
        return measure(bench, methods, *arguments)

    monkeypatch.setattr(run_module, "measure", heard)
    done = bench(pair, "--count", 1, "--repeats", 0, "--output", tmp_path / "pair.json", head=False)
    assert done.exit_code == 0, done.output
    config = asked[-1].keywords["stopping_config"]
    assert config.rule == "cost-aware" and "costs" not in (config.settings or {})


def test_a_result_is_never_edited_and_rows_of_other_settings_are_refused(measured, pair):
    again = bench(pair, "--output", measured)
    assert again.exit_code == 1 and "results are never edited" in again.output
    rows = measured.with_suffix(".rows.jsonl").read_text()
    for suffix in (".rows.jsonl", ".rows.settings.json"):
        shutil.copy(measured.with_suffix(suffix), measured.with_name(f"other{suffix}"))
    other = bench(pair, "--output", measured.with_name("other.json"))
    assert other.exit_code == 1
    assert "holds a run with another count (3 there, 12 asked for), prompts_sha256 (" in other.output
    assert measured.with_name("other.rows.jsonl").read_text() == rows


def test_a_killed_run_goes_on(pair, tmp_path, monkeypatch):
    path = tmp_path / "pair.json"
    whole, measure = [], run_module.measure

    def killed(*arguments):
        for n, row in enumerate(measure(*arguments)):
            if n == 5:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(run_module, "measure", killed)
    assert bench(pair, "--count", 2, "--repeats", 1, "--output", path).exit_code != 0 and not path.exists()
    first = path.with_suffix(".rows.jsonl").read_text()
    costs = path.with_suffix(".costs.json").read_text()
    monkeypatch.setattr(run_module, "measure", measure)
    assert bench(pair, "--count", 2, "--repeats", 1, "--output", path).exit_code == 0
    whole = path.with_suffix(".rows.jsonl").read_text()
    assert whole.startswith(first) and path.with_suffix(".costs.json").read_text() == costs
    rows = [Row.from_json(line) for line in whole.splitlines()]
    assert len({row.key for row in rows}) == len(rows) == 2 * 2 * 4


def test_quick_says_in_words_what_the_pair_gains(pair):
    done = bench(pair, "--quick", "--count", 6, methods=())
    assert done.exit_code == 0, done.output
    for words in (
        "With this pair SpecDec++ is", "x plain decoding, 95 % interval", "transformers' best setting (",
        "prompt lookup", "Your draft costs", "Its output equals plain decoding on 6 of 6 prompts.", "1 timed run of",
    ):  # fmt: skip
        assert words in done.output


def test_a_draft_without_a_head_is_measured_by_what_needs_none(pair, tmp_path):
    done = bench(
        pair, "--sample", "--count", 2, "--repeats", 1, "--output", tmp_path / "r.json", head=False,
        methods=("recommended", "specdec++"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = read_result(tmp_path / "r.json")
    assert list(result["sets"]["mixed"]["methods"]) == ["plain", "recommended"]
    assert "acceptance head" in result["unavailable"]["specdec++"] and "not available: specdec++" in done.output
    assert "specdec++" not in result["sets"]["mixed"]["replay"]["thresholds"] and "equals plain" not in done.output


def test_the_report_makes_tables_and_every_figure(measured, tmp_path):
    done = invoke("bench", "report", measured, "--output", tmp_path / "report")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report" / "report.md").read_text()
    figures = {f"pair-{n}-{k}.svg" for n in ("alpaca", "mixed") for k in ("speed", "pareto", "acceptance", "length")}
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.md", *figures}
    assert all(f"({name})" in text for name in figures)
    assert "## alpaca, greedy" in text and "| transformers assisted, fixed 2 |" in text and "R^2" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 * (2 + 4) and len({line.count("|") for line in table}) == 1
    (tmp_path / "none.json").write_text("{}")
    assert "holds no result" in invoke("bench", "report", tmp_path / "none.json", "--output", tmp_path).output
    assert "the same file name" in invoke("bench", "report", measured, measured, "--output", tmp_path).output


def test_two_methods_are_compared_prompt_by_prompt():
    ours, other = ({"by_prompt": {"speedup": s}} for s in ([1.0, 3.0, 1.0], [2.0, 2.0, 0.5]))
    assert against(ours, other) == "1.50 (0.50 to 2.00), ahead on 2 of 3" and against(None, other) == ""


def test_the_papers_points_are_at_hand():
    for data in PAPER_SETS.values():
        fixed, adaptive = paper_points(data, "SpecDec"), paper_points(data, "SpecDec++")
        assert len(fixed) == 6 and len(adaptive) > 60 and all(0 < point["verif"] < 1 for point in fixed + adaptive)


def changed(measured, **recommended):
    """The result with other numbers for SpecDec++, on ten prompts of one set."""
    result = copy.deepcopy(read_result(measured))
    del result["sets"]["alpaca"]
    found = result["sets"]["mixed"]
    found["prompts"] = 10
    found["replay"]["oracle"]["speedup"], found["replay"]["first_acceptance"] = 1.7, 0.55
    result["costs"] |= {"draft_seconds": 0.31, "verify_seconds": [1.0, 1.1]}
    same = {"tokens_per_second": 28.4, "equal_to_plain": 10, "differences": []}
    found["methods"]["recommended"] |= {"speedup": 1.42, "speedup_interval": [1.3, 1.5]} | same | recommended
    found["methods"]["plain"]["tokens_per_second"] = 20.0
    found["methods"]["assisted=2"] |= {"speedup": 1.18, "speedup_interval": [1.1, 1.25]}
    return result


def test_the_verdict_names_gain_rival_and_limit(measured):
    text = verdict(changed(measured))
    assert (
        "With this pair SpecDec++ is 1.42x plain decoding, 95 % interval 1.30 to 1.50 (28.4 against 20.0 tokens a "
        "second): it pays. For comparison: transformers' best setting (fixed 2) 1.18x (1.10 to 1.25); prompt lookup"
    ) in text
    assert (
        "Your draft costs 0.31 of a target step and says the target's next token 55% of the time, which limits chains "
        "of it to about 1.70x, even with perfect hindsight; trees and drafts from the text go beyond that. Its "
        "output equals plain decoding on 10 of 10 prompts."
    ) in text


@pytest.mark.parametrize(
    "recommended, words",
    [
        ({"speedup_interval": [0.7, 0.9]}, "it does not pay"),
        ({"speedup_interval": [0.9, 1.1]}, "whether it pays cannot be told"),
        ({"differences": [{"prompt": 1, "position": 3, "logit_gap": -0.0005}]}, "rounding decided a near-tie"),
        (
            {"differences": [{"prompt": 1, "position": 3, "logit_gap": 0.5}]},
            "larger than rounding in float32",
        ),
        ({"differences": [{"prompt": 1, "position": 3, "logit_gap": None}]}, "please report it"),
    ],
)
def test_the_verdict_says_what_is_wrong(measured, recommended, words):
    assert words in verdict(changed(measured, **recommended))


def test_chains_beyond_hindsight_say_that_the_machine_was_not_quiet(measured):
    """Trees and lookups may go beyond it, so the recommended method says nothing of the machine."""
    result = changed(measured, speedup_interval=[1.9, 2.1])
    assert "quiet" not in verdict(result)
    methods = result["sets"]["mixed"]["methods"]
    methods["chain"] = methods["recommended"] | {"label": "SpecDec++, chains of the model"}
    assert "the machine was not quiet" in verdict(result)


def test_the_verdict_does_not_judge_by_few_prompts_or_a_draft_that_cannot_pay(measured):
    result = changed(measured)
    result["sets"]["mixed"]["prompts"] = 2
    result["sets"]["mixed"]["replay"]["oracle"]["speedup"] = 1.0
    text = verdict(result)
    assert "but 2 prompts cannot tell whether it pays" in text and "so chains of it cannot pay here" in text
    assert "range 1.30 to 1.50" in text and "medians over prompts with their range" in text
    assert "2 prompts of " in text
    result["sets"]["mixed"]["asked"] = 6
    result["configuration"]["minutes"] = 2.0
    assert "2 of 6 prompts (in 2 minutes) of " in verdict(result)
    del result["sets"]["mixed"]["methods"]["recommended"]
    result["unavailable"]["recommended"] = "ValueError: no cache"
    assert "SpecDec++ does not run with this pair (ValueError: no cache)" in verdict(result)
