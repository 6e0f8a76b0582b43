"""Every example of the README runs, on the shipped draft and heads and a random target of SmolLM2's shape."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from models import similar_draft
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import hf_specdecpp
from hf_specdecpp import StoppingConfig
from hf_specdecpp.hub.demo_pair import DRAFT, HUB_ID
from hf_specdecpp_cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def smollm2(monkeypatch):
    """Answers for the Hub: a model of the target's shape with random weights, and its real tokenizer."""
    draft = AutoModelForCausalLM.from_pretrained(DRAFT).config
    shape = {n: getattr(draft, n) for n in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}
    config = LlamaConfig(num_hidden_layers=30, num_key_value_heads=draft.num_key_value_heads, eos_token_id=2, **shape)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    load_model, load_tokenizer = AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda n, **kw: model if n == HUB_ID else load_model(n, **kw)
    )
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda n: load_tokenizer(DRAFT if n == HUB_ID else n))
    monkeypatch.chdir(ROOT)


@pytest.mark.slow
def test_the_python_examples_run_in_order(smollm2, capsys):
    namespace = {}
    examples = blocks("python")
    assert len(examples) >= 5
    try:
        for example in examples:
            exec(compile(example, "README.md", "exec"), namespace)
    finally:
        hf_specdecpp.enable()
    assert "Why is the sky blue?" in capsys.readouterr().out
    assert namespace["stats"].rounds > 0


@pytest.mark.slow
def test_the_commands_run(target, tokenizer, tmp_path, monkeypatch, hub):
    """As they stand, with the names of models and data replaced by a tiny pair and the runs kept short."""
    target.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    similar_draft(target).save_pretrained(tmp_path / "draft")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi"}\n{"prompt": "Why?"}\n' * 6)
    monkeypatch.chdir(tmp_path)
    names = {
        "org/target": "target", "org/draft": "draft", "databricks/databricks-dolly-15k": "prompts.jsonl", "1000": "12",
        "alpaca": "alpaca=prompts.jsonl",
    }  # fmt: skip
    short = {
        "label": ["--max-new-tokens", "8"],
        "trace": ["--max-new-tokens", "8"],
        "train": [],
        "calibrate": ["--max-draft-length", "2"],
        "demo": ["--max-new-tokens", "8", "--count", "1"],
        "bench": ["--max-new-tokens", "8", "--count", "2", "--repeats", "1", "--method", "recommended"],
        "push": ["--target", "org/target", "--draft", "org/draft"],
    }
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("specdecpp")]
    assert len(commands) >= 3
    for command in commands:
        _, name, *arguments = shlex.split(command)
        if name != "push":  # it asks for names on the Hub
            arguments = [names.get(word, word) for word in arguments]
        if arguments[0] != "report":
            arguments += short[name]
        result = CliRunner().invoke(app, [name, *arguments])
        assert result.exit_code == 0, f"{command}\n{result.output}"
    namespace: dict = {}
    exec(next(block for block in blocks("python") if "def speedup" in block), namespace)
    assert namespace["speedup"]("runs/traces.jsonl", StoppingConfig(rule="svip", threshold=0.3)) > 0


def test_the_first_screen_shows_the_measured_table_with_its_conditions():
    first_screen = README[: README.index("## Install")]
    assert "SpecDec++" in first_screen and "plain `generate`" in first_screen and "bfloat16" in first_screen


def test_the_files_that_the_readme_names_exist():
    table = README[README.index("## Where things are") : README.index("## Limits")]
    named = [
        name for cell in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    ]
    assert len(named) > 12
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "hf_specdecpp" / name).exists(), name
