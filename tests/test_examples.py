"""The examples run, on a tiny pair; where the demo's pair is installed, as a user runs them."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_specdecpp.hub.demo_pair import CACHE, demo_target
from hf_specdecpp.stopping import RULES

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(pair):
    """Calls `main` of an example with the folders of the tiny pair."""

    def run(name, *arguments, head=True, **more):
        folders = {role: pair / role for role in ("target", "draft", *(["head"] if head else []))}
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments, **folders, **more)

    return run


def test_a_chat_answers_every_question(run, capsys):
    messages = run("chat", ["Hello?", "And why?"], max_new_tokens=8)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    out = capsys.readouterr().out
    assert "> Hello?" in out and "> And why?" in out and all(m["content"].strip()[:3] in out for m in messages)


def test_a_batch_answers_every_prompt_of_a_file(run, capsys):
    run("batch", EXAMPLES / "prompts.txt", max_new_tokens=4)
    out, err = capsys.readouterr()
    answered = {json.loads(line)["prompt"] for line in out.splitlines()}
    assert answered == set((EXAMPLES / "prompts.txt").read_text().splitlines()) and "tokens per target pass" in err


def test_a_rule_of_ones_own_is_known_by_its_name(run, capsys, monkeypatch):
    monkeypatch.delitem(RULES, "one-more", raising=False)
    try:
        run("own_rule", head=False, max_new_tokens=12)
    finally:
        RULES.pop("one-more")
    own, fixed = capsys.readouterr().out.split("\n\n")[:2]
    assert own.startswith("one-more") and "one more " in own and fixed.startswith("fixed")


def test_a_head_is_trained_on_prompts_of_ones_own(run, tmp_path, capsys):
    metrics = run("train_head", EXAMPLES / "prompts.txt", tmp_path, head=False, max_new_tokens=6, epochs=1)
    assert "binary_kl" in metrics and (tmp_path / "head" / "adapter_config.json").exists()
    assert "error of the head" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["chat.py", "Hi?"], ["batch.py"], ["own_rule.py"], ["train_head.py", "examples/prompts.txt"]]
)
def test_an_example_runs_on_the_demos_pair(command, tmp_path):
    if demo_target() != str(CACHE / "SmolLM2-135M-Instruct"):
        pytest.skip("the demo's target is not installed here, and tests fetch nothing")
    output = [tmp_path / "head"] if command[0] == "train_head.py" else []
    done = subprocess.run(
        [sys.executable, EXAMPLES / command[0], *command[1:], *output], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr


def test_every_example_says_how_to_run_it():
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in path.read_text()
