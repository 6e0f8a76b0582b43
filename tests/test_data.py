import json

import pytest

from hf_specdecpp.data import load_rows, prompt_ids, prompt_text


def test_rows_of_the_usual_sets_have_prompts():
    assert prompt_text({"instruction": "Add.", "input": "1 and 2", "output": "3"}) == "Add.\n\n1 and 2"
    assert prompt_text({"instruction": "Sum up.", "context": "Long text.", "response": ""}) == "Sum up.\n\nLong text."
    assert prompt_text({"instruction": "Hi", "input": ""}) == "Hi"
    assert prompt_text({"question": "Why?", "answer": "So."}) == "Why?"
    assert prompt_text({"task_id": "HumanEval/0", "prompt": "def f():"}) == "def f():"
    with pytest.raises(ValueError, match=r"no prompt in a row with the fields \['text'\]"):
        prompt_text({"text": "x"})


def test_files_load_and_bad_sources_are_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(3)))
    assert [row["prompt"] for row in load_rows(str(path))] == ["p0", "p1", "p2"]
    with pytest.raises(ValueError, match="does not exist"):
        load_rows(str(tmp_path / "missing.jsonl"))
    (tmp_path / "prompts.txt").write_text("p")
    with pytest.raises(ValueError, match="give such a file"):
        load_rows(str(tmp_path / "prompts.txt"))


def test_prompts_wear_the_chat_template(tokenizer):
    assert tokenizer.decode(prompt_ids(tokenizer, "Hi")) == "user: Hi\nassistant: "
    bare = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    assert bare.decode(prompt_ids(bare, "Hi")) == "Hi"
