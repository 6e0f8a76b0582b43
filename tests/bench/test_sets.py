"""Each set's rows become what a user would say."""

import json

import pytest

from hf_specdecpp.bench.sets import MIXED, SETS, load_prompts

ROWS = {
    "alpaca": ({"instruction": "Add.", "input": "1, 2", "output": "3"}, "Add.\n\n1, 2"),
    "gsm8k": ({"question": "How many?", "answer": "#### 4"}, "How many?"),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "assert f()"},
        "Complete the following Python function. Answer with the whole function.\n\n```python\ndef f():\n```",
    ),
    "mt-bench": ({"prompt_id": 1, "prompt": ["First?", "Second?"], "category": "writing"}, "First?"),
    "summaries": (
        {"article": "word\n" + "and " * 600, "highlights": "Word."},
        "Summarize the following article in a few sentences.\n\nword" + " and" * 499,
    ),
    "own": ({"prompt": "Hi"}, "Hi"),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_set_has_its_template(name, tmp_path):
    row, expected = ROWS[name]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert load_prompts(f"{name}={tmp_path / 'rows.jsonl'}", 5) == (name, [expected])
    assert name == "own" or name in SETS


def test_a_subset_is_the_same_for_the_same_seed(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}"}) + "\n" for i in range(50)))
    source = f"own={tmp_path / 'rows.jsonl'}"
    _, first = load_prompts(source, 8)
    assert len(set(first)) == 8 and load_prompts(source, 8)[1] == first != load_prompts(source, 8, seed=1)[1]
    assert load_prompts(source, 12)[1][:8] == first


def test_mixed_prompts_need_no_source_and_unknown_names_are_refused(tmp_path):
    assert load_prompts("mixed", 4) == ("mixed", MIXED[:4])
    with pytest.raises(ValueError, match="there is no set 'alpacca': choose one of mixed, alpaca"):
        load_prompts("alpacca", 4)
