"""The law of the library on a GPU: the output is the target's own, token for token. Skips where there is none."""

import pytest
import torch
from models import heard, prompt, ragged, similar_draft, tiny_model, with_head

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig
from hf_specdecpp.costs.measure import measure_costs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use (CUDA or ROCm)")

COSTS = {"draft_seconds": 0.01, "verify_seconds": [1.0, 1.0001]}
DRAFTS = {
    "chain": (StoppingConfig(0.6, max_draft_length=6), DraftingConfig(("model",), branches=1)),
    "tree": (StoppingConfig(rule="eagle-2", settings={"nodes": 7, "depth": 3}), DraftingConfig(("model",), 3)),
    "mixed": (StoppingConfig(rule="cost-aware", settings={"costs": COSTS}), DraftingConfig(branches=2, max_nodes=8)),
}
MODES = {"greedy": {"do_sample": False}, "sampling": {"do_sample": True, "top_k": 20}}
INPUTS = {"one row": {"input_ids": prompt(11)}, "many rows": ragged(4, 19, 11)}


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Products of matrices are those of float32, as on a CPU."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.fixture
def pair(request):
    target = tiny_model(request.param)
    draft = with_head(similar_draft(target), reads="before", features=["probability", "entropy"])
    return target.cuda(), draft.cuda()


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("pair", ("llama", "gemma3", "gpt2"), indirect=True)
def test_the_output_is_the_targets(pair, kind, mode, inputs):
    target, draft = pair
    config, drafting = DRAFTS[kind]
    settings = {"max_new_tokens": 24, "eos_token_id": [2, 100]} | {name: ids.cuda() for name, ids in inputs.items()}
    torch.manual_seed(0)
    plain = target.generate(**settings, **mode)
    torch.manual_seed(0)
    with heard() as rounds:
        ours = target.generate(
            **settings, **mode, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config,
            drafting_config=drafting,
        )  # fmt: skip
    assert ours.tolist() == plain.tolist()
    assert sum(each.accepted for each in rounds) > 0


@pytest.mark.parametrize("pair", ("llama",), indirect=True)
def test_costs_are_measured(pair):
    profile = measure_costs(*pair, max_draft_length=3, context_length=16, repeats=2)
    assert len(profile.verify_seconds) == 4 and profile.draft_seconds > 0
