"""Every script of the recipe, from responses to a tuned head, on a tiny pair."""

import json
import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp import AcceptanceHeadConfig, CompactLlamaForCausalLM
from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.demo_pair import DRAFT, HEADS
from hf_specdecpp.labels import LabelsCard
from hf_specdecpp.pipeline import label_prompts, train_head
from hf_specdecpp.responses import generate_responses
from hf_specdecpp.trainer import AcceptanceTrainingArguments

RECIPE = Path(__file__).parents[1] / "recipes" / "smollm2-135m"


@pytest.fixture
def run(monkeypatch):
    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *(str(a) for a in arguments)])
        monkeypatch.syspath_prepend(str(RECIPE))
        runpy.run_path(str(RECIPE / script), run_name="__main__")

    return run


@pytest.fixture(scope="module")
def material(target, tokenizer, tmp_path_factory):
    """A target on disk and a file of its responses to 40 prompts of two sets."""
    folder = tmp_path_factory.mktemp("recipe")
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    rows = []
    for i in range(40):
        text = f"Prompt {i}."
        ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)[
            "input_ids"
        ]
        response = generate_responses(target, [ids], Decoding(True), 10, [2], seed=i)[0]
        name = ("dolly_train", "gsm8k_train")[i % 2]
        rows.append({"set": name, "row": i // 2 * 16, "prompt": text, "response_ids": response})
    (folder / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = [{"question": f"Prompt {i}."} for i in range(60)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    return folder


def test_the_recipe_from_responses_to_a_tuned_head(run, material, tmp_path, capsys):
    target, responses = material / "target", material / "responses.jsonl"
    teacher, draft, head = tmp_path / "teacher", tmp_path / "draft", tmp_path / "head"

    cache = ("cache_teacher.py", "--target", target, "--responses", responses, "--output", teacher, "--top", 8)
    run(*cache, "--batch-tokens", 256)
    shards = sorted(teacher.glob("*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    kept = shards[0].stat().st_mtime_ns
    run(*cache, "--batch-tokens", 256)  # makes the missing shard alone
    assert shards[1].exists() and shards[0].stat().st_mtime_ns == kept

    first, short = tmp_path / "draft1", ("--max-steps", 6, "--batch-tokens", 512)
    distil = ("distil_draft.py", "--target", target, "--teacher", teacher)
    run(*distil, "--output", first, "--layers", 0, 1, "--compact-vocab-size", 96, *short)
    run(*distil, teacher, "--output", draft, "--init", first, *short)  # goes on from the first draft, on more text
    drafts = [AutoModelForCausalLM.from_pretrained(m) for m in (first, draft)]
    assert torch.equal(*(d.lm_head.token_ids for d in drafts)) and not torch.equal(*(d.lm_head.weight for d in drafts))
    metrics = json.loads((draft / "metrics.json").read_text())
    assert 0 <= metrics["eval_match"] <= 1 and 0 < metrics["eval_overlap"] <= 1
    assert isinstance(AutoModelForCausalLM.from_pretrained(draft), CompactLlamaForCausalLM)
    assert AutoTokenizer.from_pretrained(draft).chat_template

    fresh = tmp_path / "fresh.jsonl"
    run("fresh_prompts.py", "--responses", responses, "--source", material / "prompts.jsonl", 9, "--output", fresh)
    seen = {json.loads(line)["prompt"] for line in responses.read_text().splitlines()}
    chosen = [json.loads(line)["prompt"] for line in fresh.read_text().splitlines()]
    assert len(chosen) == 9 and not seen & set(chosen)

    run(
        "evaluate_draft.py", "--target", target, "--draft", draft, "--set", "prompts", material / "prompts.jsonl", 4,
        "--responses", responses, "--max-new-tokens", 8, "--output", tmp_path / "draft.json",
    )  # fmt: skip
    found = json.loads((tmp_path / "draft.json").read_text())["sets"]
    assert list(found) == [
        "prompts, sampled responses", "prompts, greedy responses", "dolly_train held out, sampled responses",
        "gsm8k_train held out, sampled responses",
    ]  # fmt: skip
    assert all(0 < s["overlap"] <= 1 and s["tokens"] > 0 for s in found.values())

    models = [AutoModelForCausalLM.from_pretrained(m) for m in (target, draft)]
    card = LabelsCard.of(*models, Decoding(), mixing=0.15, max_new_tokens=8, seed=0)
    rows = [{"prompt": text} for text in chosen]
    label_prompts(*models, AutoTokenizer.from_pretrained(target), rows, tmp_path / "labels", card)
    config = AcceptanceHeadConfig(target_signature=card.target_signature)
    train_head(models[1], tmp_path / "labels", head, config, AcceptanceTrainingArguments(str(head / "checkpoints")))

    rules = tmp_path / "rules.json"
    compare = ("compare_rules.py", "--target", target, "--draft", draft, "--head", head, "--set", "dev", fresh,
               "--set", "test", material / "prompts.jsonl", "--max-new-tokens", 8, "--max-draft-length", 3, "--traces",
               tmp_path / "traces", "--output", rules)  # fmt: skip
    run(*compare, "--count", 1)
    run(*compare, "--count", 2, "--recommend")  # records the second prompts alone
    written = json.loads(rules.read_text())
    tables, losses = written["tables"], written["log_loss_of_acceptance"]["test"]
    assert 0 < losses["constant"] <= math.log(2) + 0.01 and losses["head"] > 0 and losses["tokens"] > 0
    assert list(tables) == ["dev", "test"] and len(tables["test"]) == 12
    assert all(
        row["speedup"] <= table["oracle"]["speedup"] + 1e-9 for table in tables.values() for row in table.values()
    )
    assert len((tmp_path / "traces" / "head-test.jsonl").read_text().splitlines()) == 2
    recommended = AcceptanceHeadConfig.from_pretrained(head)
    assert recommended.rule == "cost-aware" and 0 <= recommended.rule_settings["mean_acceptance"] < 1

    lossless = tmp_path / "lossless.jsonl"
    check = ("check_lossless.py", "--target", target, "--draft", draft, "--head", head, "--set", "p",
             material / "prompts.jsonl", "--max-new-tokens", 8, "--output", lossless)  # fmt: skip
    run(*check, "--count", 2)
    run(*check, "--count", 3)
    assert [json.loads(line)["equal"] for line in lossless.read_text().splitlines()] == [True] * 3
    assert "p: 3 of 3 prompts equal, float32" in capsys.readouterr().out


def test_responses_are_sampled_once_and_a_killed_run_goes_on(run, material, tmp_path):
    output, excluded = tmp_path / "responses.jsonl", tmp_path / "excluded.jsonl"
    excluded.write_text(json.dumps({"prompt": "Prompt 3."}) + "\n")
    sample = (
        "sample_responses.py", "--target", material / "target", "--set", "dolly_train", material / "prompts.jsonl",
        "--exclude", excluded, "--max-new-tokens", 4, "--batch-size", 8, "--output", output,
    )  # fmt: skip
    run(*sample)
    whole = output.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert sorted(row["row"] for row in rows) == [i for i in range(60) if i != 3]
    assert all(1 <= len(row["response_ids"]) <= 4 for row in rows)
    output.write_text(whole[: len("".join(whole.splitlines(keepends=True)[:20])) + 25])  # killed within a line
    run(*sample)
    assert output.read_text() == whole
    run(*sample[:-1], tmp_path / "reference.jsonl", "--reference", "question", "--limit", 5)
    assert len((tmp_path / "reference.jsonl").read_text().splitlines()) == 5


def test_the_shipped_weights_fit_together_and_are_small():
    draft = AutoModelForCausalLM.from_pretrained(DRAFT)
    assert model_signature(draft.config).startswith("compact_llama-2x576-")
    assert draft.config.vocab_size == 49152 == len(AutoTokenizer.from_pretrained(DRAFT))
    for name, sample in (("greedy", False), ("sampling", True)):
        draft.load_adapter(str(HEADS / name), adapter_name=name)
        config = AcceptanceHeadConfig.from_pretrained(HEADS / name)
        assert config.decoding["do_sample"] is sample
        assert config.target_signature == "llama-30x576-49152"
    draft.set_adapter("greedy")
    with torch.no_grad():
        logits = draft(torch.tensor([[1, 9690, 198]])).logits
    assert logits.shape == (1, 3, 49152) and logits.isfinite().all()
    weights = [path for folder in (DRAFT, HEADS) for path in folder.rglob("*.safetensors")]
    assert sum(path.stat().st_size for path in weights) < 44e6 and (DRAFT / "model.safetensors").stat().st_size < 32e6
