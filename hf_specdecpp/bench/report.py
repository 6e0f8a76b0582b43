"""Makes tables in Markdown and figures from the results of `specdecpp bench`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from ..evidence.files import save_figure, write_atomically
from .summary import interval
from .verdict import conditions, judged

COLUMNS = (
    "method", "tokens/s (95 %)", "x plain (95 %)", "tokens / target pass", "verif", "discard", "equal to plain",
    "accepted, by source", "peak, MB", "SpecDec++ against it",
)  # fmt: skip
# Digitised from the Pareto figure of arXiv 2405.19715, Llama-2-chat 7B drafting for 70B.
PAPER = Path(__file__).with_name("paper_pareto.csv")
PAPER_SETS = {"alpaca": "Alpaca", "gsm8k": "GSM8K", "humaneval": "HumanEval"}

COLOURS = {
    "plain": "#8c8c8c", "compiled": "#4d4d4d", "assisted": "#1f77b4", "lookup": "#ff7f0e", "recommended": "#d62728",
    "text": "#bcbd22", "chain": "#17becf", "model": "#9edae5", "tree": "#aec7e8", "transformers-loop": "#c49c94",
    "specdec++": "#e377c2", "cumulative-confidence": "#9467bd", "svip": "#2ca02c", "adaedl": "#8c564b",
}  # fmt: skip
OURS = "#f4a6a6"  # single rules in our loop
ENOUGH = 10  # tokens drafted at a position, for its share of acceptance to say something


def colour(name: str) -> str:
    """Of a method, the same in all figures; the settings of one share theirs."""
    return COLOURS.get(name, COLOURS.get(name.partition("=")[0], OURS))


def write_report(results: dict[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Writes `report.md` and the figures of every set of every result.

    Args:
        results: of `run_bench`, by a name for their figures.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts, files = ["# What was measured\n"], []
    for stem, result in results.items():
        for name, found in result["sets"].items():
            mode = "sampling" if result["configuration"]["sample"] else "greedy"
            parts.append(section(name, mode, result))
            for kind, draw in FIGURES.items():
                path = folder / f"{stem}-{name}-{kind}.svg"
                save_figure(figure(draw, name, mode, found), path)
                parts.append(f"![{kind}]({path.name})\n")
                files.append(path)
    write_atomically(folder / "report.md", "\n".join(parts))
    return [folder / "report.md", *files]


def section(name: str, mode: str, result: dict[str, Any]) -> str:
    """The table of a set, under what it was measured on and above what it means."""
    found, models, costs = result["sets"][name], result["models"], result["costs"]
    head = result["configuration"]["head"]
    fit = {key: 1000 * value for key, value in costs["linear_fit"].items() if key.endswith("seconds")}
    missing = [f"- {sentence}" for sentence in obstacles(result["unavailable"])]
    lines = [
        f"## {name}, {mode}\n",
        *markdown(COLUMNS, cells(found, mode == "sampling")),
        "",
        "The last column is the median over prompts of the ratio of the two speeds on one prompt.\n",
        f"{models['target']['name']} with the draft {models['draft']['name']} and "
        f"{f'the head {head}' if head else 'no head'}; {conditions(name, result)}. `{result['command']}`, revision "
        f"{result['git_revision'] or 'unknown'}.\n",
        f"A drafted token takes {fit['draft_seconds']:.2f} ms, verifying n tokens {fit['base_seconds']:.2f} + "
        f"{fit['slope_seconds']:.2f} n ms (R^2 {costs['linear_fit']['r2']:.2f}, with {costs['context']} tokens in the "
        "cache).\n",
        f"{judged(found, result)}\n",
        *([*missing, ""] if missing else []),
    ]
    return "\n".join(lines)


def obstacles(unavailable: dict[str, str]) -> list[str]:
    """Which methods did not run, and why; a sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for method, reason in unavailable.items():
        by_reason.setdefault(reason, []).append(method)
    return [f"not available: {', '.join(methods)} ({reason})" for reason, methods in by_reason.items()]


def cells(found: dict[str, Any], sample: bool) -> list[list[str]]:
    """The rows of a set's table under `COLUMNS`."""
    return [
        [
            method["label"],
            spread(method["tokens_per_second"], method["tokens_per_second_interval"], 1),
            "1.00" if name == "plain" else spread(method["speedup"], method["speedup_interval"], 2),
            f"{method['tokens_per_target_pass']:.2f}",
            f"{method['verif']:.3f}",
            f"{method['discard']:.3f}",
            "sampled" if sample else f"{method['equal_to_plain']} of {found['prompts']}",
            ", ".join(f"{source} {count}" for source, count in method.get("accepted_by", {}).items()),
            "" if method["peak_mb"] is None else f"{method['peak_mb']:.0f}",
            "" if name == "recommended" else against(found["methods"].get("recommended"), method),
        ]
        for name, method in found["methods"].items()
    ]


def against(ours: dict[str, Any] | None, method: dict[str, Any]) -> str:
    """How `ours` compares with `method` prompt by prompt, which is more than two intervals say of a difference."""
    if ours is None:
        return ""
    pairs = zip(ours["by_prompt"]["speedup"], method["by_prompt"]["speedup"], strict=True)
    ratios = [mine / its for mine, its in pairs]
    ahead = sum(ratio > 1 for ratio in ratios)
    return f"{spread(median(ratios), interval(ratios), 2)}, ahead on {ahead} of {len(ratios)}"


def spread(value: float, interval: list[float], digits: int) -> str:
    low, high = interval
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def markdown(columns: Iterable[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a table whose first column is text."""
    columns = list(columns)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def figure(draw: Callable, name: str, mode: str, found: dict[str, Any]):
    """A figure by `draw`, which gets a second panel where the paper has points to compare with."""
    from matplotlib.figure import Figure  # without pyplot, whose state is the caller's

    panels = 2 if draw is draw_pareto and name in PAPER_SETS else 1
    made = Figure(figsize=(8 if panels == 1 else 12, 5), layout="constrained")
    axes = made.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    title = draw(axes, found, name)
    made.suptitle(f"{title}\n{name}, {mode}, {found['prompts']} prompts", fontsize="medium")
    return made


def best_stock(found: dict[str, Any]) -> str | None:
    """The fastest setting of transformers' assisted decoding."""
    stock = [name for name in found["methods"] if name.startswith("assisted")]
    return max(stock, key=lambda name: found["methods"][name]["speedup"], default=None)


def draw_speedup(panels, found: dict[str, Any], name: str) -> str:
    """Bars with intervals, plain decoding and hindsight as lines."""
    (axes,), methods = panels, found["methods"]
    for y, (key, method) in enumerate(methods.items()):
        value, (low, high) = method["speedup"], method["speedup_interval"]
        axes.barh(y, value, color=colour(key), height=0.7)
        axes.errorbar(value, y, xerr=[[value - low], [high - value]], color="black", capsize=3, linewidth=1)
        axes.annotate(
            f"{value:.2f}x", (high, y), (6, 0), textcoords="offset points", va="center", fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    hindsight = found["replay"]["oracle"]["speedup"]
    axes.axvline(1, color=COLOURS["plain"], linewidth=1, zorder=0)
    axes.axvline(
        hindsight,
        color="black",
        linestyle=":",
        zorder=0,
        label=f"perfect hindsight, chains of this draft, {hindsight:.2f}x",
    )
    axes.set_yticks(range(len(methods)), [method["label"] for method in methods.values()])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="tokens a second, times plain decoding (median over prompts, 95 % interval)")
    axes.get_figure().set_figheight(2.2 + 0.28 * len(methods))
    axes.get_figure().legend(loc="outside lower right", fontsize="small", frameon=False)
    return "How fast each method is"


def draw_pareto(panels, found: dict[str, Any], name: str) -> str:
    """Target passes against discarded tokens: what each rule trades, by replay; and the paper's points."""
    axes, replay = panels[0], found["replay"]
    fixed = replay["fixed"]
    curve(axes, fixed, colour("assisted"), "o-", "fixed length K")
    for point in fixed:
        axes.annotate(
            point["length"], (point["discard"], point["verif"]), (0, 6), textcoords="offset points", ha="center",
            fontsize="x-small", color=colour("assisted"),
        )  # fmt: skip
    names = {"specdec++": "SpecDec++'s threshold (head)", "cumulative-confidence": "cumulative confidence",
             "svip": "SVIP", "adaedl": "AdaEDL"}  # fmt: skip
    for rule, points in replay["thresholds"].items():
        curve(axes, points, colour(rule), ".-", names[rule])
    curve(axes, [replay["recommended"]], colour("recommended"), "D", "the recommended rule")
    hindsight = {"discard": 0.0, "verif": replay["accepted_only_verif"]}
    curve(axes, [hindsight], "black", "*", "hindsight: exactly the tokens that will be accepted")
    axes.set_ylabel("verif: target passes per generated token")
    if len(panels) > 1:
        axes.set_title("this pair", fontsize="medium")
        panels[1].set_title("for reference, the paper: Llama-2-chat 7B drafts for 70B", fontsize="medium")
        for method, style, shade, label in (
            ("SpecDec", "o-", colour("assisted"), "fixed length K = 4, 6, ... 14"),
            ("SpecDec++", ".", colour("specdec++"), "SpecDec++, heads and thresholds of the paper"),
        ):
            curve(panels[1], paper_points(PAPER_SETS[name], method), shade, style, label)
    for panel in panels:
        panel.set(xlabel="discard: drafted tokens thrown away, per generated token", xlim=(-0.05, None))
        panel.legend(fontsize="small", frameon=False)
    return f"What stopping rules trade, by replay of {replay['prompts']} of the prompts (lower left is better)"


def curve(axes, points: list[dict[str, float]], shade: str, style: str, label: str) -> None:
    points = sorted(points, key=lambda point: point["discard"])
    size = {"*": 14, "D": 9}.get(style, 5)
    axes.plot(
        [p["discard"] for p in points], [p["verif"] for p in points], style, color=shade, label=label,
        markersize=size, linewidth=1.2, zorder=3 if size > 5 else 2,
    )  # fmt: skip


def paper_points(data: str, method: str) -> list[dict[str, float]]:
    """The points of the paper's figure."""
    with PAPER.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [
            {"discard": float(row["discard_rate"]), "verif": float(row["verification_rate"])}
            for row in rows
            if (row["dataset"], row["method"]) == (data, method)
        ]


def shown(found: dict[str, Any], *names: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Those of the named methods that were measured, each once."""
    return [(name, found["methods"][name]) for name in dict.fromkeys(names) if name in found["methods"]]


def draw_acceptance(panels, found: dict[str, Any], name: str) -> str:
    """The share of drafted tokens that the target accepted, by their place in the draft."""
    (axes,), styles = panels, {"assisted": "s--"}
    for key, method in shown(found, "assisted", best_stock(found), "lookup", "text", "recommended"):
        pairs = zip(method["acceptance_by_position"], method["drafted_by_position"], strict=True)
        kept = [(k, share) for k, (share, drafted) in enumerate(pairs, 1) if drafted >= ENOUGH]
        if kept:
            axes.plot(*zip(*kept, strict=True), styles.get(key, "o-"), color=colour(key), label=method["label"])
            axes.set_ylim(-0.03, 1.03)
            axes.legend(fontsize="small", frameon=False)
    axes.set_xlim(0.8, None)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="position in the draft", ylabel="share of the tokens drafted there that end up in the output")
    return f"How often drafted tokens are accepted (positions with {ENOUGH} drafted tokens or more)"


def draw_length(panels, found: dict[str, Any], name: str) -> str:
    """Speed of each prompt against the length of its output."""
    (axes,) = panels
    methods = shown(found, "compiled", best_stock(found), "lookup", "text", "recommended")
    for number, (key, method) in enumerate(methods):
        lengths = [sum(repeats) / len(repeats) for repeats in method["by_prompt"]["new_tokens"]]
        ratios = method["by_prompt"]["speedup"]
        shift = (number - (len(methods) - 1) / 2) * 0.8  # of a token, so that equal lengths do not hide each other
        axes.scatter([n + shift for n in lengths], ratios, 30, color=colour(key), alpha=0.8, label=method["label"])
    axes.axhline(1, color=COLOURS["plain"], linewidth=1, label="plain generate")
    axes.set(xlabel="tokens generated", ylabel="tokens a second, times plain decoding")
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.legend(fontsize="small", frameon=False)
    return "Speed by the length of the output, a point a prompt"


FIGURES = {
    "speed": draw_speedup,
    "pareto": draw_pareto,
    "acceptance": draw_acceptance,
    "length": draw_length,
}
