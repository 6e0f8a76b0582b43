# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Tables and figures from what `compare_rules.py` and sweeps wrote; the paper's table (arXiv 2405.19715) beside ours.

    python benchmarks/rules/rules_report.py rules-greedy.json rules-sampling.json --output benchmarks/rules/replay

The first set of each result is the one that lengths and thresholds were chosen on; the others are the evidence.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hf_specdecpp.bench.report import draw_pareto, figure, markdown
from hf_specdecpp.evidence.files import save_figure, write_atomically
from hf_specdecpp.stopping import CostProfile
from hf_specdecpp.training.sweep import plot_sweep

# As the paper reports them, Llama-2-chat 7B drafting for 70B on two A100: speed-ups, and verif / discard.
PAPER = {
    "Alpaca": (1.90, "0.285 / 0.393", 2.04, "0.239 / 0.40"),
    "GSM8K": (2.07, "0.210 / 0.453", 2.26, "0.193 / 0.33"),
    "HumanEval": (2.00, "0.266 / 0.320", 2.23, "0.206 / 0.32"),
}
BESIDE = (
    "set and head", "best fixed K", "verif / discard", "SpecDec++", "verif / discard", "gain", "cost-aware", "gain",
    "hindsight",
)  # fmt: skip
FIXED, OURS, AWARE = "fixed length", "SpecDec++ (head)", "cost-aware with the head"


def mode(result: dict[str, Any]) -> str:
    return "sampling" if result["decoding"]["do_sample"] else "greedy"


def setting(result: dict[str, Any], rule: str) -> str:
    """What was chosen for a rule on the first set."""
    chosen = result["chosen"].get(rule, {})
    values = {"threshold": chosen.get("threshold"), "length": chosen.get("settings", {}).get("length")}
    parts = [f"{name} {value}" for name, value in values.items() if value is not None]
    return ", ".join(parts + ["not adapted"] * (chosen.get("settings", {}).get("adapt") is False))


def conditions(result: dict[str, Any]) -> str:
    costs = CostProfile(**result["costs_seconds"])
    drafted, step, eight = (1000 * s for s in (costs.draft_seconds, costs.verification(1), costs.verification(8)))
    return (
        f"Head {result['head']}; {result['prompts']} prompts a set, at most {result['max_new_tokens']} new tokens, "
        f"{result['max_length']} with the prompt. Replay of drafts that were recorded in {result['dtype']}, at most "
        f"{result['max_draft_length']} tokens long, with measured costs: {drafted:.1f} ms for a drafted token, "
        f"{step:.1f} ms for a step of the target (ratio {drafted / step:.2f}), {eight:.1f} ms to verify 8 tokens. "
        f"Settings were chosen on {result['chosen_on']}; the cost-aware rules are not tuned. Speeds are times plain "
        "decoding, with 95 % bootstrap intervals over prompts.\n"
    )


def summary(result: dict[str, Any]) -> list[str]:
    """A row for each rule, a column for each set."""
    tables = result["tables"]
    rows = [
        [rule, setting(result, rule), *(f"{table[rule]['speedup']:.3f}" for table in tables.values())]
        for rule in next(iter(tables.values()))
    ]
    return [*markdown(("rule", "setting", *tables), rows), ""]


def details(result: dict[str, Any], name: str) -> list[str]:
    rows = [
        [rule, speed(row), rates(row), f"{row['share_of_oracle_gain']:.0%}"]
        for rule, row in result["tables"][name].items()
    ]
    columns = "rule", "x plain", "verif / discard", "of the oracle's gain"
    return [f"### {name}, {mode(result)}\n", *markdown(columns, rows), ""]


def beside_the_paper(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, table in result["tables"].items():
        if name == result["chosen_on"]:
            continue
        fixed, ours, aware = table[FIXED], table[OURS], table[AWARE]
        rows.append([
            f"{name}, {mode(result)}, {result['head']}", f"{setting(result, FIXED)}: {speed(fixed)}", rates(fixed),
            f"{setting(result, OURS)}: {speed(ours)}", rates(ours), gain(ours, fixed), speed(aware),
            gain(aware, fixed), f"{table['oracle']['speedup']:.2f}",
        ])  # fmt: skip
    return rows


def machines(result: dict[str, Any]) -> list[str]:
    """With the costs of other machines, told and not measured, the cost-aware rule beside the best tuned one."""
    found: dict[tuple[float, str], dict[str, str]] = {}
    for row in result["other_hardware"]:
        speeds = f"{row['cost_aware_speedup']:.3f} / {row['best_tuned_speedup']:.3f} ({row['best_tuned']})"
        found.setdefault((row["draft_to_target"], row["verification"]), {})[row["set"]] = speeds
    rows = [[f"{draft:g}", shape, *speeds.values()] for (draft, shape), speeds in found.items()]
    least = min(row["cost_aware_speedup"] for row in result["other_hardware"])
    columns = "draft / target", "verification", *next(iter(found.values()))
    about = (
        "A drafted token takes so many steps of the target, and a pass over several tokens as long as over one (flat) "
        "or 1.4 to 2.2 times that (stepped). The cost-aware rule, which is told the costs alone, beside the best of "
        f"the others, tuned for each machine on {result['chosen_on']}. It is never below {least:.3f} of plain "
        "decoding.\n"
    )
    return [about, *markdown(columns, rows), ""]


def ablations(stem: str, result: dict[str, Any]) -> list[str]:
    metrics = "binary KL", "AUC", "ECE", "ECE of survival"
    columns = "variant", *metrics, "x plain, cost-aware", "x plain, SpecDec++", "at"
    rows = [
        [name, *(f"{value:.3f}" for value in values[:-1]), f"threshold {values[-1]:g}"]
        for name, *values in (row.values() for row in result["variants"])
    ]
    about = (
        f"One choice changed at a time, {mode(result)}. Losses are on each variant's own held-out labels, so those of "
        "other rows or labels do not compare; speeds are by replay of one and the same "
        f"{result['traces']} prompts of the dev set, in SpecDec++'s case at the best threshold there.\n"
    )
    return [f"### {stem}\n", about, *markdown(columns, rows), ""]


def speed(row: dict[str, Any]) -> str:
    interval = " ({:.3f} to {:.3f})".format(*row["interval"]) if "interval" in row else ""
    return f"{row['speedup']:.3f}{interval}"


def rates(row: dict[str, Any]) -> str:
    return f"{row['verif']:.3f} / {row['discard']:.3f}"


def gain(row: dict[str, Any], over: dict[str, Any]) -> str:
    return f"{row['speedup'] / over['speedup'] - 1:+.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON files of compare_rules.py, and of sweeps")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args()

    args.output.mkdir(parents=True, exist_ok=True)
    found = {path.stem: json.loads(path.read_text()) for path in args.results}
    sweeps = {stem: result for stem, result in found.items() if "variants" in result}
    results = {stem: result for stem, result in found.items() if stem not in sweeps}
    parts = ["# Stopping rules, by replay\n"]
    for stem, result in results.items():
        parts += [f"## {stem}\n", conditions(result), *summary(result)]
        for name, replay in result["replays"].items():
            image = f"{stem}-{name}.svg"
            drawn = {"replay": replay, "prompts": result["prompts"]}
            save_figure(figure(draw_pareto, name.partition("_")[0], mode(result), drawn), args.output / image)
            parts += [*details(result, name), f"![verif against discard, {name}, {mode(result)}]({image})\n"]
        if result["other_hardware"]:
            parts += [f"### Other machines, {mode(result)}\n", *machines(result)]
    paper = [
        [f"{name}, the paper", f"{k:.2f}", a, f"{s:.2f}", b, f"{s / k - 1:+.1%}", "", "", ""]
        for name, (k, a, s, b) in PAPER.items()
    ]
    rows = [row for result in results.values() for row in beside_the_paper(result)]
    parts += [
        "## Beside the paper\n",
        *markdown(BESIDE, rows + paper),
        "",
        "The paper: Llama-2-chat 7B drafting for 70B on two A100, sampling, a drafted token costs 0.21 of a step.\n",
    ]
    if sweeps:
        parts.append("## Ablations\n")
    for stem, result in sweeps.items():
        plot_sweep(result["variants"], args.output / f"{stem}.svg")
        parts += [*ablations(stem, result), f"![what each choice is worth, {stem}]({stem}.svg)\n"]
    write_atomically(args.output / "report.md", "\n".join(parts))
    print(args.output / "report.md")


if __name__ == "__main__":
    main()
