# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Every stopping rule on the real pair, by replay of traces: settings chosen on the first set, reported on all.

    python benchmarks/rules/compare_rules.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --head recipes/smollm2-135m/heads/greedy --set alpaca_dev alpaca_dev.jsonl --set humaneval \\
        openai/openai_humaneval:test --traces runs/traces --output benchmarks/rules/results/rules-greedy.json

A trace holds, at every position of the target's own output, the longest draft with all that a rule may look at, so a
rule's rounds follow without a model. The draft's hidden states are kept beside it: the same traces serve every head of
this draft and mode. Costs are measured on this machine first. Traces are appended prompt by prompt; a killed run goes
on where it stopped. With `--recommend` the best threshold and the expected acceptance are written into
the head's `adapter_config.json`.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import asdict
from pathlib import Path

from hf_specdecpp import AcceptanceHeadConfig, StoppingConfig
from hf_specdecpp.acceptance import read_head
from hf_specdecpp.bench.sets import load_prompts
from hf_specdecpp.bench.summary import summarise_replay
from hf_specdecpp.costs.measure import measure_costs
from hf_specdecpp.costs.store import Calibration
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.evidence.replay import oracle, replay
from hf_specdecpp.evidence.trace import Trace, judged, read_states, read_traces, record_traces
from hf_specdecpp.hub.data import prompt_ids
from hf_specdecpp.hub.loading import load_pair, load_tokenizer
from hf_specdecpp.stopping import CostProfile

THRESHOLDS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]


def candidates(costs: dict, mean_acceptance: float, longest: int) -> dict[str, list[StoppingConfig]]:
    """Each rule with the settings to choose from; one setting means that nothing is chosen."""

    def tuned(rule, **settings):
        return [StoppingConfig(h, 1, longest, rule, settings) for h in THRESHOLDS]

    def single(rule, **settings):
        return [StoppingConfig(None, 1, longest, rule, settings)]

    ours = {"costs": costs, "mean_acceptance": mean_acceptance, "max_length": longest}
    return {
        "fixed length": [StoppingConfig(None, 1, longest, "fixed", {"length": k}) for k in range(longest + 1)],
        "transformers' heuristic": [StoppingConfig(None, 1, longest, "heuristic", {"length": k}) for k in (2, 5)],
        "transformers' confidence": tuned("confidence") + tuned("confidence", adapt=False),
        "cumulative confidence": tuned("cumulative-confidence"),
        "SVIP": tuned("svip"),
        "AdaEDL": tuned("adaedl"),
        "goodput": single("goodput", costs=costs, max_length=longest),
        "Drop-In": single("drop-in", costs=costs, max_length=longest),
        "SpecDec++ (head)": tuned("specdec++"),
        "cost-aware, no head": single("cost-aware", uses_head=False, **ours),
        "cost-aware with the head": single("cost-aware", **ours),
    }


def mean_acceptance(traces: list[Trace]) -> float:
    """Accepted per verified token, all before it accepted."""
    accepted = sum(d.accepted for t in traces for d in t.drafts)
    return accepted / (accepted + sum(d.accepted < len(d.tokens) for t in traces for d in t.drafts))


def log_losses(traces: list[Trace]) -> dict[str, float]:
    """How well acceptance is predicted, in nats a token, over the verified tokens that the head judged."""
    seen = [
        (k < draft.accepted, token.probability, token.acceptance)
        for trace in traces for draft in trace.drafts
        for k, token in enumerate(draft.tokens[: draft.accepted + 1]) if token.acceptance is not None
    ]  # fmt: skip
    mean = sum(accepted for accepted, *_ in seen) / len(seen)

    def loss(probability, accepted):
        return -math.log(min(max(probability if accepted else 1 - probability, 1e-3), 1 - 1e-3))

    return {
        "constant": sum(loss(mean, accepted) for accepted, *_ in seen) / len(seen),
        "draft's probability": sum(loss(q, accepted) for accepted, q, _ in seen) / len(seen),
        "head": sum(loss(p, accepted) for accepted, _, p in seen) / len(seen),
        "tokens": len(seen),
    }


def summary(found, best_possible: float) -> dict[str, float]:
    gain = (found.speedup - 1) / (best_possible - 1) if best_possible > 1 else 0.0  # there is nothing to gain
    return {"verif": found.verification_rate, "discard": found.discard_rate, "speedup": found.speedup,
            "share_of_oracle_gain": gain}  # fmt: skip


def spread(traces: list[Trace], config: StoppingConfig, costs: CostProfile, draws: int = 200) -> list[float]:
    """95 % bootstrap interval of the speed-up, over prompts."""
    single = [replay([trace], config.new_rule, costs) for trace in traces]
    r, values = random.Random(0), []
    for _ in range(draws):
        drawn = r.choices(single, k=len(single))
        values.append(sum(s.plain_seconds for s in drawn) / sum(s.seconds for s in drawn))
    values.sort()
    return [values[int(0.025 * draws)], values[int(0.975 * draws)]]


def other_hardware(traces: dict[str, list[Trace]], expected: float, longest: int) -> list[dict]:
    """The rules with the costs of other machines: a step of the target is 1 second, verification flat or in steps.

    The best tuned rule has its setting chosen on the first set for each machine; the cost-aware rules are told the
    costs and nothing else.
    """
    first, *others = traces.values()
    rows = []
    for draft in (0.02, 0.05, 0.15, 0.3, 0.5, 0.85):
        for shape, verify in (("flat", (1.0, 1.005)), ("stepped", (1.0, *[1.4] * 4, *[1.8] * 4, 2.2))):
            costs = CostProfile(draft, verify)
            speeds = {}
            for rule, configs in candidates(asdict(costs), expected, longest).items():
                best = max(configs, key=lambda c: replay(first, c.new_rule, costs).speedup)
                speeds[rule] = [replay(t, best.new_rule, costs).speedup for t in others or [first]]
            tuned = {rule: s for rule, s in speeds.items() if not rule.startswith("cost-aware")}
            for number, name in enumerate(list(traces)[1:] or list(traces)):
                rule = max(tuned, key=lambda r: tuned[r][number])
                rows.append({
                    "set": name, "draft_to_target": draft, "verification": shape, "best_tuned": rule,
                    "best_tuned_speedup": tuned[rule][number],
                    "cost_aware_speedup": speeds["cost-aware with the head"][number],
                    "cost_aware_no_head_speedup": speeds["cost-aware, no head"][number],
                })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--set", nargs=2, action="append", required=True, metavar=("NAME", "SOURCE"))
    parser.add_argument("--count", type=int, default=24, help="prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--max-length", type=int, default=512, help="tokens of prompt and response")
    parser.add_argument("--max-draft-length", type=int, default=12)
    parser.add_argument("--costs", type=Path, help="JSON of `specdecpp calibrate --output`; else measured here")
    parser.add_argument("--traces", type=Path, required=True, help="folder")
    parser.add_argument("--recommend", action="store_true")
    parser.add_argument("--hardware", action="store_true", help="replay with the costs of other machines too")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = load_tokenizer(args.target)
    target, draft = load_pair(args.target, args.draft, "bfloat16", head=str(args.head))
    head = AcceptanceHeadConfig.from_pretrained(args.head)
    decoding, longest = Decoding(**head.decoding), args.max_draft_length
    profile = Calibration.load(args.costs).at(128) if args.costs else measure_costs(target, draft, longest)
    traces = {}
    for name, source in args.set:
        path = args.traces / f"{'sampling' if decoding.do_sample else 'greedy'}-{name}.jsonl"
        prompts = [prompt_ids(tokenizer, text) for text in load_prompts(f"{name}={source}", args.count)[1]]
        record_traces(
            target, draft, prompts, path, decoding, args.max_new_tokens, longest, keep_states=True,
            max_length=args.max_length, batch_size=192,
        )  # fmt: skip
        found = zip(read_traces(path), read_states(path), strict=True)
        traces[name] = [judged(trace, states, *read_head(args.head)) for trace, states in found][: args.count]

    first = next(iter(traces.values()))
    expected = mean_acceptance(first)
    rules, chosen = candidates(asdict(profile), expected, longest), {}
    for rule, configs in rules.items():
        chosen[rule] = max(configs, key=lambda c: replay(first, c.new_rule, profile).speedup)
    tables = {}
    for name, found in traces.items():
        best = oracle(found, profile)
        tables[name] = {"oracle": summary(best, best.speedup)}
        for rule, config in chosen.items():
            row = summary(replay(found, config.new_rule, profile), best.speedup)
            tables[name][rule] = row | {"interval": spread(found, config, profile)}
    result = {
        "head": "/".join(args.head.parts[-2:]),
        "decoding": head.decoding,
        "costs_seconds": asdict(profile),
        "draft_to_target": profile.draft_seconds / profile.verification(1),
        "chosen_on": args.set[0][0],
        "chosen": {n: {"threshold": c.threshold, "settings": {k: v for k, v in c.settings.items() if k != "costs"}}
                   for n, c in chosen.items()},
        "mean_acceptance": {name: mean_acceptance(found) for name, found in traces.items()},
        "log_loss_of_acceptance": {name: log_losses(found) for name, found in traces.items()},
        "prompts": args.count,
        "max_new_tokens": args.max_new_tokens,
        "max_length": args.max_length,
        "max_draft_length": longest,
        "dtype": "bfloat16",
        "tables": tables,
        "replays": {
            name: summarise_replay(found, profile, longest, chosen["cost-aware with the head"], with_head=True)
            for name, found in traces.items()
        },
        "other_hardware": other_hardware(traces, expected, longest) if args.hardware else None,
    }  # fmt: skip
    write_result(args.output, result, target=target.config, draft=draft.config)
    for name, rows in tables.items():
        print(f"{name} ({args.head.name})")
        for rule, row in rows.items():
            print(f"  {rule:<28}{row['speedup']:.3f}x  verif {row['verif']:.3f}  discard {row['discard']:.3f}  "
                  f"{row['share_of_oracle_gain']:.0%} of the oracle's gain")  # fmt: skip
    if args.recommend:
        head.threshold = chosen["SpecDec++ (head)"].threshold
        head.rule, head.rule_settings = "cost-aware", {"mean_acceptance": round(expected, 2)}
        head.min_draft_length = 1
        head.save_pretrained(args.head)


if __name__ == "__main__":
    main()
