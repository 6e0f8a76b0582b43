"""Drafts that read the target's states: labels against passes over whole texts; their way through all commands."""

import json

import pytest
import torch
from models import block_draft, heard, informed_draft, prompt, slow, tiny_model, with_head
from typer.testing import CliRunner

from hf_specdecpp import AcceptanceHeadConfig, DraftingConfig, SpecDecPP, StoppingConfig, load_draft
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.drafting.informed.dflash import DFlashForCausalLM, DSparkForCausalLM
from hf_specdecpp.drafting.pair import active_head_config
from hf_specdecpp.evidence.replay import replay
from hf_specdecpp.evidence.trace import record_trace, record_trees
from hf_specdecpp.stopping import CostProfile, Scope
from hf_specdecpp.training.unrolled import label_unrolled
from hf_specdecpp_cli import app

CHAINS = DraftingConfig(("model",), branches=1)
RULES = [
    StoppingConfig(rule="fixed", settings={"length": 3}),
    StoppingConfig(rule="cumulative-confidence", threshold=0.8),
    StoppingConfig(rule="specdec++", threshold=0.5),
]
PROMPTS = [prompt(5, 1)[0].tolist(), prompt(9, 2)[0].tolist()]


@pytest.fixture(scope="module")
def informed():
    target = tiny_model("llama")
    texts = [
        target.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=18, do_sample=False
        )
        for ids in PROMPTS
    ]
    return target, informed_draft(target, [text[0] for text in texts]), texts


@pytest.fixture(scope="module", params=("eagle-3", slow("dflash"), "dspark"))
def any_kind(request, informed):
    target, _, texts = informed
    rows = [text[0] for text in texts]
    if request.param == "dflash":  # published without an output layer
        settings = {"layout": "dflash", "own_head": False, "target_layers": [1, 2]}
        return target, block_draft(target, rows, DFlashForCausalLM, **settings), texts
    if request.param == "dspark":
        return target, block_draft(target, rows, DSparkForCausalLM), texts
    return informed


@torch.no_grad()
def by_hand(target, draft, text: list[int], read: list[int]):
    """Logits and last hidden state behind `read`, drafted behind `text`."""
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    taps = torch.cat([states[layer] for layer in draft.config.target_layers], dim=-1)[:, :-1]
    found = draft.model(torch.tensor([text[1:]]), taps=taps, use_cache=True)
    for token in read:
        cache = found.past_key_values
        found = draft.model(torch.tensor([[token]]), states=found.states[:, -1:], past_key_values=cache)
    return draft.lm_head(found.last_hidden_state[0, -1]), found.last_hidden_state[0, -1]


@pytest.mark.parametrize("decoding", (Decoding(), Decoding(True, top_k=20)), ids=("greedy", "sampling"))
def test_labels_are_those_of_rounds_drafted_alone(informed, decoding):
    target, draft, texts = informed
    responses = [text[0, len(ids) :].tolist() for ids, text in zip(PROMPTS, texts, strict=True)]
    rows = label_unrolled(target, draft, PROMPTS, responses, "mode", decoding, ["before", "after"], seed=0)
    depths = []
    for row, ids, response in zip(rows, PROMPTS, responses, strict=True):
        assert row["mode_drawn"][0] == row["mode_acceptance"][0] == -1  # nothing is drafted beside the prompt
        begun = 1
        for place, (drawn, token) in enumerate(zip(row["mode_drawn"], response, strict=True)):
            if place == 0:
                continue
            text = ids + response[:begun]
            logits, before = by_hand(target, draft, text, response[begun:place])
            _, after = by_hand(target, draft, text, [*response[begun:place], drawn])
            q = decoding.probabilities(logits[None])[0] if decoding.do_sample else logits.softmax(-1)
            assert row["mode_probability"][place] == pytest.approx(q[drawn].item(), abs=1e-4)
            assert row["entropy"][place] == pytest.approx(
                torch.special.entr(logits.softmax(-1)).sum().item(), abs=1e-3
            )
            assert decoding.do_sample or drawn == logits.argmax()
            for name, state in (("before", before), ("after", after)):
                found = torch.tensor(row[f"mode_{name}"]).view(len(response), -1)[place].float()
                torch.testing.assert_close(found, state, atol=1e-2, rtol=1e-2)
            if not decoding.do_sample:
                assert row["mode_acceptance"][place] == (drawn == token)
            depths.append(place - begun)
            begun = begun if drawn == token else place + 1
    assert max(depths) > 1 and depths.count(0) > 5


@pytest.mark.parametrize("config", RULES, ids=lambda config: config.rule)
def test_replay_and_generate_count_the_same(any_kind, config):
    target, draft, texts = any_kind
    headed = with_head(draft, reads="before", features=["entropy"])
    drafted = 0
    for ids, text in zip(PROMPTS, texts, strict=True):
        response = text[0, len(ids) :].tolist()
        chains = record_trace(target, headed, ids, response, Decoding(), 18)[0]
        trees = record_trees(target, headed, ids, Decoding(), 18, branches=2, depth=2, expanded=2)
        with heard() as rounds:
            target.generate(
                torch.tensor([ids]), assistant_model=headed, candidate_generator=SpecDecPP, stopping_config=config,
                max_new_tokens=18, do_sample=False, drafting_config=CHAINS,
            )  # fmt: skip
        assert chains.target_ids == trees.target_ids == response
        costs = CostProfile(0.1, (1.0, 1.1))
        found = replay([chains], config.filled_from(AcceptanceHeadConfig()).new_rule, costs)
        assert found.lengths == [len(each.drafted) for each in rounds]
        assert found.accepted == sum(each.accepted for each in rounds)
        seconds = sum(each.passes * 0.1 + costs.verification(each.width) for each in rounds)
        assert found.seconds == pytest.approx(seconds - 1)  # a step of plain decoding is the prompt's
        # The chain in a tree is the chain.
        for chain, tree in zip(chains.drafts[1:], trees.drafts[1:], strict=True):
            first = chain.tokens[0], tree.tokens[0]
            assert first[0].probability == pytest.approx(first[1].probability, abs=1e-4)
        drafted += found.drafted
    headed.unload()
    assert drafted > 0


def test_replay_and_generate_count_the_same_in_trees(any_kind):
    target, draft, _ = any_kind
    config = StoppingConfig(rule="eagle-2", settings={"nodes": 5, "depth": 3}, max_draft_length=6)
    costs, drafting = CostProfile(0.1, (1.0, 1.1)), DraftingConfig(("model",), branches=2, max_nodes=6)
    for ids in PROMPTS:
        trees = record_trees(target, draft, ids, Decoding(), 18, branches=2)
        with heard() as rounds:
            target.generate(
                torch.tensor([ids]), assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config,
                max_new_tokens=18, do_sample=False, drafting_config=drafting,
            )  # fmt: skip
        found = replay([trees], config.filled_from(None).new_rule, costs, Scope(1, 2, 6))
        assert found.lengths == [len(each.drafted) for each in rounds]
        assert found.accepted == sum(each.accepted for each in rounds)
        seconds = sum(each.passes * 0.1 + costs.verification(each.width) for each in rounds)
        assert found.seconds == pytest.approx(seconds - 1)


def test_a_prompt_of_one_token(any_kind):
    target, draft, _ = any_kind
    text = target.generate(torch.tensor([[5]]), attention_mask=torch.ones(1, 1), max_new_tokens=6, do_sample=False)
    response = text[0, 1:].tolist()
    chains = record_trace(target, draft, [5], response, Decoding(), 6)[0]
    trees = record_trees(target, draft, [5], Decoding(), 6, branches=2)
    assert [len(trace.drafts) for trace in (chains, trees)] == [6, 6] and chains.drafts[0].tokens == []
    for response_ids in (response, response[:1]):
        [row] = label_unrolled(target, draft, [[5]], [response_ids], "greedy", Decoding(), ["before"], 0)
        assert len(row["greedy_drawn"]) == len(response_ids) and len(row["greedy_before"]) == 32 * len(response_ids)


@pytest.fixture(scope="module")
def folder(any_kind, tokenizer, tmp_path_factory):
    target, draft, _ = any_kind
    folder = tmp_path_factory.mktemp("drafts")
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")
    rows = [{"instruction": f"Say {i}.", "input": ""} for i in range(10)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_labels_to_a_head_that_stops_it(any_kind, folder, tmp_path):
    models = ("--target", folder / "target", "--draft", folder / "draft", "--dtype", "float32")
    prompts = ("--prompts", folder / "prompts.jsonl", "--max-new-tokens", 6)
    run("label", *models, *prompts, "--output", tmp_path / "labels")
    train = ("train", "--labels", tmp_path / "labels", "--output", tmp_path / "head", "--dtype", "float32")
    if any_kind[1].config.model_type != "eagle3":
        result = CliRunner().invoke(app, [str(word) for word in (*train, "--reads", "after")])
        assert result.exit_code == 1 and "has no state after a token" in " ".join(result.output.split())
    run(*train, "--epochs", 1)
    run("trace", *models, *prompts, "--head", tmp_path / "head", "--output", tmp_path / "traces.jsonl")
    run("calibrate", *models, "--head", tmp_path / "head", "--context", 32)
    bench = run(
        "bench", *models, "--head", tmp_path / "head", "--set", f"own={folder / 'prompts.jsonl'}", "--count", 1,
        "--max-new-tokens", 8, "--repeats", 0, "--method", "assisted", "--method", "assisted=2", "--method",
        "recommended", "--output", tmp_path / "b.json",
    )  # fmt: skip
    target = any_kind[0]
    draft = load_draft(tmp_path / "head", target)
    assert active_head_config(draft).target_signature
    settings = {"max_new_tokens": 20, "do_sample": False}
    plain = target.generate(prompt(), **settings).tolist()
    found = target.generate(prompt(), assistant_model=draft, candidate_generator=SpecDecPP, **settings)
    assert found.tolist() == plain and "SpecDec++" in bench
    # transformers knows no states; one reason is said once
    assert set(json.loads((tmp_path / "b.json").read_text())["unavailable"]) == {"assisted", "assisted=2"}
    assert "not available: assisted, assisted=2 (" in bench and bench.count("not available") == 1
    assert "transformers' assisted decoding does not run with this draft" in " ".join(bench.split())


def test_a_response_of_one_token(any_kind):
    """No draft begins in it, and none was beside the prompt."""
    target, draft, texts = any_kind
    first = texts[0][0, len(PROMPTS[0])].item()
    for ids in ([5], PROMPTS[0]):
        alone, _ = record_trace(target, draft, ids, [first], Decoding(), 6)
        headed = with_head(draft, reads="before")
        judged, states = record_trace(target, headed, ids, [first], Decoding(), 6)
        assert alone == judged and [each.tokens for each in judged.drafts] == [[]] and states.shape == (0, 32)
        headed.unload()


def test_labels_without_states_or_of_two_modes_are_refused(folder, tmp_path):
    models = ("--target", folder / "target", "--draft", folder / "draft", "--prompts", folder / "prompts.jsonl")
    for more in (("--mode", "greedy", "--mode", "sampling"), ("--procedure", "specdec++")):
        result = CliRunner().invoke(app, [str(word) for word in ("label", *models, "--output", tmp_path / "x", *more)])
        assert result.exit_code == 1 and "labelled on-policy, in one mode, and with states" in " ".join(
            result.output.split()
        )
