"""What a round costs besides the models' passes: operations for each drafted token, and transfers to the host."""

from itertools import pairwise
from statistics import median

import pytest
import torch
from models import prompt, similar_draft, with_head
from torch.utils._python_dispatch import TorchDispatchMode

from hf_specdecpp import DraftingConfig, SpecDecPP, StoppingConfig, collect_stats

CHAINS = DraftingConfig(("model",), branches=1)


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch):
    """The host waits for what it reads."""
    monkeypatch.setattr("hf_specdecpp.decoding.verify.reads_at_once", lambda device: False)


class Counted(TorchDispatchMode):
    """Counts operations outside the forward passes of `models`."""

    def __init__(self, *models):
        super().__init__()
        self.models, self.operations, self.scalars, self.inside = models, 0, 0, 0

    def __enter__(self):
        self.hooks = [m.register_forward_pre_hook(lambda *args: self.enter(1)) for m in self.models]
        self.hooks += [m.register_forward_hook(lambda *args: self.enter(-1)) for m in self.models]
        return super().__enter__()

    def __exit__(self, *args):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*args)

    def enter(self, by):
        self.inside += by

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += not self.inside
        self.scalars += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def generate(target, draft, config, new_tokens, **settings):
    """What was counted when each round was told, and how much it drafted."""
    counted, rounds = Counted(target, draft.get_base_model()), []

    def on_round(round):
        rounds.append((counted.operations, len(round.drafted)))

    with collect_stats(on_round), counted:
        target.generate(
            prompt(), max_new_tokens=new_tokens, eos_token_id=None, assistant_model=draft, drafting_config=CHAINS,
            candidate_generator=SpecDecPP, stopping_config=config, **settings,
        )  # fmt: skip
    return counted, rounds


@pytest.fixture(scope="module")
def draft(target):
    return with_head(similar_draft(target), reads="before", features=["probability", "entropy"])


@pytest.mark.parametrize(("rule", "most"), [("specdec++", 15), ("cumulative-confidence", 6), ("fixed", 3)])
def test_operations_for_a_drafted_token(target, draft, rule, most):
    """The slope between rounds of 2 tokens and rounds of 8; transformers' loop and ours of 0.1 needed 50 to 60."""
    found = []
    for length in (2, 8):
        settings = {"length": length} if rule == "fixed" else {}
        config = StoppingConfig(None if settings else 1.0, length, length, rule, settings)
        _, rounds = generate(target, draft, config, 60, do_sample=False)
        full = [after - before for (before, _), (after, drafted) in pairwise(rounds) if drafted == length]
        found.append(median(full))
    assert 0 < (found[1] - found[0]) / 6 <= most


@pytest.fixture
def transfers(monkeypatch):
    """Reads of a tensor by the host, other than of a single number."""
    seen = []
    for name in ("tolist", "numpy", "cpu"):
        original = getattr(torch.Tensor, name)

        def read(self, *args, original=original, name=name, **kwargs):
            seen.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, read)
    return seen


@pytest.mark.parametrize("mode", ({"do_sample": False}, {"do_sample": True, "top_k": 20}), ids=("greedy", "sampling"))
@pytest.mark.parametrize(("rule", "by_token"), [("fixed", 0), ("cumulative-confidence", 1)])
def test_a_round_by_a_plan_without_a_look_at_tokens_is_one_transfer(target, draft, transfers, mode, rule, by_token):
    """Where the rule looks at tokens there is one more for each. What begins and ends a generation cancels out."""
    config = StoppingConfig(None if rule == "fixed" else 1.0, 3, 3, rule, {"length": 3} if rule == "fixed" else {})
    found = []
    for new_tokens in (20, 60):
        transfers.clear()
        torch.manual_seed(0)
        counted, rounds = generate(target, draft, config, new_tokens, **mode)
        found.append((len(transfers) + counted.scalars, len(rounds), sum(drafted for _, drafted in rounds)))
    (few, short, less), (many, long, more) = found
    assert long - short > 5 and many - few == (long - short) + by_token * (more - less)
