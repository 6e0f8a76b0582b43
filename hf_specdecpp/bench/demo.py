"""`specdecpp demo`: one pair, a handful of prompts, every method in turn, and a table."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, TextStreamer

from ..costs.measure import measure_costs
from ..decoding import Decoding
from ..drafting.pair import active_head_config
from ..evidence.conditions import write_result
from ..hub.data import prompt_ids
from ..hub.demo_pair import DRAFT, HEADS, demo_target, public_name, shipped
from ..hub.loading import load_head, load_pair, load_tokenizer
from ..stopping import StoppingConfig
from .measure import COUNTED, Bench, Row, measure
from .methods import Method, assisted, new_method, specdecpp
from .sets import MIXED
from .summary import total

FIXED_LENGTHS = (1, 2, 3, 4, 6)


class Timed:
    """A method with its rows."""

    def __init__(self, method: Method, rows: list[Row]):
        own = [row for row in rows if row.method == method.name]
        timed = [row for row in own if row.repeat != COUNTED]
        counted = [row for row in own if row.repeat == COUNTED]
        self.name = method.label.removeprefix("transformers ")
        self.seconds, self.new_tokens = [row.seconds for row in timed], [row.new_tokens for row in timed]
        self.outputs = [row.ids for row in counted]
        self.statistics = total(row.statistics for row in counted)

    @property
    def rates(self) -> list[float]:
        """Tokens/s of every timed run."""
        return [n / s for n, s in zip(self.new_tokens, self.seconds, strict=True)]

    def ratios(self, plain: Timed) -> list[float]:
        """Speed of each timed run relative to the plain run of the same prompt and repeat."""
        return [a / b for a, b in zip(self.rates, plain.rates, strict=True)]

    def equal(self, plain: Timed) -> list[bool]:
        """For each prompt, whether the tokens are those of plain decoding."""
        return [a == b for a, b in zip(self.outputs, plain.outputs, strict=True)]


def run_demo(
    prompts: list[str],
    target: str | None,
    draft: str | None,
    head: str | None,
    threshold: float | None,
    max_new_tokens: int,
    sample: bool,
    repeats: int,
    dtype: str,
    json_file: Path | None,
    console: Console,
    **how: Any,
) -> None:
    """Loads the pair, streams one answer, times the methods and prints the table. See the CLI for the arguments.

    Args:
        how: of loading the pair, see `load_pair`.
    """
    stopping_config = StoppingConfig(threshold=threshold)
    target = target or demo_target()
    draft = draft or shipped(DRAFT)
    head = head or shipped(HEADS / ("sampling" if sample else "greedy"))
    tokenizer = load_tokenizer(target)
    target_model, draft_model = load_pair(target, draft, dtype, **how)
    load_head(draft_model, head)
    console.print(
        f"target [bold]{target}[/bold]\ndraft  [bold]{draft}[/bold]\nhead   [bold]{head}[/bold]", soft_wrap=True
    )

    stopping_config = stopping_config.filled_from(active_head_config(draft_model))
    if stopping_config.rule == "cost-aware":
        with console.status("measuring what a round costs, as `specdecpp calibrate` does"):
            costs = measure_costs(target_model, draft_model, max_draft_length=8, context_length=96, repeats=5)
        stopping_config = replace(stopping_config, settings={**stopping_config.settings, "costs": asdict(costs)})

    texts = prompts or MIXED[:4]
    ids = [torch.tensor([prompt_ids(tokenizer, text)], device=target_model.device) for text in texts]
    decoding = Decoding(do_sample=True) if sample else Decoding()
    bench = Bench(target_model, draft_model, decoding.generate_kwargs() | {"max_new_tokens": max_new_tokens})
    ours = Method("recommended", "SpecDec++", *specdecpp(draft_model, stopping_config))

    console.print(f"\n[bold]{texts[0]}[/bold]")
    bench.run(ours, ids[0], streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))

    fixed = {k: assisted(draft_model, str(k)) for k in FIXED_LENGTHS}
    with console.status("choosing the best fixed draft length for transformers"):
        rows = list(measure(bench, list(fixed.values()), {"demo": ids[:2]}, repeats=1, first_repeat=1))
    sweep = {k: Timed(method, rows) for k, method in fixed.items()}
    sweep = {k: sum(timed.new_tokens) / sum(timed.seconds) for k, timed in sweep.items()}
    best = max(sweep, key=sweep.get)
    methods = [
        new_method("plain", target_model, draft_model),
        assisted(draft_model),
        replace(fixed[best], label=f"assisted, best fixed ({best})"),
        ours,
    ]
    with console.status("timing"):
        rows = list(measure(bench, methods, {"demo": ids}, repeats))
    found = [Timed(method, rows) for method in methods]

    console.print(table(found, sample))
    console.print(conditions(target_model, ids, max_new_tokens, repeats, dtype), soft_wrap=True)
    if json_file is not None:
        measured = report(found, sweep, texts, dtype, head, stopping_config)
        write_result(json_file, measured, target=target_model.config, draft=draft_model.config)


def table(methods: list[Timed], sample: bool) -> Table:
    plain = methods[0]
    result = Table("method", "tokens/s (min - max)", "x plain", "tokens / target pass", "verif", "discard", "= plain")
    for column in result.columns[1:]:
        column.justify = "right"
    for m in methods:
        rates, stats = sorted(m.rates), m.statistics
        result.add_row(
            m.name,
            f"{statistics.median(rates):.1f} ({rates[0]:.1f} - {rates[-1]:.1f})",
            f"{statistics.median(m.ratios(plain)):.2f}",
            f"{stats.tokens_per_target_pass:.2f}",
            f"{stats.verification_rate:.3f}",
            f"{stats.discard_rate:.3f}",
            "sampled" if sample else f"{sum(m.equal(plain))} of {len(m.outputs)}",
        )
    return result


def conditions(target: PreTrainedModel, ids: list[Tensor], max_new_tokens: int, repeats: int, dtype: str) -> str:
    return (
        f"medians of {repeats} interleaved runs on {len(ids)} prompts of {min(i.shape[1] for i in ids)} to "
        f"{max(i.shape[1] for i in ids)} tokens, at most {max_new_tokens} new tokens, batch size 1, {dtype}, "
        f"{target.device.type} with {torch.get_num_threads()} threads, torch {torch.__version__}, transformers "
        f"{version('transformers')}; '= plain' counts prompts with the same tokens as plain decoding"
    )


def report(methods, sweep, texts, dtype, head, stopping_config) -> dict[str, Any]:
    """Everything measured, for `--json`."""
    plain = methods[0]
    return {
        "head": public_name(head),
        "stopping_config": stopping_config.to_dict(),
        "max_new_tokens": max(n for m in methods for n in m.new_tokens),
        "dtype": dtype,
        "prompts": texts,
        "fixed_length_sweep_tokens_per_second": sweep,
        "methods": [
            {
                "name": m.name,
                "tokens_per_second": statistics.median(m.rates),
                "ratio_to_plain": statistics.median(m.ratios(plain)),
                "ratios": m.ratios(plain),
                "seconds": m.seconds,
                "new_tokens": m.new_tokens,
                "outputs": m.outputs,
                "equal_to_plain": m.equal(plain),
                "rounds": m.statistics.rounds,
                "drafted": m.statistics.drafted,
                "accepted": m.statistics.accepted,
                "verification_rate": m.statistics.verification_rate,
                "discard_rate": m.statistics.discard_rate,
                "acceptance_by_position": m.statistics.acceptance_by_position,
                "drafted_by": m.statistics.drafted_by,
                "accepted_by": m.statistics.accepted_by,
                "stop_reasons": m.statistics.stop_reasons,
                "draft_seconds": m.statistics.draft_seconds,
                "target_seconds": m.statistics.target_seconds,
            }
            for m in methods
        ],
    }
