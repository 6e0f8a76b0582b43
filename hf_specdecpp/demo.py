"""`specdecpp demo`: one pair, a handful of prompts, every method in turn, and a table."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, TextStreamer, set_seed
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from .candidate_generator import SpecDecPP, active_head_config
from .cost_measurement import measure_costs
from .data import prompt_ids
from .decoding import Decoding
from .demo_pair import DRAFT, HEADS, demo_target, public_name, shipped
from .loading import load_head, load_model, load_tokenizer
from .statistics import GenerationStatistics, collect_stats
from .stopping import StoppingConfig

PROMPTS = [
    "Explain in simple words why the sky is blue.",
    "Write three tips for someone who starts running.",
    "A baker sells 12 loaves in the morning and twice as many in the afternoon, at $3 each. How much does she earn?",
    "Write a Python function that returns the n-th Fibonacci number.",
]
FIXED_LENGTHS = (1, 2, 3, 4, 6)


@dataclass
class Method:
    """One way to decode: the keywords of the timed calls, and of the call that counts rounds if that differs."""

    name: str
    timed: dict[str, Any]
    counted: dict[str, Any] | None = None
    draft_length: int | None = None  # for transformers' assisted decoding with a fixed number of tokens
    seconds: list[float] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    statistics: GenerationStatistics | None = None

    def rates(self) -> list[float]:
        """Tokens/s of every timed run."""
        return [n / s for n, s in zip(self.new_tokens, self.seconds, strict=True)]


@contextmanager
def fixed_draft_length(draft: PreTrainedModel, length: int | None) -> Iterator[None]:
    """Within the context transformers drafts `length` tokens a round; `None` leaves its defaults."""
    before = draft.generation_config.to_dict()
    if length is not None:
        draft.generation_config.update(
            num_assistant_tokens=length, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
    try:
        yield
    finally:
        draft.generation_config.update(**before)


class Bench:
    """Runs methods on prompts with one target and draft."""

    def __init__(
        self, target: PreTrainedModel, draft: PreTrainedModel, prompts: list[Tensor], decoding: dict[str, Any]
    ):
        self.target, self.draft, self.prompts, self.decoding = target, draft, prompts, decoding

    def run(self, method: Method, prompt: int, **kwargs) -> tuple[list[int], float]:
        """The new tokens of one generation, and its seconds."""
        ids = self.prompts[prompt]
        set_seed(prompt)
        with fixed_draft_length(self.draft, method.draft_length):
            start = time.perf_counter()
            output = self.target.generate(ids, attention_mask=torch.ones_like(ids), **self.decoding, **kwargs)
            new_tokens = output[0, ids.shape[1] :].tolist()
            return new_tokens, time.perf_counter() - start

    def warm_up(self, method: Method) -> None:
        """Runs a method once on every prompt, untimed, for its outputs and its counts."""
        with collect_stats() as stats:
            method.outputs = [
                self.run(method, i, **(method.counted or method.timed))[0] for i in range(len(self.prompts))
            ]
        method.statistics = stats

    def time(self, methods: list[Method], repeats: int, prompts: int | None = None) -> None:
        """Times the methods in turn on every prompt, A B C A B C, `repeats` times."""
        for _ in range(repeats):
            for prompt in range(len(self.prompts[:prompts])):
                for method in methods:
                    new_tokens, seconds = self.run(method, prompt, **method.timed)
                    method.new_tokens.append(len(new_tokens))
                    method.seconds.append(seconds)


def assisted(draft: PreTrainedModel, name: str, draft_length: int | None = None) -> Method:
    """transformers' own assisted decoding; the counted call goes through the same loop and generator."""
    timed = {"assistant_model": draft}
    return Method(name, timed, timed | {"candidate_generator": AssistedCandidateGenerator}, draft_length)


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
) -> list[Method]:
    """Loads the pair, streams one answer, times the methods and prints the table. See the CLI for the arguments."""
    stopping_config = StoppingConfig(threshold=threshold)
    target = target or demo_target()
    draft = draft or shipped(DRAFT)
    head = head or shipped(HEADS / ("sampling" if sample else "greedy"))
    tokenizer = load_tokenizer(target)
    target_model, draft_model = load_model(target, dtype), load_model(draft, dtype)
    load_head(draft_model, head)
    console.print(
        f"target [bold]{target}[/bold]\ndraft  [bold]{draft}[/bold]\nhead   [bold]{head}[/bold]", soft_wrap=True
    )

    stopping_config = stopping_config.filled_from(active_head_config(draft_model))
    if stopping_config.rule == "cost-aware":
        with console.status("measuring what a round costs, as `specdecpp calibrate` does"):
            costs = measure_costs(target_model, draft_model, max_draft_length=8, context_length=96, repeats=5)
        stopping_config = replace(stopping_config, settings={**stopping_config.settings, "costs": asdict(costs)})

    texts = prompts or PROMPTS
    ids = [torch.tensor([prompt_ids(tokenizer, text)], device=target_model.device) for text in texts]
    decoding = Decoding(do_sample=True) if sample else Decoding()
    bench = Bench(target_model, draft_model, ids, decoding.generate_kwargs() | {"max_new_tokens": max_new_tokens})
    ours = {"assistant_model": draft_model, "candidate_generator": SpecDecPP, "stopping_config": stopping_config}

    console.print(f"\n[bold]{texts[0]}[/bold]")
    streamed = Method(
        "streamed", ours | {"streamer": TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)}
    )
    bench.run(streamed, 0, **streamed.timed)

    plain = Method("plain generate", {})
    default = assisted(draft_model, "assisted, default")
    candidates = [assisted(draft_model, f"assisted, {k} token{'s' * (k > 1)}", k) for k in FIXED_LENGTHS]
    with console.status("choosing the best fixed draft length for transformers"):
        bench.time(candidates, repeats=1, prompts=2)
    best = max(candidates, key=lambda m: sum(m.new_tokens) / sum(m.seconds))
    sweep = {m.draft_length: sum(m.new_tokens) / sum(m.seconds) for m in candidates}
    best.seconds, best.new_tokens = [], []
    best.name = f"assisted, best fixed ({best.draft_length})"
    methods = [plain, default, best, Method("SpecDec++", ours)]
    with console.status("timing"):
        for method in methods:
            bench.warm_up(method)
        bench.time(methods, repeats)

    console.print(table(methods, sample))
    console.print(conditions(target_model, ids, max_new_tokens, repeats, dtype), soft_wrap=True)
    if json_file is not None:
        json_file.write_text(
            json.dumps(
                report(methods, sweep, texts, target_model, draft_model, dtype, head, stopping_config), indent=1
            )
        )
    return methods


def ratios(method: Method, plain: Method) -> list[float]:
    """Speed of each timed run relative to the plain run of the same prompt and repeat."""
    return [a / b for a, b in zip(method.rates(), plain.rates(), strict=True)]


def table(methods: list[Method], sample: bool) -> Table:
    plain = methods[0]
    result = Table("method", "tokens/s (min - max)", "x plain", "tokens / target pass", "verif", "discard", "= plain")
    for column in result.columns[1:]:
        column.justify = "right"
    for m in methods:
        rates, stats = sorted(m.rates()), m.statistics
        equal = sum(a == b for a, b in zip(m.outputs, plain.outputs, strict=True))
        counted = m is not plain
        result.add_row(
            m.name,
            f"{statistics.median(rates):.1f} ({rates[0]:.1f} - {rates[-1]:.1f})",
            f"{statistics.median(ratios(m, plain)):.2f}",
            f"{stats.tokens_per_target_pass:.2f}" if counted else "1.00",
            f"{stats.verification_rate:.3f}" if counted else "1.000",
            f"{stats.discard_rate:.3f}" if counted else "0.000",
            "sampled" if sample else f"{equal} of {len(m.outputs)}",
        )
    return result


def conditions(target: PreTrainedModel, ids: list[Tensor], max_new_tokens: int, repeats: int, dtype: str) -> str:
    return (
        f"medians of {repeats} interleaved runs on {len(ids)} prompts of {min(i.shape[1] for i in ids)} to "
        f"{max(i.shape[1] for i in ids)} tokens, at most {max_new_tokens} new tokens, batch size 1, {dtype}, "
        f"{target.device.type} with {torch.get_num_threads()} threads, torch {torch.__version__}, transformers "
        f"{version('transformers')}; '= plain' counts prompts with the same tokens as plain decoding"
    )


def report(methods, sweep, texts, target, draft, dtype, head, stopping_config) -> dict[str, Any]:
    """Everything measured, for `--json`."""
    plain = methods[0]
    return {
        "target": public_name(target.config._name_or_path),
        "draft": public_name(draft.config._name_or_path),
        "head": public_name(head),
        "stopping_config": stopping_config.to_dict(),
        "max_new_tokens": max(n for m in methods for n in m.new_tokens),
        "dtype": dtype,
        "device": torch.cuda.get_device_name() if target.device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "hf_specdecpp")},
        "prompts": texts,
        "fixed_length_sweep_tokens_per_second": sweep,
        "methods": [
            {
                "name": m.name,
                "tokens_per_second": statistics.median(m.rates()),
                "ratio_to_plain": statistics.median(ratios(m, plain)),
                "ratios": ratios(m, plain),
                "seconds": m.seconds,
                "new_tokens": m.new_tokens,
                "outputs": m.outputs,
                "equal_to_plain": [a == b for a, b in zip(m.outputs, plain.outputs, strict=True)],
                "rounds": m.statistics.rounds,
                "drafted": m.statistics.drafted,
                "accepted": m.statistics.accepted,
                "verification_rate": m.statistics.verification_rate if m is not plain else 1.0,
                "discard_rate": m.statistics.discard_rate,
                "acceptance_by_position": m.statistics.acceptance_by_position,
                "stop_reasons": m.statistics.stop_reasons,
                "draft_seconds": m.statistics.draft_seconds,
                "target_seconds": m.statistics.target_seconds,
            }
            for m in methods
        ],
    }
