# /// script
# dependencies = ["hf_specdecpp[demo]"]
# ///
"""Chooses the recommended threshold of a head, by counts of real runs and the two measured step times.

    python recipes/smollm2-135m/tune_threshold.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --head recipes/smollm2-135m/heads/greedy --prompts runs/dev.jsonl --output benchmarks/results/threshold.json

Speed relative to plain decoding is `tokens x t_target / (drafted x t_draft + rounds x t_target)`: the counts do not
depend on the machine's noise, and the times are medians over all runs. The best threshold is written into the head's
`adapter_config.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from hf_specdecpp import AcceptanceHeadConfig, SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.data import load_rows, prompt_ids, prompt_text
from hf_specdecpp.decoding import Decoding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(m, dtype=torch.bfloat16).eval() for m in (args.target, args.draft)
    )
    draft.load_adapter(str(args.head))
    config = AcceptanceHeadConfig.from_pretrained(args.head)
    decoding = Decoding(**config.decoding)
    prompts = [torch.tensor([prompt_ids(tokenizer, prompt_text(r))]) for r in load_rows(args.prompts).take(args.count)]
    totals = {h: [0, 0, 0] for h in args.thresholds}
    draft_times, target_times = [], []
    for number, ids in enumerate(prompts):
        for h in args.thresholds:
            set_seed(number)
            with collect_stats() as stats:
                target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.max_new_tokens,
                    assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=StoppingConfig(h),
                    **decoding.generate_kwargs(),
                )  # fmt: skip
            for i, count in enumerate((stats.tokens, stats.drafted, stats.rounds)):
                totals[h][i] += count
            draft_times.append(stats.draft_seconds / stats.drafted)
            target_times.append(stats.target_seconds / stats.rounds)
    t_draft, t_target = statistics.median(draft_times), statistics.median(target_times)
    speed = {h: n * t_target / (d * t_draft + r * t_target) for h, (n, d, r) in totals.items()}
    config.threshold = max(speed, key=speed.get)
    config.save_pretrained(args.head)
    result = {
        "head": args.head.name,
        "t_draft_ms": 1000 * t_draft,
        "t_target_ms": 1000 * t_target,
        "speed_relative_to_plain": speed,
        "tokens_drafted_rounds": totals,
        "prompts": len(prompts),
        "threshold": config.threshold,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
