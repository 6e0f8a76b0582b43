"""The commands, on a tiny pair on disk."""

import io
import json
import shutil
from importlib.metadata import version

import pytest
import torch
from models import byte_tokenizer
from rich.console import Console
from transformers import LlamaForCausalLM
from transformers.utils import logging
from typer.testing import CliRunner

from hf_specdecpp.stopping import CostProfile, DraftedToken, Round
from hf_specdecpp_cli import app
from hf_specdecpp_cli.answer import Answer

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


def test_from_prompts_to_a_head_that_the_demo_uses(pair, tmp_path):
    models = ("--target", pair / "target", "--draft", pair / "draft")
    prompts = ("--prompts", pair / "prompts.jsonl")
    common = ("--max-new-tokens", 12, "--batch-size", 4, "--dtype", "float32")
    labelled = run("label", *models, *prompts, "--output", tmp_path / "labels", "--sample", "--top-k", 20, *common)
    assert labelled.exit_code == 0, labelled.output
    assert "labels of 12 responses" in labelled.output

    trained = run("train", "--labels", tmp_path / "labels", "--output", tmp_path / "head", "--dtype", "float32")
    assert trained.exit_code == 0, trained.output
    assert "binary_kl_constant" in trained.output
    config = json.loads((tmp_path / "head" / "adapter_config.json").read_text())
    assert config["rule"] == "cost-aware" and 0 <= config["rule_settings"]["mean_acceptance"] <= 1
    warpers = {"temperature": 1.0, "top_k": 20, "top_p": 1.0}
    assert config["decoding"] == {"do_sample": True, **warpers, "coupling": "seeded"}
    assert config["target_name_or_path"] == str(pair / "target") and config["target_signature"] == "llama-2x32-264"

    shown = run(
        "demo", *models, "--head", tmp_path / "head", "--sample", "--max-new-tokens", 4, "--count", 1, "--dtype",
        "float32",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "SpecDec++" in shown.output


def test_labels_are_sampled_as_the_target_samples(pair, tmp_path):
    """Its generation config says how, as it does to `generate(do_sample=True)`; what is given goes before it."""
    target = shutil.copytree(pair / "target", tmp_path / "target")
    settings = json.loads((target / "generation_config.json").read_text())
    settings |= {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (target / "generation_config.json").write_text(json.dumps(settings))
    for name, given, expected in (
        ("own", (), {"temperature": 0.6, "top_k": 50, "top_p": 0.9}),
        ("given", ("--temperature", 1, "--top-k", 0), {"temperature": 1.0, "top_k": 0, "top_p": 0.9}),
    ):
        done = run(
            "label", "--target", target, "--draft", pair / "draft", "--prompts", pair / "prompts.jsonl", "--output",
            tmp_path / name, "--sample", "--limit", 2, "--max-new-tokens", 4, "--dtype", "float32", *given,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        card = json.loads((tmp_path / name / "labels.json").read_text())
        assert card["responses"] == card["decodings"]["sampling"] == {
            "do_sample": True, **expected, "coupling": "seeded",
        }  # fmt: skip
        assert f"sampling: do_sample=True, {', '.join(f'{k}={v}' for k, v in expected.items())}" in done.output


def test_the_demo_streams_an_answer_and_compares_the_methods(pair):
    result = run(
        "demo", "--target", pair / "target", "--draft", pair / "draft", "--head", pair / "head", "--prompt", "Why?",
        "--max-new-tokens", 8, "--count", 2, "--dtype", "float32",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    answer, table = result.output.split("mixed", 1)
    assert answer.startswith(f"target: {pair / 'target'}")
    assert "Why?" in answer and "that were tried" in answer and "x plain decoding, by its measured" in answer
    for method in ("plain generate", "assisted, default", "SpecDec++"):
        assert method in table
    assert "With this pair SpecDec++ is" in table


def test_a_chat_says_what_plain_decoding_says_and_reads_every_turn_once(pair, monkeypatch):
    """The conversation goes on behind a kept cache; an empty line ends it."""
    models = ("--target", pair / "target", "--draft", pair / "draft", "--head", pair / "head", "--dtype", "float32")
    said, generate = [], LlamaForCausalLM.generate

    def heard(self, ids, **settings):
        said.append((ids, settings["past_key_values"].get_seq_length(), generate(self, ids, **settings)))
        return said[-1][-1]

    monkeypatch.setattr(LlamaForCausalLM, "generate", heard)
    result = CliRunner().invoke(app, [*map(str, ("chat", *models, "--max-new-tokens", 12))], input="Hi\nAnd why?\n\n")
    assert result.exit_code == 0, result.output
    assert result.output.count("tokens a target pass") == 2
    target = LlamaForCausalLM.from_pretrained(pair / "target")
    (first, cached, _), (second, kept, _) = said
    assert cached == 0 and first.shape[1] < kept < second.shape[1]
    for ids, _, output in said:
        plain = generate(target, ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert output.tolist() == plain.tolist()
    assert "assistant: " in byte_tokenizer().decode(second[0])


def test_an_answer_shows_drafted_tokens_in_colour(tokenizer):
    """Those of a round that were accepted come first; a character of several tokens is shown when it is whole."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    answer = Answer(console, tokenizer)
    answer.put(torch.tensor([[1, 5, 6]]))  # the prompt
    for text, accepted in (("ab", 1), ("ü", 1)):
        ids = tokenizer(text)["input_ids"]
        for token in ids:
            answer.put(torch.tensor([token]))
        answer.hear(Round([DraftedToken(1)], accepted, new_tokens=len(ids), draft_seconds=1.0, target_seconds=1.0))
    answer.end()
    assert console.file.getvalue() == "\x1b[32ma\x1b[0mbü\n"
    words = answer.summary(2.0, CostProfile(0.1, (1.5,)))
    assert words == (
        "2.0 tokens/s, 2 of 4 tokens drafted (of 2 that were tried), 2.00 tokens a target pass, "
        "about 1.88x plain decoding, by its measured costs"
    )
    assert "about 1.88x" in answer.summary(200.0, CostProfile(0.1, (1.5,)))  # however busy the machine was meanwhile


def test_others_are_heard_where_they_are_asked_for(pair, tmp_path):
    """transformers' own words come with -v, behind the command as any option."""
    command = ("label", "--target", pair / "target", "--draft", pair / "draft", "--prompts", pair / "prompts.jsonl",
               "--limit", 1, "--max-new-tokens", 2, "--dtype", "float32")  # fmt: skip
    run(*command, "--output", tmp_path / "quiet")
    assert logging.get_verbosity() == logging.ERROR
    logging.set_verbosity_warning()
    try:
        assert run(*command, "--output", tmp_path / "loud", "-v").exit_code == 0
        assert logging.get_verbosity() == logging.WARNING
    finally:
        logging.set_verbosity_error()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("bench", "--method", "magic"), "there is no method 'magic': choose among plain"),
        (
            ("demo", "--target", "/nowhere/at/all", "--draft", "x", "--head", "y"),
            "there is no folder '/nowhere/at/all'",
        ),
        (("demo", "--target", "./nowhere", "--draft", "x", "--head", "y"), "there is no folder './nowhere'"),
        (("train", "--labels", "/nowhere", "--output", "/nowhere/head"), "holds no labels.json"),
    ],
)
def test_errors_are_one_sentence_and_no_traceback(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


def test_a_calibration_is_measured_once_kept_and_drawn(pair, tmp_path):
    command = ("calibrate", "--target", pair / "target", "--draft", pair / "draft", "--head", pair / "head", "--dtype",
               "float32", "--context", 16, "--max-draft-length", 2)  # fmt: skip
    first = run(*command, "--output", tmp_path / "out")
    assert first.exit_code == 0, first.output
    assert "R^2" in first.output and "measured before" not in first.output
    profiles = json.loads((tmp_path / "out" / "float32.json").read_text())["profiles"]
    assert len(profiles["16"]["verify_seconds"]) == 3
    assert (tmp_path / "out" / "costs.png").exists()
    assert "measured before" in run(*command, "--output", tmp_path / "again").output
    assert json.loads((tmp_path / "again" / "float32.json").read_text())["profiles"] == profiles
    assert "measured before" not in run(*command, "--force").output


def test_a_calibration_that_cannot_be_kept_is_shown_all_the_same(pair, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("hf_specdecpp.costs.store.CACHE", tmp_path / "file" / "costs")  # for root too
    models = ("--target", pair / "target", "--draft", pair / "draft", "--head", pair / "head")
    result = run("calibrate", *models, "--dtype", "float32", "--context", 16, "--max-draft-length", 2)
    assert result.exit_code == 0 and "not kept" in result.output and "R^2" in result.output


def test_traces_are_recorded_and_a_killed_run_goes_on(pair, tmp_path):
    traces = tmp_path / "traces.jsonl"
    command = (
        "trace", "--target", pair / "target", "--draft", pair / "draft", "--head", pair / "head", "--sample",
        "--prompts", pair / "prompts.jsonl", "--output", traces, "--limit", 3, "--max-new-tokens", 6,
        "--max-draft-length", 2, "--dtype", "float32",
    )  # fmt: skip
    first = run(*command)
    assert first.exit_code == 0, first.output
    whole = traces.read_text()
    assert [len(json.loads(line)["drafts"][0]["tokens"]) for line in whole.splitlines()] == [2, 2, 2]
    traces.write_text(whole[: len(whole) // 2])  # killed within a line
    assert run(*command).exit_code == 0
    assert traces.read_text() == whole
    for changes, differ in (
        (("--max-new-tokens", 4), "max_new_tokens"), (("--prompts", other_prompts(pair, tmp_path)), "prompts"),
    ):  # fmt: skip
        refused = run(*command, *changes)
        assert refused.exit_code == 1
        assert f"holds traces made with another {differ} (" in refused.output
    assert traces.read_text() == whole
    longer = run(*command, "--limit", 4)
    assert longer.exit_code == 0 and traces.read_text().startswith(whole)
    assert len(traces.read_text().splitlines()) == 4


def test_traces_of_trees_are_recorded(pair, tmp_path):
    command = (
        "trace", "--target", pair / "target", "--draft", pair / "draft", "--prompts", pair / "prompts.jsonl",
        "--output", tmp_path / "trees.jsonl", "--limit", 1, "--max-new-tokens", 4, "--max-draft-length", 2, "--dtype",
        "float32",
    )  # fmt: skip
    done = run(*command, "--branches", 2)
    assert done.exit_code == 0, done.output
    first, *_ = json.loads((tmp_path / "trees.jsonl").read_text())["drafts"]
    assert first["parents"][:2] == [-1, -1] and len(first["tokens"]) == 6
    assert "another branches" in run(*command).output
    refused = run(*command, "--branches", 2, "--head", pair / "head", "--states")
    assert refused.exit_code == 1 and "trees are recorded without hidden states" in refused.output


def other_prompts(pair, folder):
    lines = (pair / "prompts.jsonl").read_text().splitlines(keepends=True)
    (folder / "other.jsonl").write_text("".join(lines[::-1]))
    return folder / "other.jsonl"


def test_the_version_is_told():
    assert run("--version").output.strip() == version("hf_specdecpp")
