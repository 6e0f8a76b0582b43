"""Every recipe from prompts to judged heads, and every script of the shipped draft, on tiny pairs."""

import importlib.util
import json
import math
import re
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from completions_stand_in import CompletionsStandIn, completed
from models import VOCAB, similar_draft, tiny_model, with_head
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp import AcceptanceHeadConfig, CompactLlamaConfig, CompactLlamaForCausalLM
from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.drafting.informed.eagle3 import Eagle3ForCausalLM
from hf_specdecpp.hub.data import prompt_digest
from hf_specdecpp.hub.demo_pair import DRAFT, HEADS
from hf_specdecpp.training.label_folder import read_card
from hf_specdecpp.training.recipe import Recipe
from hf_specdecpp.training.responses import generate_responses

RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE = RECIPES / "smollm2-135m"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# The architectures of target and draft.
PAIRS = {
    "llama-2-70b": ("llama", "llama"),
    "smollm2-1.7b": ("llama", "llama"),
    "smollm2-135m": ("llama", "compact_llama"),
}


def compact_draft(target):
    """The target's layers behind most of its vocabulary."""
    settings = {k: v for k, v in target.config.to_dict().items() if k not in ("model_type", "architectures")}
    draft = CompactLlamaForCausalLM(CompactLlamaConfig(**settings | {"compact_vocab_size": VOCAB - 64}))
    draft.set_vocabulary(torch.arange(VOCAB - 64), target.get_input_embeddings().weight)
    draft.model.layers.load_state_dict(target.model.layers.state_dict())
    return draft


@pytest.fixture
def pair(request, tokenizer, tmp_path):
    """A folder with a tiny pair, prompts, and the changes by which the recipe `request.param` runs on them."""
    kinds = PAIRS[request.param]
    target = tiny_model(kinds[0], tie_word_embeddings=kinds[1] == "compact_llama")
    target.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    draft = compact_draft(target) if kinds[1] == "compact_llama" else similar_draft(target, noise=0.25)
    draft.save_pretrained(tmp_path / "draft")
    assert (target.config.model_type, draft.config.model_type) == kinds
    rows = [json.dumps({"prompt": f"{i} + {i * i}?"}) + "\n" for i in range(30)]
    (tmp_path / "prompts.jsonl").write_text("".join(rows[:24]))
    (tmp_path / "test.jsonl").write_text("".join(rows[24:]))
    settings = {
        "target": tmp_path / "target", "draft": tmp_path / "draft", "prompts": tmp_path / "prompts.jsonl",
        "judge": f"{{test: {tmp_path / 'test.jsonl'}}}", "judge_limit": 4, "max_new_tokens": 8,
        "batch_size": 12, "dtype": "float32", "training.num_train_epochs": 1,
    }  # fmt: skip
    with ExitStack() as stack:
        published = Recipe.read(RECIPES / f"{request.param}.yaml")
        if published.unseen:
            digests = [prompt_digest(json.loads(row)["prompt"]) for row in rows[:20]]
            (tmp_path / "unseen.txt").write_text("\n".join(digests))
            settings["unseen"] = tmp_path / "unseen.txt"
        if published.server:
            server = CompletionsStandIn(lambda asked: completed([sum(asked["prompt"]) % 200 + i for i in range(8)]))
            settings["server"] = stack.enter_context(server).url
        yield tmp_path, [f"{key}={value}" for key, value in settings.items()]


@pytest.fixture
def train_head():
    spec = importlib.util.spec_from_file_location("train_head", RECIPES / "train_head.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_at_most_two_recipes_were_never_run_and_say_so():
    untried = [path.stem for path in RECIPES.glob("*.yaml") if "Not run by us" in path.read_text()]
    assert len(untried) <= 2 and len(set(PAIRS) - set(untried)) == 1


def test_every_recipe_is_run_and_named():
    names = {path.stem for path in RECIPES.glob("*.yaml")}
    assert names == set(PAIRS) == set(re.findall(r"recipes/(\S+)\.yaml", (RECIPES / "README.md").read_text()))


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
@pytest.mark.slow
def test_a_recipe_goes_from_prompts_to_judged_heads(pair, train_head, request):
    (folder, changes), name = pair, request.node.callspec.params["pair"]
    path, output = RECIPES / f"{name}.yaml", folder / "run"
    train_head.main(path, output, changes)
    recipe, published = Recipe.read(path, changes), Recipe.read(path)
    report = json.loads((output / "report.json").read_text())
    for mode, decoding in recipe.modes.items():
        config = AcceptanceHeadConfig.from_pretrained(output / mode)
        assert Decoding(**config.decoding) == decoding and config.target_name_or_path == published.target
        assert {key: getattr(config, key) for key in published.head} == published.head
        assert (config.rule, config.min_draft_length) == ("cost-aware", 1)
        assert 0 <= config.rule_settings["mean_acceptance"] <= 1
        assert read_card(output / "labels" / f"test-{mode}").rows == published.rows
        stages = [f"label prompts, {mode}", f"label test, {mode}", f"train, {mode}", f"judge test, {mode}"]
        found = [report["stages"][stage] for stage in stages]
        assert all(stage["minutes"] >= 0 and stage["starts"] == 1 for stage in found)
        labelled = [stage["result"]["responses"] for stage in found[:2]]
        assert labelled == [20 if published.unseen else 24, 4]
        assert list(found[3]["result"]) == [
            "head", "constant", "probability", "fitted probability", "fitted entropy"
        ]  # fmt: skip
    assert len(report["stages"]) == 4 * len(recipe.modes)
    text = (output / "report.md").read_text()
    assert f"drafts for {published.target}" in text and "| fitted entropy | " in text
    assert str(folder) not in text + (output / "report.json").read_text()


@pytest.mark.parametrize("pair", ["smollm2-1.7b"], indirect=True)
def test_a_killed_recipe_goes_on_and_a_finished_one_does_nothing(pair, train_head, monkeypatch):
    (folder, changes), path = pair, RECIPES / "smollm2-1.7b.yaml"
    changes += ["judge={}", "modes={greedy: {do_sample: false}}"]

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_head, "train_head", killed)
        train_head.main(path, folder / "run", changes)
    monkeypatch.setattr(train_head, "label_prompts", killed)  # what is there is not made again
    train_head.main(path, folder / "run", changes)
    before = {p: p.stat().st_mtime_ns for p in (folder / "run").rglob("*") if p.is_file() and p.name != "report.md"}
    for name in ("load_model", "load_pair"):
        monkeypatch.setattr(train_head, name, killed)
    train_head.main(path, folder / "run", changes)
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert json.loads((folder / "run" / "report.json").read_text())["stages"]["train, greedy"]["starts"] == 2
    assert "the last of 2 starts" in (folder / "run" / "report.md").read_text()
    with pytest.raises(ValueError, match=r"holds a run with another max_new_tokens \(8 there, 9 asked for\)"):
        train_head.main(path, folder / "run", [*changes, "max_new_tokens=9"])


@pytest.mark.parametrize(
    "change, message",
    [
        ("max_tokens=3", "may not say max_tokens: its settings are fields of Recipe"),
        ("head.depth=3", "head may not say depth: its settings are fields of AcceptanceHeadConfig"),
        ("head.rule=fixed", "head may not say rule"),
        ("training.epochs=3", "training may not say epochs"),
        ("modes.greedy.top=3", "the mode greedy may not say top"),
        ("head.reads=behind", "a head reads the state"),
        ("limit.x=3", "a change looks like training.num_train_epochs=1, got 'limit.x=3'"),
        ("limit", "a change looks like"),
        ("judge={", "judge={ is no YAML: while parsing"),
        ("states=[around]", 'states are those "before" and "after" a token'),
        ("modes.greedy.temperature=0", "temperature must be above 0"),
    ],
)
def test_what_no_recipe_may_say_is_refused_in_one_sentence(change, message, monkeypatch, tmp_path, capsys):
    command = ["train_head.py", RECIPES / "smollm2-135m.yaml", "--output", tmp_path / "run", "--set", change]
    monkeypatch.setattr(sys, "argv", [str(part) for part in command])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(RECIPES / "train_head.py"), run_name="__main__")
    assert stop.value.code == 1 and not (tmp_path / "run").exists()
    printed = capsys.readouterr().err
    assert message in printed and "Traceback" not in printed


@pytest.fixture
def run(monkeypatch):
    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *(str(a) for a in arguments)])
        monkeypatch.syspath_prepend(str(RECIPE))
        folder = RECIPE if (RECIPE / script).exists() else BENCHMARKS
        runpy.run_path(str(folder / script), run_name="__main__")

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


@pytest.mark.slow
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
    assert set(fresh.with_suffix(".txt").read_text().split()) == set(map(prompt_digest, chosen))

    run(
        "training/evaluate_draft.py", "--target", target, "--draft", draft, "--draft", target, "--responses",
        f"dolly={responses}", "--limit", 4, "--dtype", "float32", "--output", tmp_path / "draft.json",
    )  # fmt: skip
    found = json.loads((tmp_path / "draft.json").read_text())["sets"]["dolly"]
    distilled, same = found[draft.name], found[target.name]
    assert same["first_four"] == 1 and same["match"][0] == 1 and min(same["overlap"]) > 0.999
    assert distilled["tokens"] == same["tokens"] > 0 and 0 < min(distilled["overlap"]) < 1

    with_head(drafts[1], reads="before", target_signature="llama-2x32-264").save_pretrained(head)

    rules = tmp_path / "rules.json"
    compare = ("rules/compare_rules.py", "--target", target, "--draft", draft, "--head", head, "--set", "dev", fresh,
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
    assert len((tmp_path / "traces" / "greedy-test.jsonl").read_text().splitlines()) == 2
    recommended = AcceptanceHeadConfig.from_pretrained(head)
    assert recommended.rule == "cost-aware" and 0 <= recommended.rule_settings["mean_acceptance"] < 1

    metrics = ("binary_kl", "roc_auc", "expected_calibration_error", "survival_calibration_error")
    speeds = {"cost_aware_speedup": 1.25, "threshold_speedup": 1.125, "threshold": 0.3}
    variants = [{"variant": name} | dict.fromkeys(metrics, 0.5) | speeds for name in ("base", "depth 0")]
    swept = tmp_path / "swept.json"
    swept.write_text(json.dumps({"decoding": {"do_sample": True}, "traces": 7, "variants": variants}))
    machine = {"set": "test", "draft_to_target": 0.3, "verification": "flat", "best_tuned": "SVIP"}
    machine |= {"best_tuned_speedup": 1.125, "cost_aware_speedup": 1.25}
    rules.write_text(json.dumps(written | {"other_hardware": [machine, machine | {"draft_to_target": 0.5}]}))
    run("rules/rules_report.py", rules, swept, "--output", tmp_path / "paper")
    report = (tmp_path / "paper" / "report.md").read_text()
    assert "| depth 0 | 0.500 | 0.500 | 0.500 | 0.500 | 1.250 | 1.125 | threshold 0.3 |" in report
    assert "sampling." in report and "cost-aware, nothing chosen" in (tmp_path / "paper" / "swept.svg").read_text()
    length, speed = written["chosen"]["fixed length"]["settings"]["length"], tables["test"]["fixed length"]["speedup"]
    assert f"| test, greedy, {written['head']} | length {length}: {speed:.3f} (" in report
    assert "| dev, greedy" not in report
    assert "| 0.3 | flat | 1.250 / 1.125 (SVIP) |" in report and "never below 1.250 of plain" in report
    assert report.count("| cost-aware with the head |") == 3 and "| Alpaca, the paper | 1.90 |" in report
    assert "fixed length K" in (tmp_path / "paper" / "rules-test.svg").read_text()

    lossless = tmp_path / "lossless.jsonl"
    check = ("lossless/check_lossless.py", "--target", target, "--draft", draft, "--head", head, "--set", "p",
             material / "prompts.jsonl", "--max-new-tokens", 8, "--output", lossless)  # fmt: skip
    run(*check, "--count", 2)
    run(*check, "--count", 3)
    assert [json.loads(line)["equal"] for line in lossless.read_text().splitlines()] == [True] * 3
    assert "p: 3 of 3 prompts equal, float32" in capsys.readouterr().out
    one_width = ("--dtype", "bfloat16", "--reproducible", "--sample", "--output", tmp_path / "one-width.jsonl")
    run(*check[:-2], *one_width, "--count", 2)
    assert "p: 2 of 2 prompts equal, bfloat16" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "one-width.jsonl").read_text().splitlines()]
    assert all(line["reproducible"] and line["sample"] and len(line["seconds"]) == 3 for line in lines)


def test_the_list_of_unseen_prompts_names_each_once():
    digests = (RECIPE / "unseen.txt").read_text().split()
    assert digests == sorted(set(digests)) and all(re.fullmatch("[0-9a-f]{16}", digest) for digest in digests)


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


def test_functions_of_a_library_are_prompts_without_their_bodies(run, tmp_path):
    library, output = tmp_path / "library", tmp_path / "docstrings.jsonl"
    (library / "tests").mkdir(parents=True)
    function = 'def area(side):\n    """How much room a square has, by the length of its side, in metres."""\n'
    (library / "shapes.py").write_text(f"@cached\n{function}    return side * side\n\ndef bare():\n    return 1\n")
    (library / "copy.py").write_text(f"{function}    return side**2\n")
    (library / "wrong.py").write_text("def (")
    (library / "tests" / "more.py").write_text(function.replace("area", "tested"))
    run("docstring_prompts.py", "--library", library, "--output", output)
    [row] = map(json.loads, output.read_text().splitlines())
    assert row == {"prompt": function.rstrip()}


def test_the_shipped_weights_fit_together_and_are_small():
    draft = Eagle3ForCausalLM.from_pretrained(DRAFT)
    assert draft.config.vocab_size == 49152 == len(AutoTokenizer.from_pretrained(DRAFT))
    assert all(weight.isfinite().all() for weight in draft.parameters())
    for name, sample in (("greedy", False), ("sampling", True)):
        draft.load_adapter(str(HEADS / name), adapter_name=name)
        config = AcceptanceHeadConfig.from_pretrained(HEADS / name)
        assert config.decoding["do_sample"] is sample
        assert config.draft_signature == model_signature(draft.config)
        assert config.target_signature == "llama-30x576-49152"
    weights = [path for folder in (DRAFT, HEADS) for path in folder.rglob("*.safetensors")]
    assert sum(path.stat().st_size for path in weights) < 44e6 and (DRAFT / "model.safetensors").stat().st_size < 24e6
