# /// script
# dependencies = ["hf_specdecpp"]
# ///
"""The paper's table and its figure (arXiv 2405.19715, table 1 and figure 3) for this pair, from `compare_rules.py`.

    python recipes/smollm2-135m/paper_table.py rules-sampling.json rules-greedy.json --output benchmarks/paper

The first set of each result is the one that lengths and thresholds were chosen on; the others are reported.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hf_specdecpp.bench.report import draw_pareto, figure, markdown
from hf_specdecpp.files import write_atomically

# Speed-ups and best points as the paper reports them, Llama-2-chat 7B drafting for 70B on two A100.
PAPER = {
    "alpaca": ("Alpaca", 1.90, 2.04, "K=4: .285 / .393", ".239 / .40"),
    "gsm8k": ("GSM8K", 2.07, 2.26, "K=6: .210 / .453", ".193 / .33"),
    "humaneval": ("HumanEval", 2.00, 2.23, "K=4: .266 / .320", ".206 / .32"),
}
COLUMNS = (
    "set", "best fixed K", "verif / discard", "SpecDec++", "verif / discard", "gain", "cost-aware", "gain",
    "hindsight",
)  # fmt: skip


def rows(result: dict[str, Any]) -> list[list[str]]:
    """A row for each set of a result that nothing was chosen on."""
    length = result["chosen"]["fixed length"]["settings"]["length"]
    threshold = result["chosen"]["SpecDec++ (head)"]["threshold"]
    found = []
    for name, table in result["tables"].items():
        if name == result["chosen_on"]:
            continue
        fixed, ours, aware = (table[r] for r in ("fixed length", "SpecDec++ (head)", "cost-aware with the head"))
        found.append([
            name, f"K={length}: {speed(fixed)}", rates(fixed), f"h={threshold}: {speed(ours)}", rates(ours),
            f"{ours['speedup'] / fixed['speedup'] - 1:+.1%}", speed(aware),
            f"{aware['speedup'] / fixed['speedup'] - 1:+.1%}", f"{table['oracle']['speedup']:.2f}x",
        ])  # fmt: skip
    return found


def speed(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['speedup']:.3f}x ({low:.3f} to {high:.3f})"


def rates(row: dict[str, Any]) -> str:
    return f"{row['verif']:.3f} / {row['discard']:.3f}"


def section(result: dict[str, Any]) -> list[str]:
    mode = "sampling" if result["decoding"]["do_sample"] else "greedy"
    costs = result["costs_seconds"]
    return [
        f"## {mode}\n",
        *markdown(COLUMNS, rows(result)),
        "",
        f"Head {result['head']}; {result['prompts']} prompts a set, at most {result['max_length']} tokens of prompt "
        f"and output, by replay of traces in {result['dtype']} with measured costs: a drafted token "
        f"{1000 * costs['draft_seconds']:.1f} ms, a step of the target {1000 * costs['verify_seconds'][0]:.1f} ms, "
        f"t_draft / t_target {result['draft_to_target']:.2f}. K and h chosen on {result['chosen_on']}; the cost-aware "
        "rule is not tuned. Speeds are times plain decoding, with 95 % bootstrap intervals over prompts.\n",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON files of compare_rules.py")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args()

    args.output.mkdir(parents=True, exist_ok=True)
    parts = ["# The paper's experiment, at our scale\n"]
    for path in args.results:
        result = json.loads(path.read_text())
        parts += section(result)
        for name, replay in result["replays"].items():
            if name == result["chosen_on"]:
                continue
            image = f"{path.stem}-{name}.png"
            found = {"replay": replay, "prompts": result["prompts"]}
            mode = "sampling" if result["decoding"]["do_sample"] else "greedy"
            figure(draw_pareto, name.partition("_")[0], mode, found).savefig(args.output / image, dpi=150)
            parts.append(f"![verif against discard, {name}, {mode}]({image})\n")
    parts += [
        "## The paper\n",
        *markdown(
            ("set", "best fixed K", "verif / discard", "SpecDec++", "verif / discard", "gain"),
            [[name, f"{k:.2f}x", a, f"{s:.2f}x", b, f"{s / k - 1:+.1%}"] for name, k, s, a, b in PAPER.values()],
        ),
        "",
        "Llama-2-chat 7B drafting for 70B on two A100, sampling, t_draft / t_target about 0.21.\n",
    ]
    write_atomically(args.output / "report.md", "\n".join(parts))
    print(args.output / "report.md")


if __name__ == "__main__":
    main()
