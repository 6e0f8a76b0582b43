"""The benchmarks measure what they say, on a tiny pair, and the tables say what they found."""

import json
import math
import re
import runpy
import sys
from math import prod
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace

import pytest
import torch
from models import card_of, prompts, similar_draft, slow, with_head

from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training.labels import acceptance
from hf_specdecpp.training.pipeline import label_prompts

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def material(target, tokenizer, tmp_path_factory):
    """A pair on disk, prompts, some of which have a response already, and labels with hidden states."""
    folder = tmp_path_factory.mktemp("benchmarks")
    draft = similar_draft(target)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / "target")
    rows = [{"prompt": f"Why {i}?", "response_ids": [9] if i % 3 else None} for i in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = prompts(tokenizer, 20)
    label_prompts(target, draft, rows, folder / "labels", card_of((target, draft), rows, states=["before", "after"]))
    return folder


@pytest.fixture
def run(material, tmp_path, monkeypatch):
    """Runs a script on the pair; returns what it wrote, with its conditions."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run(script, *arguments, roles=("target", "draft")):
        models = [word for role in roles for word in (f"--{role}", material / role)]
        output = tmp_path / "result.json"
        command = [script, *models, *arguments, "--dtype", "float32", "--output", output]
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        result = json.loads(output.read_text())
        assert {role: model["name"] for role, model in result["models"].items()} == {role: role for role in roles}
        assert result["dtype"] == "float32" and result["threads"] >= 1 and "torch" in result["versions"]
        assert len(result["git_revision"].removesuffix("-dirty")) == 40
        assert result["command"].startswith(f"python benchmarks/{script} --{roles[0]} {roles[0]} ")
        assert " /" not in result["command"]
        return result

    return run


def test_both_procedures_label_the_same_tokens_of_the_same_responses(run, material):
    options = "--prompts", material / "prompts.jsonl", "--chunks", 2, "--chunk-size", 5, "--max-new-tokens", 8
    result = run("training/label_speed.py", *options)
    assert [c["prompts"] for c in result["chunks"]] == [5, 5]
    for chunk in result["chunks"]:
        assert chunk["equal_responses"] == 5
        assert chunk["authors"]["labels"] == chunk["ours"]["labels"] == chunk["equal_drafted_tokens"] > 5
        assert chunk["ratio"] == chunk["ours"]["labels_per_second"] / chunk["authors"]["labels_per_second"]
    assert result["ratio"] == median(c["ratio"] for c in result["chunks"])
    passes = ["generation", "drawing", "draft's probabilities", "target's probabilities", "acceptance"]
    assert [list(result["seconds"][name]) for name in ("authors", "ours")] == [passes, ["generation", "scoring"]]
    assert "equal_responses" not in run("training/label_speed.py", *options, "--sample")["chunks"][0]


@pytest.mark.parametrize("sample", (False, True))
def test_the_authors_labels_are_unwarped_acceptances_of_the_drafts_own_tokens(run, target, tokenizer, sample):
    draft = similar_draft(target)
    script = runpy.run_path(str(BENCHMARKS / "training" / "label_speed.py"))
    rows, _ = script["authors_labels"](target, draft, prompts(tokenizer, 3), Decoding(sample), 8)
    for row in rows:
        ids, answer = torch.tensor([row["prefix"] + row["tokens"]]), slice(len(row["prefix"]) - 1, -1)
        with torch.no_grad():
            p, q = (model(ids).logits[0, answer] for model in (target, draft))
        drawn = torch.tensor(row["draft"])
        assert sample or drawn.equal(q.argmax(-1))
        expected = acceptance(p.softmax(-1), q.softmax(-1), drawn, "rejection")
        torch.testing.assert_close(torch.tensor(row["p_acc"]), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_memory_is_that_of_a_labelling_process_for_each_count(run, material):
    options = "--counts", 6, 20, "--response-tokens", 3, "--batch-size", 8, "--states", "before"
    result = run("training/label_memory.py", "--prompts", material / "prompts.jsonl", *options)
    small, large = result["runs"]
    assert (small["prompts"], large["prompts"]) == (6, 20) and large["labels_mb"] > small["labels_mb"]
    assert (large["batch_size"], large["states"]) == (8, ["before"])
    assert small["peak_mb"] > 50 and result["growth"] == large["peak_mb"] / small["peak_mb"]


def test_contexts_grow_as_asked_and_both_ways_are_timed(run, material, target, tmp_path):
    with_head(similar_draft(target)).save_pretrained(tmp_path / "head")
    options = "--lengths", 60, 200, "--new-tokens", 6, "--repeats", 2, "--head", tmp_path / "head"
    result = run("speed/context_length.py", "--prompts", material / "prompts.jsonl", *options)
    short, long = result["lengths"]
    assert 0 < short["prompt_tokens"] <= 60 < long["prompt_tokens"] <= 200
    assert short["equal"] and long["equal"]
    for way in ("plain", "specdec++"):
        assert long[way]["cache_mb"] > short[way]["cache_mb"] > 0 and long[way]["token_seconds"] > 0
    assert short["specdec++"]["cache_mb"] > short["plain"]["cache_mb"]


@pytest.fixture
def flashspec(monkeypatch, target):
    """A stand-in for flashspec, which the suite does not install: it says what plain decoding says, but once."""
    calls = []

    class Engine:
        def __init__(self, config, drafters, wrapped):
            self.config, self.generated = config, 0
            calls.append(config)

        def generate(self, prompt, max_new_tokens, eos_token_ids):
            assert max_new_tokens == 6 and eos_token_ids == [2]
            ids = target.generate(prompt, max_new_tokens=6, do_sample=False)[:, prompt.shape[1] :]
            if self.generated == 1:  # behind the warm-up
                ids = torch.where(torch.arange(ids.shape[1]) < 3, ids, 7)
            self.generated += 1
            steps = [SimpleNamespace(proposed=2, accepted=1)] * 3
            padded = torch.nn.functional.pad(ids, (0, 9), value=-1)
            return SimpleNamespace(output_ids=padded, n_tokens_generated=ids.shape[1], arm_steps=steps)

    def settings(**given):
        return SimpleNamespace(**given)

    modules = {
        "flashspec": {name: settings for name in ("BanditConfig", "FlashSpecConfig", "SamplingConfig")}
        | {"SpeculativeEngine": Engine},
        "flashspec.engine": {name: lambda *args, **kw: kw["model"] for name in ("HuggingFaceDrafter", "TargetModel")},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_peers_are_compared_prompt_by_prompt(run, material, flashspec, tmp_path):
    methods = ["plain", "lookup", "assisted", "flashspec", "flashspec=3", "text", "same-draft", "recommended"]
    options = [word for name in methods for word in ("--method", name)]
    options += ["--set", f"one={material / 'prompts.jsonl'}", "--set", f"two={material / 'prompts.jsonl'}"]
    result = run("speed/peers.py", *options, "--count", 2, "--repeats", 2, "--max-new-tokens", 6)
    assert [(c.drafter_strategy, c.sampling.temperature) for c in flashspec] == [("auto", 0.0), ("bandit", 0.0)]
    assert flashspec[1].sampling.gamma == 3 and flashspec[1].bandit.n_arms == 1
    for found in result["sets"].values():
        assert found["prompts"] == 2 and list(found["methods"]) == methods
        ratios = found["methods"]["recommended"]["by_prompt"]["speedup"]
        assert found["methods"]["same-draft"]["label"] == "SpecDec++ with the draft of the others"
        assert len(ratios) == 2 and found["methods"]["plain"]["by_prompt"]["speedup"] == [1, 1]
    # Equality is of the untimed pass, and the stand-in's first word there was another.
    equal = {name: found["methods"]["flashspec"]["equal_to_plain"] for name, found in result["sets"].items()}
    assert equal == {"one": 1, "two": 2}
    assert result["sets"]["one"]["methods"]["flashspec"]["differences"][0]["position"] == 3
    assert result["sets"]["two"]["methods"]["flashspec"]["tokens_per_target_pass"] == 2
    means = result["geometric_means"]
    assert {"flashspec / plain", "recommended / plain", "same-draft / flashspec", "text / lookup"} <= set(means)
    for name in methods[1:]:
        ratios = [found["methods"][name]["by_prompt"]["speedup"] for found in result["sets"].values()]
        expected = prod(ratio for of_set in ratios for ratio in of_set) ** (1 / 4)
        found = means[f"{name} / plain"]["all"]
        assert found["mean"] == pytest.approx(expected) and found["interval"][0] <= expected <= found["interval"][1]
    by_hand = means["recommended / plain"]["all"]["mean"] / means["flashspec / plain"]["all"]["mean"]
    assert means["recommended / flashspec"]["all"]["mean"] == pytest.approx(by_hand, rel=1e-3)
    # A run that was killed goes on behind its last row, here the last of all.
    lines = (tmp_path / "result.rows.jsonl").read_bytes()
    (tmp_path / "result.json").unlink()
    (tmp_path / "result.rows.jsonl").write_bytes(lines[: lines[:-1].rfind(b"\n") + 1 + 20])
    again = run("speed/peers.py", *options, "--count", 2, "--repeats", 2, "--max-new-tokens", 6)
    assert again["sets"]["one"] == result["sets"]["one"]
    assert (tmp_path / "result.rows.jsonl").read_bytes().count(b"\n") == lines.count(b"\n") == 8 * 3 * 2 * 2


@pytest.mark.parametrize("reads", (slow("before"), "after"))
def test_epochs_with_and_without_stored_states_are_of_the_same_training(run, material, target, reads):
    options = "--labels", material / "labels", "--reads", reads, "--batch-size", 4, "--epochs", 2, "--limit", 18
    result = run("training/training_speed.py", *options, roles=["draft"])
    assert result["models"]["draft"]["signature"] == model_signature(target.config) and result["rows"] == 18
    assert all(len(times) == 2 and min(times) > 0 for times in result["seconds"].values())
    losses = result["losses"]
    assert len(losses["stored"]) == 3 and losses["stored"] == pytest.approx(losses["draft"], rel=1e-3)
    assert losses["stored"][-1] < losses["stored"][0]
    pairs = zip(result["seconds"]["draft"], result["seconds"]["stored"], strict=True)
    assert result["ratio"] == median(slow / fast for slow, fast in pairs)


def test_the_clock_is_compared_with_what_replay_promises(run, material, tmp_path):
    sets = ("--set", f"own={material / 'prompts.jsonl'}", "--count", 2, "--max-new-tokens", 12)
    found = run("rules/clock.py", *sets, "--traces", tmp_path / "traces")["sets"]["own"]
    assert len(found["clocks"]) == len(found["replays"]) == 2 and min(found["clocks"] + found["replays"]) > 0
    assert found["clock"] == median(found["clocks"]) and found["replay"] == median(found["replays"])
    assert found["draft_seconds"] > 0 and len(found["verify_seconds"]) >= 2


def test_forms_of_drafts_are_trained_and_judged_alike(run, target, tokenizer, tmp_path):
    responses = tmp_path / "responses.jsonl"
    rows = [{"row": row, "prompt": f"Why {row}?", "response_ids": [9, 8, 7 + row, 9, 8, 7]} for row in range(1, 12)]
    responses.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        "training/forms.py", "--responses", responses, "--teacher", tmp_path / "teacher", "--evaluate",
        f"own={responses}", "--max-steps", 3, "--batch-tokens", 64,
    )  # fmt: skip
    first = run(*arguments, "--form", "eagle3", roles=("target",))["forms"]
    whole = run(*arguments, roles=("target",))
    forms, size = whole["forms"], target.config.vocab_size
    assert whole["covered"] == {str(size): {"own": 1.0}}
    assert list(forms) == ["eagle3", "mixed", "plain-2", "eagle3-2", "eagle3-8k", "eagle3-16k"]
    assert forms["eagle3"] == first["eagle3"]
    counts = {name: form["weights"] for name, form in forms.items()}
    layer = sum(each.numel() for each in target.model.layers[0].parameters())
    width = target.config.hidden_size
    assert counts["eagle3-2"] - counts["eagle3"] == layer
    assert counts["plain-2"] == 2 * layer + width + target.config.vocab_size * width
    for form in forms.values():
        quality = form["sets"]["own"]
        assert (
            quality["tokens"] == 66 and 0 <= quality["match"][0] <= 1 and all(map(math.isfinite, form["first_losses"]))
        )
    assert forms["plain-2"]["training"]["steps"] == 1 and forms["mixed"]["training"]["steps"] == 3
    assert len({form["first_losses"][0] for form in forms.values()}) > 3


@pytest.fixture(scope="module")
def tables():
    return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "tables.py")))


def test_every_table_says_what_the_file_beside_it_says(tables, tmp_path):
    shown = {name for page in tables.PAGES for _, _, name, _ in tables.TABLE.findall(page.read_text())}
    assert len(shown) >= 8
    for page in tables.PAGES:
        assert tables.updated(page) == page.read_text(), f"{page}: run python benchmarks/tables.py"
    whole = (tables.ROOT / "docs" / "results.md").read_text()
    edited = tmp_path / "docs" / "results.md"
    edited.parent.mkdir()
    edited.write_text(re.sub(r"\| \d\.\d\d \|", "| 9.99 |", whole))
    assert edited.read_text() != whole == tables.updated(edited)


def test_the_figure_shows_the_numbers_of_the_first_table(tables, tmp_path):
    first = tables.TABLE.search((tables.ROOT / "README.md").read_text())
    tables.draw(tables.read(first[3]), tmp_path / "speed.svg")
    drawn, shown = (
        re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text()) for path in (tmp_path / "speed.svg", tables.FIGURE)
    )
    assert sorted(drawn) == sorted(shown) and len([text for text in shown if re.fullmatch(r"\d\.\d\d", text)]) >= 20


def test_the_numbers_in_the_readmes_sentences_are_those_of_its_files(tables):
    """Each with what it is about; numbers that no one has looked up fail."""
    text, results = ((tables.ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
    named = {kind: tables.read(name) for _, kind, name, _ in tables.TABLE.findall(results + text)}  # the README's last
    eight = {row["set"]: row for row in named["batches"]["rows"] if row["size"] == 8}
    for sentence, number in (
        ("8 rows of Alpaca run at {} of plain", eight["alpaca"]["speedup"]),
        ("8 of GSM8K at {}", eight["gsm8k"]["speedup"]),
    ):
        assert sentence.format(f"{number:.2f}") in text
        text = text.replace(sentence.format(f"{number:.2f}"), "")
    sentences = re.sub(r"```.*?```|<!-- table.*?<!-- end -->|\S*\d\.\d\.\d", "", text, flags=re.DOTALL)
    assert not re.findall(r"\b[0-2]\.\d\d\b", sentences)


def test_the_numbers_in_sentences_on_rules_are_those_of_the_tables(tables):
    aware, bare, not_ours = "cost-aware with the head", "cost-aware, no head", ("oracle", "cost-aware")
    gains, lags, leads, reached = [], [], [], []
    for mode in ("greedy", "sampling"):
        result = tables.read(f"rules/results/2026-11-23-rules-{mode}.json")
        for name in ("alpaca_test", "gsm8k_test", "humaneval"):
            speeds = {rule: row["speedup"] for rule, row in result["tables"][name].items()}
            gains.append(f"{speeds[aware] / speeds['fixed length'] - 1:.1%}".removeprefix("-"))
            lags += [1 - speeds[aware] / s for rule, s in speeds.items() if not rule.startswith(not_ours)]
            leads.append(speeds[aware] / speeds[bare] - 1)
            reached.append(speeds[aware] / speeds["oracle"])
    names = ("docs/results.md", "docs/head.md", "benchmarks/rules/report.md", "README.md")
    pages = [(tables.ROOT / name).read_text() for name in names]
    results, head, report, readme = (" ".join(page.replace(" %", "%").split()) for page in pages)
    assert (
        f"at most {max(lags):.1%} behind any rule" in results and f"at most {max(lags):.1%} behind any rule" in report
    )
    assert all(f"at most {max(leads):.1%}" in page for page in (results, head, report, readme))
    assert max(leads) == leads[1] and leads[2] < 0 and leads[5] < 0  # GSM8K greedy; HumanEval
    a, b, c, d, e, f = gains
    assert f"gains {a} on Alpaca, {b} on GSM8K and {c} on HumanEval greedy, and {d}, {e} and {f} sampling" in report
    assert f"{min(reached):.0%}".rstrip("%") + f" to {max(reached):.0%} of the speed of perfect hindsight" in report


def test_every_study_has_its_commands_and_its_report():
    studies = {path.name for path in BENCHMARKS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert studies == {"speed", "rules", "paper", "lossless", "training", "gpu"}
    for study in studies:
        text = (BENCHMARKS / study / "run.sh").read_text()
        assert (BENCHMARKS / study / "report.md").stat().st_size > 100
        for script in re.findall(r"(?:benchmarks/\S+|\$S/\S+)\.py", text):
            assert (BENCHMARKS.parent / script.replace("$S", f"benchmarks/{study}")).exists(), script


def test_reports_name_files_that_there_are():
    for report in BENCHMARKS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", report.read_text()):
            assert link.startswith("http") or (report.parent / link).exists(), (report, link)
