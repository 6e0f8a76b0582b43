"""Training of drafts that read the target: unrolled steps against drafting itself, and the recipe from end to end."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from models import VOCAB, heard, informed_draft, prompt, tiny_model
from transformers import DynamicCache

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig, load_draft
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training import informed_draft as training
from hf_specdecpp.training.informed_draft import DraftTraining, Teacher, Text, choose_vocabulary, initial_draft
from hf_specdecpp.training.responses import generate_responses
from hf_specdecpp.training.unrolling import FADING, DraftQuality, UnrolledLoss, unrolled

RECIPE = Path(__file__).parents[2] / "recipes" / "train_draft.py"


@pytest.fixture(scope="module")
def texts():
    target = tiny_model()
    asked = [prompt(5 + i % 4, i)[0].tolist() for i in range(24)]
    answers = generate_responses(target, asked, Decoding(), 14, [2])
    return target, [Text(p + r, len(p)) for p, r in zip(asked, answers, strict=True)]


def lesson_of(target, texts, layers=(0, 1, 2), top=VOCAB):
    return Teacher(target, [texts], layers, top).lesson(0)


@torch.no_grad()
def drafted_behind(draft, ids, taps, entry: int, steps: int) -> list[torch.Tensor]:
    """What a draft says that reads the target's states up to `entry`, and then the text with its own."""
    cache, found = DynamicCache(config=draft.config), []
    outputs = draft.model(ids[:, 1 : entry + 2], taps=taps[:, : entry + 1], past_key_values=cache, use_cache=True)
    for step in range(steps):
        found.append(outputs.last_hidden_state[0, -1])
        token, states = ids[:, entry + 2 + step : entry + 3 + step], outputs.states[:, -1:]
        outputs = draft.model(token, states=states, past_key_values=cache, use_cache=True)
    return found


@pytest.mark.parametrize("config", ({}, {"num_hidden_layers": 2}, {"norm_output": True}))
def test_unrolled_steps_are_those_of_drafting(texts, config):
    target, [first, second, *_] = texts
    draft = informed_draft(target, [torch.tensor(first.ids)], steps=5, **config)
    lesson = lesson_of(target, [first, second])
    lesson.taps = lesson.taps.float()
    with torch.no_grad():
        steps = list(unrolled(draft, lesson, 4))
    ids, taps = lesson.input_ids[:1, : len(first.ids)], lesson.taps[:1]
    for entry in range(len(first.ids) - 6):
        for step, expected in enumerate(drafted_behind(draft, ids, taps, entry, 4)):
            torch.testing.assert_close(steps[step][0, entry + step], expected, rtol=1e-4, atol=1e-4)


def test_the_loss_is_the_cross_entropy_to_the_targets_words(texts):
    """From its definition, in which what the draft cannot say is left out."""
    target, texts = texts
    draft = informed_draft(target, [torch.tensor(texts[0].ids)], steps=3)
    lesson, expected = lesson_of(target, texts[:3], top=9), 0.0
    with torch.no_grad():
        for step, hidden in enumerate(unrolled(draft, lesson, 2)):
            log_q, found = draft.lm_head(hidden).log_softmax(-1), []
            for row, text in enumerate(texts[:3]):
                p = target(torch.tensor([text.ids])).logits[0].softmax(-1)
                for at in range(max(text.response - 2, step), len(text.ids) - 2):
                    best = p[at + 1].topk(9)
                    said = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                    found.append(-sum(v * log_q[row, at, i].item() for i, v in said if 10 <= i < VOCAB - 10))
            expected += FADING**step * sum(found) / len(found)
    assert UnrolledLoss(draft, 2)(lesson).item() == pytest.approx(expected, rel=1e-3)


def test_quality_is_what_drafting_shows(texts):
    """Greedy drafts of five tokens from every place of the responses, counted by hand."""
    target, texts = texts
    draft = informed_draft(target, [torch.tensor(text.ids) for text in texts], steps=20)
    quality, right, going = DraftQuality(), [0] * 5, [0] * 5
    quality.add(draft, lesson_of(target, texts))
    for text in texts:
        lesson = lesson_of(target, [text])
        for entry in range(text.response - 2, len(text.ids) - 2):
            hidden = drafted_behind(draft, lesson.input_ids, lesson.taps, entry, min(5, len(text.ids) - 2 - entry))
            for step, state in enumerate(hidden):
                says = draft.lm_head(state).argmax() == text.ids[entry + 2 + step]
                going[step] += 1
                right[step] += int(says)
                if not says:
                    break
    found = quality.summary()
    assert 0.05 < found["match"][0] < 0.95
    assert found["match"] == pytest.approx([r / max(g, 1) for r, g in zip(right, going, strict=True)], abs=0.02)
    assert found["tokens"] == going[0] and found["match"][0] <= found["first_four"] <= 1
    assert all(0 < overlap < 1 for overlap in found["overlap"])


def test_a_draft_begins_as_the_targets_last_layer():
    for kind in ("llama", "qwen3", "gpt2"):  # of the last nothing fits but the rows
        target = tiny_model(kind)
        token_ids = torch.arange(3, 103)
        draft = initial_draft(target, token_ids, [0, 1, 2])
        assert draft.lm_head.token_ids.equal(token_ids)
        assert draft.lm_head.weight.equal(target.get_output_embeddings().weight[token_ids])
        if kind == "gpt2":
            continue
        own, theirs = draft.model.layers[0], target.model.layers[-1]
        assert own.mlp.up_proj.weight.equal(theirs.mlp.up_proj.weight)
        # Equal readings side by side are as one reading, but for the mean of two independent ones.
        once = theirs.self_attn.q_proj.weight
        torch.testing.assert_close(own.self_attn.q_proj.weight.sum(-1), once.sum(-1) * 2**0.5)
        assert draft.config.qk_norm == (kind == "qwen3")


def test_the_vocabulary_is_that_of_the_texts():
    texts = [Text([200, 201, 201, 5], 1), Text([202, 201], 1)]
    assert choose_vocabulary(texts, 4, VOCAB).tolist() == [5, 200, 201, 202]
    assert choose_vocabulary(texts, 6, VOCAB).tolist() == [0, 1, 5, 200, 201, 202]


def test_a_prompt_is_text_or_tokens(tokenizer, tmp_path):
    turns = [{"role": "user", "content": "Hi"}]
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    rows = [{"row": 7, "prompt": "Hi", "response_ids": [9, 2]}, {"prompt_ids": asked, "response_ids": [9, 2]}]
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(training.read_responses(tmp_path / "both.jsonl", tokenizer))
    assert found == [(number, Text([*asked, 9, 2], len(asked))) for number in (7, 1)]


def test_what_the_target_says_is_asked_once(texts, tmp_path, monkeypatch):
    target, texts = texts
    batches = training.in_batches(texts, 100)
    assert sorted(map(id, texts)) == sorted(id(text) for batch in batches for text in batch)
    assert all(len(b) * max(len(t.ids) for t in b) <= 100 for b in batches) and len(batches) > 3
    made = [Teacher(target, batches, (1, 2), 7, tmp_path / "teacher").lesson(n) for n in range(len(batches))]
    monkeypatch.setattr(Teacher, "_asked", None)
    kept = Teacher(target, batches, (1, 2), 7, tmp_path / "teacher")
    for number, lesson in enumerate(made):
        assert all(torch.equal(vars(kept.lesson(number))[name], value) for name, value in vars(lesson).items())
    assert made[0].taps.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"holds states made with another top \(7 there, 8 asked for\)"):
        Teacher(target, batches, (1, 2), 8, tmp_path / "teacher")


def test_a_killed_training_ends_as_one_that_was_not(texts, tmp_path):
    target, texts = texts
    teacher = Teacher(target, training.in_batches(texts, 100), (0, 1, 2), 16)
    settings, accelerator = DraftTraining(learning_rate=5e-3, save_every=4), Accelerator(cpu=True)

    def new():
        draft = initial_draft(target, choose_vocabulary(texts, 100, VOCAB), [0, 1, 2])
        draft.borrow(target)
        return draft

    def killed(step, steps, loss):
        if step == 11:
            raise KeyboardInterrupt

    whole, parts = new(), new()
    losses = training.train_draft(whole, teacher, settings, tmp_path / "whole", accelerator, 24)
    with pytest.raises(KeyboardInterrupt):
        training.train_draft(parts, teacher, settings, tmp_path / "parts", accelerator, 24, killed)
    again, seen = new(), []
    resumed = training.train_draft(
        again, teacher, settings, tmp_path / "parts", accelerator, 24, lambda step, *_: seen.append(step)
    )
    assert seen == list(range(9, 25)) and resumed == losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


@pytest.fixture(autouse=True)
def new_accelerator():
    """accelerate keeps one precision a process: another test's, in bfloat16, would be that of these."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.fixture
def recipe(texts, tokenizer, tmp_path, monkeypatch):
    """Runs the recipe on a tiny target and its responses."""
    target, _ = texts
    target.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    rows = []
    for i in range(40):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": f"Say {i}."}], add_generation_prompt=True)
        [response] = generate_responses(target, [ids["input_ids"]], Decoding(), 12, [2])
        rows.append(json.dumps({"row": i, "prompt": f"Say {i}.", "response_ids": response}) + "\n")
    (tmp_path / "responses.jsonl").write_text("".join(rows))

    def run(output, *more, layers=(0, 1, 2)):
        command = [
            "train_draft.py", "--target", tmp_path / "target", "--responses", tmp_path / "responses.jsonl",
            "--evaluate", f"again={tmp_path / 'responses.jsonl'}", "--output", tmp_path / output,
            "--draft-vocab-size", 200, "--max-steps", 30, "--batch-tokens", 200, "--dtype", "float32", "--top", 16,
            "--learning-rate", 5e-3,
            *[word for layer in layers for word in ("--target-layers", layer)], *more,
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(RECIPE), run_name="__main__")
        return stop.value.code

    return tmp_path, run


def test_the_recipe_makes_a_draft_that_drafts(recipe, texts, capsys):
    folder, run = recipe
    assert not run("kept", "--teacher", folder / "teacher") and not run("anew")
    metrics = [json.loads((folder / name / "metrics.json").read_text()) for name in ("kept", "anew")]
    assert metrics[0]["quality"] == metrics[1]["quality"] and metrics[0]["losses"] == metrics[1]["losses"]
    assert list(metrics[0]["quality"]) == ["held_out", "again"]
    assert metrics[0]["losses"][-1] < 0.75 * metrics[0]["losses"][0]
    assert str(folder) not in json.dumps(metrics[0])
    assert {path.name for path in (folder / "kept").iterdir()} == {"draft", "metrics.json", "settings.json"}
    assert not run("kept", "--teacher", folder / "teacher") and "is trained" in capsys.readouterr().out

    target, _ = texts
    config = json.loads((folder / "kept" / "draft" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] == 200
    draft = load_draft(folder / "kept" / "draft", target=target)
    settings = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None}
    with heard() as rounds:
        ours = target.generate(
            prompt(9), **settings, assistant_model=draft, candidate_generator=SpecDecPP,
            stopping_config=StoppingConfig(rule="fixed", settings={"length": 3}),
            drafting_config=DraftingConfig(("model",)),
        )  # fmt: skip
    assert ours.tolist() == target.generate(prompt(9), **settings).tolist() and any(r.drafted for r in rounds)


def test_the_recipe_goes_on_from_a_draft(recipe, texts, capsys):
    folder, run = recipe
    assert not run("first", "--max-steps", 20)
    start = "--start", folder / "first" / "draft"
    assert not run("more", *start, "--draft-vocab-size", 7, "--max-steps", 2, layers=())
    first, more = (json.loads((folder / name / "metrics.json").read_text()) for name in ("first", "more"))
    assert more["settings"]["draft_vocab_size"] == 200 and more["losses"][0] < 0.9 * first["losses"][0]
    assert run("other", *start) == 1 and "leave --target-layers out" in capsys.readouterr().err
    assert run("other", "--start", folder / "target", layers=()) == 1
    assert "is no EAGLE-3 draft" in capsys.readouterr().err


def test_bad_input_gets_one_sentence(recipe, capsys):
    folder, run = recipe
    run("draft", "--max-steps", 1)
    assert run("draft", "--max-steps", 1, "--steps", 2) == 1
    assert "holds a draft trained with another steps (3 there, 2 asked for)" in capsys.readouterr().err
    (folder / "bad.jsonl").write_text('{"prompt": "Hi"}\n')
    assert run("other", "--responses", folder / "bad.jsonl") == 1
    said = capsys.readouterr().err
    assert "line 1 of" in said and "is no response (KeyError: 'response_ids')" in said and "Traceback" not in said
    assert run("other", "--evaluate", "none=nowhere.jsonl") == 1
    assert "the file 'nowhere.jsonl' does not exist" in capsys.readouterr().err
    assert run("other", "--target-layers", 7) == 1
    assert "a target of 2 layers has those from 0 to 2" in capsys.readouterr().err
