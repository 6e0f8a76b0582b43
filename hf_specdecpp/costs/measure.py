"""Measures what a pair costs on this machine: one drafted token, and a target pass over 1, 2, ... tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..decoding import Decoding
from ..decoding.engine import Engine
from ..decoding.law import Law
from ..decoding.sequences import Sequences
from ..decoding.taps import Taps
from ..drafting.model import ModelDrafter
from ..drafting.pair import Pair
from ..stopping import Plan, StoppingConfig
from ..stopping.config import make_rule
from .profile import CostProfile, RunningCosts
from .store import Calibration, pair_identity
from .warm import running_for

DRAFTED = 4  # tokens a timed draft: the first of a round reads two, the others one


@torch.no_grad()
def measure_costs(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    max_draft_length: int = 12,
    context_length: int = 256,
    repeats: int = 9,
    running: str = "eager",
) -> CostProfile:
    """The costs of a round after `context_length` tokens, medians of `repeats` measurements in mixed order.

    Drafts and target passes alternate as in a real run, so each finds the caches of the processor as the other left
    them. The active head, if there is one, is evaluated. `running` says how both models run, see `keywords_of`.
    """
    vocab_size = target.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size // 8, (1, context_length), generator=generator).to(target.device)
    sequences = Sequences(ids, [0], context_length + 2 * max_draft_length)
    sequences.prompt_length -= 1  # as in a round: the newest token is a generated one
    law = Law(LogitsProcessorList(), Decoding(), sequences, vocab_size)
    pair = Pair.of(draft, StoppingConfig(rule="fixed", settings={"length": 1}))
    rule = make_rule("cumulative-confidence" if pair.head is None else "specdec++", 1.0, {})
    taps = pair.taps(target, 1)
    run = running_for(running, target, draft, sequences.max_length)
    drafter = pair.model_drafter(law, sequences, rule, set(), taps, run.draft)
    drafts = [replace(rule.plan(), cap=DRAFTED)]
    engine = run.target(target, [0], taps)
    with run.ready(target, draft):
        return _measured(engine, drafter, drafts, ids, taps, max_draft_length, repeats)


def _measured(
    engine: Engine,
    drafter: ModelDrafter,
    drafts: list[Plan],
    ids: Tensor,
    taps: Taps | None,
    max_draft_length: int,
    repeats: int,
) -> CostProfile:
    context_length = ids.shape[1]
    engine.read(ids, keep=1)
    engine.keep([list(range(context_length))])
    if taps is not None:
        [states] = taps.take()
        taps.kept = [[states[1:]]]

    running, order = RunningCosts(window=repeats), random.Random(0)
    for repeat in range(repeats + 1):
        for tokens in order.sample(range(1, max_draft_length + 2), max_draft_length + 1):
            start = time.perf_counter()
            passes = drafter.draft(drafts).passes
            middle = time.perf_counter()
            logits = engine.read(ids[:, -tokens:]).logits
            logits.float().argmax(-1).tolist()
            engine.keep([[]])
            end = time.perf_counter()
            drafter.engine.keep([[]])
            # As after a round: the newest token is not read yet.
            drafter.engine.lengths = [context_length - 1 - (taps is not None)]
            if taps is not None:
                taps.kept = [[states[:1]]]
            if repeat:  # the first is warm-up
                running.add(tokens - 1, (tokens - 1) * (middle - start) / passes, end - middle)
    profile = running.profile()
    return replace(profile, verify_seconds=profile.verify_seconds[: max_draft_length + 1])


def calibrate(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    context_lengths: Iterable[int] = (128, 512, 1024),
    max_draft_length: int = 12,
    on_context: Callable[[int], None] = lambda length: None,
    running: str = "eager",
) -> Calibration:
    """Measures a pair at several context lengths.

    Args:
        context_lengths (`Iterable[int]`): tokens in the cache.
        max_draft_length (`int`): the longest draft whose verification is timed.
        on_context: called with each context length once it is measured.
        running (`str`): how both models run, see `keywords_of`.
    """
    profiles = {}
    for length in context_lengths:
        profiles[length] = measure_costs(target, draft, max_draft_length, length, running=running)
        on_context(length)
    return Calibration(pair_identity(target, draft, running), profiles)


def plot(calibrations: dict[str, Calibration], path: Path) -> None:
    """Draws the target's pass over n tokens, one line for each dtype and context, beside the cost of drafting them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for dtype, calibration in calibrations.items():
        for length, profile in calibration.profiles.items():
            n = range(1, len(profile.verify_seconds) + 1)
            axes.plot(
                n, [1000 * s for s in profile.verify_seconds], marker="o", label=f"{dtype}, {length} in the cache"
            )
        length, profile = next(iter(calibration.profiles.items()))
        n = range(len(profile.verify_seconds))
        drafting = [1000 * k * profile.draft_seconds for k in n]
        axes.plot([k + 1 for k in n], drafting, "--", color="grey", label=f"{dtype}, drafting n - 1 tokens")
    axes.set(xlabel="tokens in the target's pass, n", ylabel="milliseconds", ylim=0, title="What a round costs")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
