"""From rows to results: medians with intervals, counts, and what the stopping rules do in a replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from statistics import median
from typing import Any

import numpy as np

from ..evidence.replay import Replay, oracle, replay
from ..evidence.statistics import GenerationStatistics
from ..evidence.trace import Trace
from ..stopping import CostProfile, StoppingConfig
from .measure import COUNTED, Row
from .methods import Method

THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FEW = 6  # prompts, below which the interval of a median says little


def interval(values: list[float], draws: int = 4000, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of the median of `values`, one a prompt; of few the range."""
    if len(values) < FEW:
        return [min(values), max(values)]
    drawn = np.random.default_rng(seed).choice(values, (draws, len(values)))
    return np.percentile(np.median(drawn, axis=1), [2.5, 97.5]).tolist()


def total(statistics: Iterable[GenerationStatistics]) -> GenerationStatistics:
    """The counts of several generations together."""
    found = GenerationStatistics()
    for one in statistics:
        for field in fields(one):
            setattr(found, field.name, getattr(found, field.name) + getattr(one, field.name))
    return found


def timed_rows(rows: list[Row]) -> dict[int, list[Row]]:
    """The timed rows of each prompt; where there are none but the counted ones, those."""
    found: dict[int, list[Row]] = {}
    for row in [row for row in rows if row.repeat != COUNTED] or rows:
        found.setdefault(row.prompt, []).append(row)
    return found


def rates(timed: dict[int, list[Row]]) -> dict[int, float]:
    """Tokens a second on each prompt, over all its repeats."""
    return {n: sum(r.new_tokens for r in rows) / sum(r.seconds for r in rows) for n, rows in timed.items()}


def summarise_method(rows: list[Row], plain: list[Row]) -> dict[str, Any]:
    """All that is said of a method on a set, from its rows and those of plain decoding on the same prompts.

    The speed-up is the median over prompts of the ratio of speeds, each over all repeats.
    """
    timed = timed_rows(rows)
    speeds, plain_speeds = rates(timed), rates(timed_rows(plain))
    ratios = {prompt: speed / plain_speeds[prompt] for prompt, speed in speeds.items()}
    counted = [row for row in rows if row.repeat == COUNTED]
    stats = total(row.statistics for row in counted)
    different = [row for row in counted if row.first_difference is not None]
    peaks = [row.peak_bytes for row in counted if row.peak_bytes is not None]
    return {
        "tokens_per_second": median(speeds.values()),
        "tokens_per_second_interval": interval(list(speeds.values())),
        "speedup": median(ratios.values()),
        "speedup_interval": interval(list(ratios.values())),
        "tokens_per_target_pass": stats.tokens_per_target_pass,
        "verif": stats.verification_rate,
        "discard": stats.discard_rate,
        "acceptance_by_position": list(stats.acceptance_by_position.values()),
        "drafted_by_position": [stats.drafted_at[k] for k in stats.acceptance_by_position],
        "drafted_by": dict(stats.drafted_by),
        "accepted_by": dict(stats.accepted_by),
        "stop_reasons": dict(stats.stop_reasons),
        "draft_seconds": stats.draft_seconds,
        "target_seconds": stats.target_seconds,
        "equal_to_plain": len(counted) - len(different),
        "differences": [
            {"prompt": row.prompt, "position": row.first_difference, "logit_gap": row.logit_gap} for row in different
        ],
        "peak_mb": max(peaks) / 1e6 if peaks else None,
        "by_prompt": {
            "prompt": list(ratios),
            "speedup": [round(ratio, 4) for ratio in ratios.values()],
            "new_tokens": [[row.new_tokens for row in timed[prompt]] for prompt in ratios],
            "seconds": [[round(row.seconds, 5) for row in timed[prompt]] for prompt in ratios],
        },
    }


def finished(rows: list[Row], methods: list[Method], repeats: int) -> list[Row]:
    """The rows of prompts that went through all methods and repeats, and of these methods alone."""
    names = {method.name for method in methods}
    rows = [row for row in rows if row.method in names]
    counts: dict[tuple[str, int], int] = {}
    for row in rows:
        counts[row.set, row.prompt] = counts.get((row.set, row.prompt), 0) + 1
    return [row for row in rows if counts[row.set, row.prompt] == len(names) * (repeats + 1)]


def summarise(rows: list[Row], methods: list[Method]) -> dict[str, dict[str, Any]]:
    """`summarise_method` of every method on one set, by the method's name."""
    own = {method.name: [row for row in rows if row.method == method.name] for method in methods}
    return {m.name: {"label": m.label} | summarise_method(own[m.name], own["plain"]) for m in methods}


def first_acceptance(traces: list[Trace]) -> float:
    """The share of positions at which the target accepts the token that the draft says next."""
    drafts = [draft for trace in traces for draft in trace.drafts]
    return sum(draft.accepted > 0 for draft in drafts) / len(drafts)


def summarise_replay(
    traces: list[Trace], costs: CostProfile, longest: int, recommended: StoppingConfig, with_head: bool
) -> dict[str, Any]:
    """What fixed lengths, thresholds, the recommended rule and hindsight make of the same drafts, with these costs.

    Hindsight is there twice: where it pays (`oracle`), and drafting all that will be accepted, whatever it costs.

    Args:
        longest (`int`): length of the drafts in the traces, the bound of every rule.
        recommended (`StoppingConfig`): filled.
        with_head (`bool`): the traces hold a head's word.
    """

    def point(found: Replay, **setting: Any) -> dict[str, Any]:
        return setting | {"verif": found.verification_rate, "discard": found.discard_rate, "speedup": found.speedup}

    def of(config: StoppingConfig, **setting: Any) -> dict[str, Any]:
        return point(replay(traces, lambda: config.new_rule(costs=costs), costs), **setting)

    bounded = replace(recommended, min_draft_length=1, max_draft_length=longest)
    rules = [*(["specdec++"] if with_head else []), "cumulative-confidence", "svip", "adaedl"]
    return {
        "prompts": len(traces),
        "longest": longest,
        "first_acceptance": first_acceptance(traces),
        "oracle": point(oracle(traces, costs)),
        "accepted_only_verif": oracle(traces, CostProfile(1e-9, (1.0,))).verification_rate,
        "recommended": of(bounded),
        "fixed": [
            of(StoppingConfig(None, 1, longest, "fixed", {"length": k}), length=k) for k in range(1, longest + 1)
        ],
        "thresholds": {
            rule: [of(StoppingConfig(h, 1, longest, rule), threshold=h) for h in THRESHOLDS] for rule in rules
        },
    }
