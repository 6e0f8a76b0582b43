import json

import pytest
from datasets import Dataset

from hf_specdecpp.hub import data
from hf_specdecpp.hub.data import listed, load_rows, prompt_digest, prompt_ids, prompt_text


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
    path.write_text('{"prompt": "p"}\n{"prompt": ')
    with pytest.raises(ValueError, match=r"prompts.jsonl' is damaged or no .jsonl of rows"):
        load_rows(str(path))


def test_a_hub_out_of_reach_is_told(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'org/set' on the Hub")

    monkeypatch.setattr(data, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"could be loaded from 'org/set:test': give the id .* or a local file"):
        load_rows("org/set:test")


@pytest.mark.parametrize(
    "source, name, config, split",
    [
        ("a/b", "a/b", [], "train"),
        ("a/b:test", "a/b", [], "test"),
        ("a/b:main:test", "a/b", ["main"], "test"),
        ("a/b:train[:40%]", "a/b", [], "train[:40%]"),
        ("a/b:main:train[5:9]", "a/b", ["main"], "train[5:9]"),
    ],
)
def test_a_source_on_the_hub_names_a_configuration_and_a_split_or_a_slice(monkeypatch, source, name, config, split):
    asked = []
    monkeypatch.setattr(data, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)))
    load_rows(source)
    assert asked == [((name, *config), {"split": split})]


def test_a_list_takes_prompts_whatever_their_white_space(tmp_path):
    rows = Dataset.from_list([{"instruction": "Sum  up.", "context": f"Text {i}.\n"} for i in range(4)])
    path = tmp_path / "list.txt"
    path.write_text("".join(prompt_digest(f"Sum up. Text {i}.") + "\n" for i in (1, 3, 9)))
    assert listed(rows, path)["context"] == ["Text 1.\n", "Text 3.\n"]
    with pytest.raises(ValueError, match="none of 1 prompts is in"):
        listed(rows.select([0]), path)


def test_prompts_wear_the_chat_template(tokenizer):
    assert tokenizer.decode(prompt_ids(tokenizer, "Hi")) == "user: Hi\nassistant: "
    bare = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    assert bare.decode(prompt_ids(bare, "Hi")) == "Hi"
