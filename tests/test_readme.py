"""Every example of the README and of the pages of `docs/` runs, on the shipped draft and heads and a random target."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import similar_draft
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import hf_specdecpp
from hf_specdecpp import StoppingConfig
from hf_specdecpp.drafting.informed.config import Eagle3Config
from hf_specdecpp.hub.demo_pair import DRAFT, HUB_ID
from hf_specdecpp.stopping import RULES
from hf_specdecpp_cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = {"README": README} | DOCS
REPOSITORY = "https://github.com/hf-specdecpp/hf_specdecpp"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.fixture(scope="module")
def ten_lines():
    """What the README's first example leaves, which all pages go on from.

    Answers for the Hub: a model of the target's shape with random weights, and its real tokenizer.
    """
    draft = Eagle3Config.from_pretrained(DRAFT)
    shape = {n: getattr(draft, n) for n in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}
    config = LlamaConfig(num_hidden_layers=30, num_key_value_heads=draft.num_key_value_heads, eos_token_id=2, **shape)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    load_model, load_tokenizer = AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            AutoModelForCausalLM, "from_pretrained", lambda n, **kw: model if n == HUB_ID else load_model(n, **kw)
        )
        patch.setattr(AutoTokenizer, "from_pretrained", lambda n: load_tokenizer(DRAFT if n == HUB_ID else n))
        patch.chdir(ROOT)
        namespace = {}
        exec(compile(blocks("README", "python")[0], "README.md", "exec"), namespace)
        yield namespace


def test_the_ten_lines_answer(ten_lines):
    assert "Why is the sky blue?" in ten_lines["tokenizer"].decode(ten_lines["output"][0])


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_python_examples_run_in_order(page, ten_lines):
    """Each page goes on from the ten lines, and the first pages begin with them."""
    namespace, examples = dict(ten_lines), blocks(page, "python")
    if examples[0] == blocks("README", "python")[0]:
        del examples[0]
    assert page not in ("README", "index") or len(examples) < len(blocks(page, "python"))
    try:
        for example in examples:
            exec(compile(example, page, "exec"), namespace)
    finally:
        hf_specdecpp.enable()
    if page == "generate":
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
        "compile": [],
        "demo": ["--max-new-tokens", "8", "--count", "1"],
        "bench": ["--max-new-tokens", "8", "--count", "2", "--repeats", "1", "--method", "recommended"],
        "push": ["--target", "org/target", "--draft", "org/draft"],
    }
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    commands = dict.fromkeys(line for line in lines if line.startswith("specdecpp"))
    assert len(commands) >= 8
    for command in commands:
        _, name, *arguments = shlex.split(command, comments=True)
        if name != "push":  # it asks for names on the Hub
            arguments = [names.get(word, word) for word in arguments]
        if arguments[0] != "report":
            arguments += short[name]
        result = CliRunner().invoke(app, [name, *arguments])
        assert result.exit_code == 0, f"{command}\n{result.output}"
    namespace: dict = {}
    exec(next(block for block in blocks("rules", "python") if "def speedup" in block), namespace)
    assert namespace["speedup"]("runs/traces.jsonl", StoppingConfig(rule="svip", threshold=0.3)) > 0


def test_other_commands_name_scripts_and_options_that_there_are():
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("python ")]
    assert commands
    for _, script, *words in commands:
        source = (ROOT / script).read_text()
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in source or f"\n    {option[2:].replace('-', '_')}: " in source, (script, option)


def test_every_link_leads_somewhere():
    """Of pages to each other, with their sections, and to files of the repository."""
    anchors = {
        page: {
            re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)", text, re.M)
        }
        for page, text in PAGES.items()
    }
    for page, text in PAGES.items():
        folder = ROOT if page == "README" else ROOT / "docs"
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if link.startswith(REPOSITORY):
                path = re.sub(r"^/(blob|tree)/main/", "", link.removeprefix(REPOSITORY))
                assert (ROOT / path).exists(), (page, link)
            elif not link.startswith("http"):
                path, _, anchor = link.partition("#")
                found = folder / path if path else ROOT / ("README.md" if page == "README" else f"docs/{page}.md")
                assert found.exists(), (page, link)
                assert not anchor or anchor in anchors[found.stem], (page, link)


def test_the_reference_has_all_public_names_and_the_rules_page_all_rules():
    assert set(hf_specdecpp.__all__) <= set(re.findall(r"::: hf_specdecpp\.(\w+)$", DOCS["api"], re.MULTILINE))
    table = re.findall(r"^\| (`[^|]*?) \|", DOCS["rules"], re.MULTILINE)
    assert {name for cell in table for name in re.findall(r"`([^`]+)`", cell)} == set(RULES)


def test_the_first_screen_shows_the_measured_table_with_its_conditions():
    first_screen = README[: README.index("## Install")]
    assert "SpecDec++" in first_screen and "plain `generate`" in first_screen and "bfloat16" in first_screen
    assert len(README.encode()) <= 8_000


def test_the_files_that_the_readme_names_exist():
    table = README[README.index("## Where things are") : README.index("## When not to use it")]
    named = [
        name for cell in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    ]
    assert len(named) > 12
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "hf_specdecpp" / name).exists(), name


def test_a_script_beside_the_clone_finds_the_package(tmp_path):
    """The folder that holds the clone has a folder of the package's name, which is no package."""
    (tmp_path / "hf_specdecpp").mkdir()
    asked = "from importlib.util import find_spec; print(find_spec('hf_specdecpp').origin)"
    found = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("__init__.py")
