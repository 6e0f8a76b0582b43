"""The order of the generations, what a row says, and what a killed run leaves."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import prompt, similar_draft, tiny_model, with_head

from hf_specdecpp.bench.measure import COUNTED, Bench, Row, measure, obstacle, resume
from hf_specdecpp.bench.methods import ALL, KINDS, compiled, draft_settings, new_method

METHODS = ("plain", "assisted=2", "recommended")
PROMPTS = {"a": [prompt(5, 0), prompt(6, 1)], "b": [prompt(7, 2)]}


@pytest.fixture
def bench(target, draft):
    return Bench(target, draft.get_base_model(), {"do_sample": False, "max_new_tokens": 8})


@pytest.fixture
def methods(bench):
    return [new_method(name, bench.target, bench.draft) for name in METHODS]


def keys(rows):
    return [row.key for row in rows]


def test_methods_take_turns_within_a_prompt_and_sets_from_prompt_to_prompt(bench, methods):
    """And the method that begins is another one from prompt to prompt."""
    rows = list(measure(bench, methods, PROMPTS, repeats=2))
    orders = {0: METHODS, 1: (*METHODS[1:], METHODS[0])}
    turns = [("a", 0), ("b", 0), ("a", 1)]
    assert keys(rows) == [(*turn, repeat, name) for turn in turns for repeat in (0, 1, 2) for name in orders[turn[1]]]


def test_the_counted_row_holds_tokens_and_rounds_and_timed_rows_hold_seconds_only(bench, methods):
    for row in measure(bench, methods, PROMPTS, repeats=1):
        assert row.seconds > 0 and row.new_tokens == 8
        if row.repeat != COUNTED:
            assert row.ids is None and row.statistics is None
            continue
        stats = row.statistics
        assert len(row.ids) == stats.tokens == 8 and row.peak_bytes > 0 and row.first_difference is None
        assert (stats.rounds == 8 and not stats.drafted) if row.method == "plain" else 1 < stats.rounds < 8


@pytest.mark.parametrize(
    "name, sources, branches",
    [
        ("chain", {"model"}, False),
        ("tree", {"model"}, True),
        ("transformers-loop", {"model"}, False),
        ("text", {"lookup", "recycling"}, True),
        ("recommended", {"model", "lookup", "recycling"}, True),
    ],
)
def test_methods_draft_from_what_they_say(target, name, sources, branches):
    bench = Bench(target, similar_draft(target, noise=0.3), {"do_sample": False, "max_new_tokens": 24})
    method = new_method(name, bench.target, bench.draft)
    config = method.keywords["stopping_config"]
    costs = {"draft_seconds": 1e-4, "verify_seconds": [1.0]}
    method.keywords["stopping_config"] = replace(config, settings={**config.settings, "costs": costs})
    stats = bench.count(method, torch.tensor([[3, 4, 5, 6, 7] * 4]))["statistics"]
    assert set(stats.drafted_by) == sources
    assert sum(stats.drafted_by.values()) == stats.drafted and sum(stats.accepted_by.values()) == stats.accepted
    assert (stats.drafted > sum(stats.drafted_at.values())) is branches


def test_every_kind_of_method_is_listed_or_takes_a_value():
    assert {name.partition("=")[0] for name in ALL} == set(KINDS)


def test_rows_survive_a_file(bench, methods, tmp_path):
    rows = list(measure(bench, methods, PROMPTS, repeats=1))
    assert any(row.statistics and row.statistics.drafted_by for row in rows)
    _, append = resume(tmp_path / "rows.jsonl", {"dtype": "float32"})
    for row in rows:
        append(row)
    assert resume(tmp_path / "rows.jsonl", {"dtype": "float32"})[0] == rows


def test_a_killed_run_goes_on_where_it_was(bench, methods, tmp_path):
    whole = keys(measure(bench, methods, PROMPTS, repeats=1))
    path, header = tmp_path / "rows.jsonl", {"dtype": "float32"}
    done, append = resume(path, header)
    with pytest.raises(KeyboardInterrupt):
        for n, row in enumerate(measure(bench, methods, PROMPTS, 1, done)):
            append(row)
            if n == 3:
                raise KeyboardInterrupt
    with path.open("a") as file:
        file.write('{"set": "a", "pro')
    done, append = resume(path, header)
    assert keys(done) == whole[:4]
    rest = list(measure(bench, methods, PROMPTS, 1, done))
    assert keys(rest) == whole[4:]
    for row in rest:
        append(row)
    assert keys(resume(path, header)[0]) == whole


def test_rows_of_another_configuration_are_refused(tmp_path):
    resume(tmp_path / "rows.jsonl", {"dtype": "float32", "threads": 1})
    with pytest.raises(ValueError, match=r"another dtype \('float32' there.*\), seed \(None there, 0 asked"):
        resume(tmp_path / "rows.jsonl", {"dtype": "bfloat16", "threads": 1, "seed": 0})


def test_rows_of_another_version_are_refused(tmp_path):
    _, append = resume(tmp_path / "rows.jsonl", {"dtype": "float32"})
    append(Row("a", 0, 1, "plain", 1.5, 8))
    for line in ('{"set": "a", "colour": "of a later version"}', "nonsense"):
        with (tmp_path / "rows.jsonl").open("a") as file:
            file.write(line + "\n")
        with pytest.raises(ValueError, match="no row of this version"):
            resume(tmp_path / "rows.jsonl", {"dtype": "float32"})


def test_a_deadline_lets_two_prompts_of_each_set_finish(bench, methods):
    prompts = {"a": [prompt(5, seed) for seed in range(4)]}
    rows = list(measure(bench, methods, prompts, 1, deadline=0.0))
    assert {row.prompt for row in rows} == {0, 1} and len(rows) == 2 * 2 * len(METHODS)


def test_a_machine_that_does_not_tell_its_peak_loses_nothing_else(bench, methods, monkeypatch):
    """As containers that refuse /proc/self/clear_refs."""
    write = Path.write_text

    def refused(self, *args, **kwargs):
        if self.name == "clear_refs":
            raise PermissionError(errno.EACCES, "Permission denied")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", refused)
    rows = list(measure(bench, methods, {"a": PROMPTS["a"][:1]}, repeats=0))
    assert len(rows) == 3 and all(row.peak_bytes is None and row.seconds > 0 for row in rows)


def test_the_first_difference_is_found_with_the_gap_of_the_targets_logits(bench):
    ids = PROMPTS["a"][0]
    plain = bench.target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    new = plain[0, 5:].tolist()
    other = [*new[:3], (new[3] + 1) % 264, *new[4:]]
    found = bench.difference(ids, new, other)
    with torch.no_grad():
        logits = bench.target(plain).logits[0, 5 + 3 - 1]
    gap = (logits[new[3]] - logits[other[3]]).item()
    assert found["first_difference"] == 3 and found["logit_gap"] == pytest.approx(gap, abs=1e-4) and gap > 0
    assert bench.difference(ids, new, new) == {}
    assert bench.difference(ids, new, new[:4]) == {"first_difference": 4}


def test_a_wrong_method_is_noticed(bench, methods):
    plain, assisted, _ = methods
    bad = with_head(similar_draft(bench.target), threshold=0.6).get_base_model()
    wrong = Bench(bench.target, bad, bench.settings)

    def generate(method, *args, **kwargs):
        ids, seconds = Bench.run(bench, method, *args, **kwargs)
        return ([*ids[:2], 263, *ids[3:]] if method is assisted else ids), seconds

    wrong.run = generate
    rows = [row for row in measure(wrong, [plain, assisted], {"a": PROMPTS["a"]}, 1) if row.ids]
    assert [(row.prompt, row.method) for row in rows] == [
        (0, "plain"),
        (0, "assisted=2"),
        (1, "assisted=2"),
        (1, "plain"),
    ]
    for row in rows:  # also where the wrong one came first
        assert row.first_difference == (None if row.method == "plain" else 2)
        assert row.method == "plain" or row.logit_gap > 0


@pytest.mark.parametrize("name", [name for name in ALL if name != "compiled"])
def test_every_method_says_what_plain_decoding_says(bench, name):
    method = new_method(name, bench.target, bench.draft)
    for seed in range(2):
        ids = prompt(6, seed)
        expected, _ = bench.run(new_method("plain", bench.target, bench.draft), ids)
        assert bench.run(method, ids)[0] == expected
        assert bench.count(method, ids)["ids"] == expected


@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
@pytest.mark.slow
def test_compiled_decoding_says_the_same_or_why_it_cannot():
    target = tiny_model()
    bench = Bench(target, target, {"do_sample": False, "max_new_tokens": 6})
    expected, _ = bench.run(new_method("plain", target, target), prompt(6))
    assert obstacle(bench, compiled("eager"), prompt(6)) is None
    assert bench.run(compiled("eager"), prompt(6))[0] == expected

    def no_compiler(graph, inputs, **options):
        raise RuntimeError("no C++ compiler\nat all")

    torch.compiler.reset()
    assert "no C++ compiler" in obstacle(Bench(tiny_model(), target, bench.settings), compiled(no_compiler), prompt(6))


def test_settings_of_the_draft_are_given_back(target):
    before = target.generation_config.to_dict()
    with pytest.raises(KeyError), draft_settings(target, {"num_assistant_tokens": 3}):
        assert target.generation_config.num_assistant_tokens == 3
        raise KeyError
    assert target.generation_config.to_dict() == before


@pytest.mark.parametrize(
    "name, message",
    [
        ("magic", "there is no method 'magic'"),
        ("assisted=many", "'assisted=many' cannot be"),
        ("fixed", "'fixed' cannot be"),
        ("svip=2", "threshold"),
        ("any", "there is no method 'any'"),
    ],
)
def test_methods_that_do_not_exist_are_refused(bench, name, message):
    with pytest.raises(ValueError, match=message):
        new_method(name, bench.target, bench.draft)


def test_a_row_keeps_no_unknowns():
    assert Row("a", 0, 1, "plain", 1.5, 8).to_json() == (
        '{"set": "a", "prompt": 0, "repeat": 1, "method": "plain", "seconds": 1.5, "new_tokens": 8}'
    )
