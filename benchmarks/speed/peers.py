# /// script
# requires-python = ">=3.11"
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0", "flashspec==0.3.1"]
# ///
"""SpecDec++ beside what else speeds up transformers, by the clock, one text at a time, greedy.

    python -m venv runs/peers && runs/peers/bin/pip install -c constraints.txt flashspec==0.3.1 -e .
    runs/peers/bin/python benchmarks/speed/peers.py --set alpaca --set gsm8k --set humaneval \
        --set mt-bench --set summaries --output benchmarks/speed/results/DATE-peers.json

The methods are those of `specdecpp bench` by the same names, and `flashspec`: its engine with its defaults, which are
what its author recommends (prompt lookup of up to 6 tokens, else the draft's next 2; compilation is for CUDA alone);
`flashspec=STRATEGY` is another of its strategies, `flashspec=K` the draft alone with K tokens a step. SpecDec++ has no
settings either: its default sources, and costs that it measures as it runs, or those of `specdecpp calibrate` if that
was run for this pair. The others use a copy of the draft without a head or, where ours reads its target, which
none of them can, the ordinary draft `--peers-draft`; `same-draft` is SpecDec++ with theirs.

What is compiled is compiled before. Each prompt goes through all methods once untimed, which warms up and counts, and
then `--repeats` times by the clock (0 times that first one), beginning with another method than the prompt before.
Ratios are of a prompt's speeds. Intervals of 95 % are by bootstrap over the prompts of each set. Rows are appended to
a file beside the result: a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_specdecpp.bench.measure import COUNTED, Bench, Row, measure, obstacle, resume
from hf_specdecpp.bench.methods import Method, new_method
from hf_specdecpp.bench.run import Settings, described, summarise_set
from hf_specdecpp.bench.sets import load_prompts
from hf_specdecpp.costs.store import stored_calibration
from hf_specdecpp.costs.warm import rooms, warm
from hf_specdecpp.evidence.conditions import conditions, installed, write_result
from hf_specdecpp.evidence.statistics import GenerationStatistics
from hf_specdecpp.hub.data import prompt_ids
from hf_specdecpp.hub.loading import load_model, load_pair, load_tokenizer

METHODS = [
    "plain", "compiled", "lookup", "assisted", "assisted=1", "flashspec", "fixed=0", "text", "same-draft",
    "recommended", "compiled:fixed=0", "compiled:recommended",
]  # fmt: skip
OURS = ("recommended", "text", "same-draft", "compiled:recommended")


class Peers(Bench):
    """Generates with the target and, besides `generate`, with flashspec's engines.

    Args:
        engines (`dict`): by the name of a method, what it generates with in place of `generate`.
    """

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel, settings: dict[str, Any], engines: dict):
        super().__init__(target, draft, settings)
        self.engines = engines
        self.eos = torch.as_tensor(target.generation_config.eos_token_id).flatten().tolist()

    def run(self, method: Method, prompt: Tensor, seed: int = 0, **more: Any) -> tuple[list[int], float]:
        if method.name not in self.engines:
            return super().run(method, prompt, seed, **more)
        ids, _, seconds = self._run_engine(method, prompt)
        return ids, seconds

    def count(self, method: Method, prompt: Tensor, seed: int = 0) -> dict[str, Any]:
        if method.name not in self.engines:
            return super().count(method, prompt, seed)
        ids, steps, seconds = self._run_engine(method, prompt)
        statistics = GenerationStatistics(
            rounds=len(steps), tokens=len(ids), drafted=sum(step.proposed for step in steps),
            accepted=sum(step.accepted for step in steps),
        )  # fmt: skip
        return {"seconds": seconds, "new_tokens": len(ids), "ids": ids, "statistics": statistics}

    def _run_engine(self, method: Method, prompt: Tensor) -> tuple[list[int], list, float]:
        begin = time.perf_counter()
        result = self.engines[method.name].generate(
            prompt, max_new_tokens=self.settings["max_new_tokens"], eos_token_ids=self.eos
        )
        ids = result.output_ids[0, : result.n_tokens_generated].tolist()
        return ids, result.arm_steps, time.perf_counter() - begin


def flashspec_engine(strategy: str, target: PreTrainedModel, draft: PreTrainedModel):
    """An engine of flashspec for the pair; `strategy` is one of its own, or how many tokens the draft proposes."""
    from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine import HuggingFaceDrafter, TargetModel

    settings: dict[str, Any] = {"drafter_strategy": strategy or "auto", "sampling": SamplingConfig(temperature=0.0)}
    if strategy.isdecimal():
        sampling = SamplingConfig(temperature=0.0, gamma=int(strategy))
        settings = {"drafter_strategy": "bandit", "bandit": BanditConfig(n_arms=1), "sampling": sampling}
    device, name = target.device, target.config._name_or_path
    drafter = HuggingFaceDrafter(draft.config._name_or_path, device, draft.dtype, model=draft)
    return SpeculativeEngine(
        FlashSpecConfig(device=str(device), **settings), [drafter],
        TargetModel(name, device, target.dtype, model=target),
    )  # fmt: skip


def geometric_mean(ratios: list[list[float]], draws: int = 4000, seed: int = 0) -> dict[str, Any]:
    """The geometric mean over the sets of each set's own, one ratio a prompt, and its 95 % interval by bootstrap."""
    r = np.random.default_rng(seed)
    logs = [np.log(of_set) for of_set in ratios]
    drawn = np.mean([r.choice(of_set, (draws, len(of_set))).mean(1) for of_set in logs], axis=0)
    mean = np.mean([of_set.mean() for of_set in logs])
    return {"mean": float(np.exp(mean)), "interval": np.exp(np.percentile(drawn, [2.5, 97.5])).tolist()}


def ratios(found: dict[str, dict[str, Any]], method: str, other: str) -> list[float]:
    """How many times as fast as `other` a method was on each prompt of a set."""
    speedups = (found[name]["by_prompt"]["speedup"] for name in (method, other))
    return [a / b for a, b in zip(*speedups, strict=True)]


def compare(sets: dict[str, dict[str, Any]], methods: list[str]) -> dict[str, Any]:
    """Geometric means of ratios of speeds, of each set and in all: methods to plain, each of ours to the others."""
    pairs = {f"{name} / plain": (name, "plain") for name in methods if name != "plain"}
    for own in OURS:
        pairs |= {f"{own} / {name}": (own, name) for name in methods if own in methods and name not in ("plain", own)}
    found = {}
    for label, pair in pairs.items():
        by_set = {name: ratios(of_set["methods"], *pair) for name, of_set in sets.items()}
        found[label] = {name: geometric_mean([own]) for name, own in by_set.items()}
        found[label]["all"] = geometric_mean(list(by_set.values()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="left out, the demo's")
    parser.add_argument("--draft", help="left out, the shipped one")
    parser.add_argument("--head", help="of the draft; left out, the shipped one if the draft is")
    parser.add_argument("--peers-draft", help="for methods that take ordinary drafts alone, if --draft is none")
    parser.add_argument("--set", action="append", required=True, dest="sets", help="of the bench, or NAME=SOURCE")
    parser.add_argument("--count", type=int, default=24, help="prompts of each set")
    parser.add_argument("--method", action="append", dest="methods", help=f"left out, {', '.join(METHODS)}")
    parser.add_argument("--repeats", type=int, default=3, help="by the clock")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    if args.output.exists():
        raise ValueError(f"{str(args.output)!r} is a result, and results are never edited: give another --output")
    settings = Settings(
        args.target, args.draft, args.head, args.sets, list(dict.fromkeys(["plain", *(args.methods or METHODS)])),
        count=args.count, repeats=args.repeats, max_new_tokens=args.max_new_tokens, dtype=args.dtype,
        threads=args.threads,
    ).filled()  # fmt: skip
    if settings.threads:
        torch.set_num_threads(settings.threads)
    target, draft = load_pair(settings.target, settings.draft, settings.dtype, head=settings.head)
    headless = load_model(args.peers_draft or settings.draft, settings.dtype)
    tokenizer = load_tokenizer(settings.target)
    prompts = {}
    for named in settings.sets:
        name, texts = load_prompts(named, settings.count, settings.seed)
        prompts[name] = [torch.tensor([prompt_ids(tokenizer, text)], device=target.device) for text in texts]

    methods, engines = [], {}
    for name in settings.methods:
        kind, _, strategy = name.partition("=")
        if kind == "flashspec":
            engines[name] = flashspec_engine(strategy, target, headless)
            methods.append(Method(name, f"flashspec {installed(kind)}, {strategy or 'default'}", {}))
        elif name == "same-draft":
            ours = new_method("recommended", target, headless)
            methods.append(replace(ours, name=name, label="SpecDec++ with the draft of the others"))
        else:
            methods.append(new_method(name, target, draft if name in OURS else headless))
    generation = {"do_sample": False, "max_new_tokens": settings.max_new_tokens}
    bench = Peers(target, headless, generation, engines)
    longest = max((ids for found in prompts.values() for ids in found), key=lambda ids: ids.shape[1])
    for method in methods:
        reason = obstacle(bench, method, longest)
        if reason is not None:
            raise ValueError(f"{method.name} does not run here: {reason}")
    if any(name.startswith("compiled:") for name in settings.methods):
        lengths = {ids.shape[1] + settings.max_new_tokens for found in prompts.values() for ids in found}
        for running in rooms("compiled", target, draft, lengths):
            for drafting in (draft, headless):
                warm(running, target, drafting)

    about = conditions(target=target.config, draft=draft.config)
    about["versions"]["flashspec"] = installed("flashspec")
    configuration = described(settings, prompts)
    header = configuration | {name: about[name] for name in ("models", "versions", "device", "threads")}
    rows, append = resume(args.output.with_suffix(".rows.jsonl"), header)
    for row in measure(bench, methods, prompts, settings.repeats, rows):
        append(row)
        rows.append(row)
        if row.repeat == COUNTED:
            print(describe(row), flush=True)
    sets = {
        name: summarise_set([row for row in rows if row.set == name], methods, settings.repeats, ids)
        for name, ids in prompts.items()
    }
    result = {
        "versions": about["versions"],
        "configuration": configuration,
        "dtype": settings.dtype,
        "calibrated": stored_calibration(target, draft) is not None,
        "geometric_means": compare(sets, settings.methods),
        "sets": sets,
    }
    write_result(args.output, result, target=target.config, draft=draft.config)
    print(table(json.loads(args.output.read_text())))


def describe(row: Row) -> str:
    equal = "" if row.first_difference is None else f", differs from plain at token {row.first_difference}"
    return f"{row.set} {row.prompt} {row.method}: {row.new_tokens / row.seconds:.1f} tokens/s{equal}"


def table(result: dict[str, Any]) -> str:
    """Median speed-ups by set, with how many outputs equal plain decoding's, and geometric means over all."""
    sets, means = result["sets"], result["geometric_means"]
    lines = ["| method | " + " | ".join(sets) + " | geometric mean |", "| --- |" + " ---: |" * (len(sets) + 1)]
    for name, found in next(iter(sets.values()))["methods"].items():
        cells = [
            f"{own['speedup']:.2f} ({own['equal_to_plain']}/{of_set['prompts']})"
            for of_set in sets.values()
            for own in [of_set["methods"][name]]
        ]
        mean = means.get(f"{name} / plain", {"all": {"mean": 1.0}})["all"]["mean"]
        lines.append(f"| {found['label']} | {' | '.join(cells)} | {mean:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
