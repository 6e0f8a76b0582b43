# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Whether decoding is as fast as a replay says: chains by the clock, beside what a replay of them promises.

    python benchmarks/rules/clock.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --head recipes/smollm2-135m/heads/greedy --set alpaca=FILE --traces runs/clock --output clock.json

Our loop decodes every prompt with the chains of the recommended rule and without drafts, in turn. The rounds in which
target and draft read the prompt do not count, for a replay knows nothing of them. Its costs are those of the other
rounds, so what the clock is behind by is what lies between the passes.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch

from hf_specdecpp import collect_stats
from hf_specdecpp.bench.measure import Bench
from hf_specdecpp.bench.methods import Method, new_method, recommendation
from hf_specdecpp.bench.sets import load_prompts
from hf_specdecpp.bench.summary import interval
from hf_specdecpp.costs.profile import RunningCosts
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.evidence.replay import replay
from hf_specdecpp.evidence.trace import read_traces, record_traces
from hf_specdecpp.hub.data import prompt_ids
from hf_specdecpp.hub.loading import load_pair, load_tokenizer
from hf_specdecpp.stopping import Round


def decoded(bench: Bench, method: Method, ids: torch.Tensor, costs: RunningCosts) -> tuple[int, float]:
    """How many tokens came of rounds that read no prompt, and in how many seconds."""
    tokens, seconds, last = 0, 0.0, time.perf_counter()

    def hear(round: Round) -> None:
        nonlocal tokens, seconds, last
        costs.hear(round)
        now = time.perf_counter()
        if not round.reads_prompt:
            tokens, seconds = tokens + round.new_tokens, seconds + now - last
        last = now

    with collect_stats(on_round=hear):
        bench.run(method, ids)
    return tokens, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--head", help="of the draft")
    parser.add_argument(
        "--set", action="append", required=True, dest="sets", help="a set of the bench, or NAME=SOURCE"
    )
    parser.add_argument("--count", type=int, default=24, help="prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--traces", type=Path, required=True, help="folder")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    target, draft = load_pair(args.target, args.draft, args.dtype, head=args.head)
    tokenizer, decoding = load_tokenizer(args.target), Decoding()
    bench = Bench(target, draft, decoding.generate_kwargs() | {"max_new_tokens": args.max_new_tokens})
    ways = [new_method(name, target, draft) for name in ("fixed=0", "chain")]
    config, result = recommendation(draft), {}
    for named in args.sets:
        name, texts = load_prompts(named, args.count)
        prompts = [torch.tensor([prompt_ids(tokenizer, text)], device=target.device) for text in texts]
        costs, ratios = RunningCosts(window=10_000), []
        for each in (*ways, *ways):  # before it counts: kernels are made, and the rule learns costs
            decoded(bench, each, prompts[0], costs)
        for ids in prompts:
            speeds = [tokens / seconds for tokens, seconds in (decoded(bench, each, ids, costs) for each in ways)]
            ratios.append(speeds[1] / speeds[0])
        path = args.traces / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = [ids[0].tolist() for ids in prompts]
        record_traces(target, draft, plain, path, decoding, args.max_new_tokens, config.max_draft_length)
        profile = costs.profile()
        rule = partial(config.new_rule, costs=profile)
        promised = [replay([trace], rule, profile).speedup for trace in read_traces(path)]
        quotients = [clock / promise for clock, promise in zip(ratios, promised, strict=True)]
        result[name] = {
            "clock": median(ratios),
            "clock_interval": interval(ratios),
            "replay": median(promised),
            "clock_over_replay": median(quotients),
            "clock_over_replay_interval": interval(quotients),
            "clocks": ratios,
            "replays": promised,
            "draft_seconds": profile.draft_seconds,
            "verify_seconds": profile.verify_seconds,
        }
        print(name, {key: value for key, value in result[name].items() if isinstance(value, float)}, flush=True)
    settings = {"dtype": args.dtype, "prompts": args.count, "max_new_tokens": args.max_new_tokens, "sets": result}
    write_result(args.output, settings, target=target.config, draft=draft.config)


if __name__ == "__main__":
    main()
