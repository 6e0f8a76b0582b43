# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Trees against chains by replay, without a clock: the same texts, drafts and costs for every rule.

    specdecpp trace --target TARGET --draft DRAFT --head HEAD --prompts alpaca_dev.jsonl --limit 20 --branches 3 \
        --max-draft-length 6 --output traces-alpaca.jsonl
    specdecpp calibrate --target TARGET --draft DRAFT --output costs
    python benchmarks/rules/trees.py --traces traces-alpaca.jsonl --costs costs/bfloat16.json --output trees.json

Rows are chains and trees of the cost-aware rule, fixed lengths, EAGLE-2's trees of several sizes, and the chains of
perfect hindsight.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hf_specdecpp.costs.store import Calibration
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.evidence.replay import oracle, replay
from hf_specdecpp.evidence.trace import read_traces
from hf_specdecpp.stopping import Scope, StoppingConfig


def rows(depth: int) -> dict[str, tuple[StoppingConfig, Scope]]:
    """The rules by name, none with drafts longer than the traces hold."""
    chains, trees = Scope(branches=1), Scope()
    found = {
        "cost-aware, chain": (StoppingConfig(None, 1, depth, "cost-aware"), chains),
        "cost-aware, two branches": (StoppingConfig(None, 1, depth, "cost-aware"), Scope(branches=2)),
        "cost-aware, tree": (StoppingConfig(None, 1, depth, "cost-aware"), trees),
    }
    for length in range(1, depth + 1):
        found[f"fixed {length}"] = StoppingConfig(None, 1, depth, "fixed", {"length": length}), chains
    for nodes in (7, 11, 15):
        for levels in (2, 3, 4):
            settings = {"branches": 3, "nodes": nodes, "depth": levels}
            found[f"eagle-2, {nodes} nodes, depth {levels}"] = (
                StoppingConfig(None, 1, depth, "eagle-2", settings),
                trees,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", type=Path, required=True, help="of `specdecpp trace --branches`")
    parser.add_argument("--costs", type=Path, required=True, help="of `specdecpp calibrate --output`")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    profile = next(iter(Calibration.load(args.costs).profiles.values()))
    result = {"draft_seconds": profile.draft_seconds, "verify_seconds": profile.verify_seconds, "sets": {}}
    for path in args.traces:
        traces = read_traces(path)
        depth = max(token.position for trace in traces for draft in trace.drafts for token in draft.tokens)
        replays = {"oracle over chains": oracle(traces, profile)}
        for name, (config, scope) in rows(depth).items():
            filled = config.filled_from(None)
            replays[name] = replay(traces, lambda config=filled: config.new_rule(costs=profile), profile, scope)
        found = {
            name: {
                "speedup": one.speedup,
                "tokens_per_target_pass": one.tokens / one.rounds,
                "drafted_per_pass": one.drafted / one.rounds,
            }
            for name, one in replays.items()
        }
        result["sets"][path.stem] = {"prompts": len(traces), "rules": found}
        for name, row in found.items():
            print(f"{path.stem:24} {name:28} {row['speedup']:.3f}", flush=True)
    write_result(args.output, result)


if __name__ == "__main__":
    main()
