# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Fills the tables of README.md, docs/ and benchmarks/ with the numbers of the results that are named beside them.

    python benchmarks/tables.py

A table stands between `<!-- table KIND FILE -->` and `<!-- end -->`, `FILE` being a result of one of the studies and
`KIND` a function below. To show other numbers, name another file there and run this. The README's first table is drawn
as well, into docs/images/speed.svg. The tests run it too: what it would change is an error.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from hf_specdecpp.bench.report import colour, markdown, spread
from hf_specdecpp.evidence.files import save_figure, write_atomically

ROOT = Path(__file__).parents[1]
SITE = "https://github.com/hf-specdecpp/hf_specdecpp/blob/main"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*/*.md"))]
FIGURE = ROOT / "docs" / "images" / "speed.svg"
TABLE = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
SETS = {
    "alpaca": "Alpaca", "gsm8k": "GSM8K", "humaneval": "HumanEval", "mt-bench": "MT-Bench", "alpaca_test": "Alpaca",
    "gsm8k_test": "GSM8K", "summaries": "summaries",
}  # fmt: skip
FORMS = {"eagle3": "EAGLE-3", "mixed": "embedding and state mixed", "plain-2": "two layers, tokens alone"}
DETAILS = ("text", "same-draft")  # methods that a first screen leaves out


def first(result: dict[str, Any]) -> list[str]:
    """The rows of `peers` that a first screen shows, and the figure."""
    return peers(result, [name for name in compared(result) if name not in DETAILS])


def peers(result: dict[str, Any], names: list[str] | None = None) -> list[str]:
    """Geometric means over prompts of the ratio to plain decoding; the best of a column is bold."""
    means, names = result["geometric_means"], names or compared(result)
    columns = [*result["sets"], "all"]
    rows = [["plain `generate`", *["1.00"] * len(columns)]]
    rows += [[label(result, name), *(f"{means[f'{name} / plain'][c]['mean']:.2f}" for c in columns)] for name in names]
    for column in range(1, len(columns) + 1):
        best = max(float(row[column]) for row in rows)
        for row in rows:
            row[column] = f"**{row[column]}**" if float(row[column]) == best else row[column]
    what = "x plain, geometric mean"
    about = f"{setting(result)}, one run of each method in turn"
    return [*markdown((what, *(SETS.get(c, c) for c in columns)), rows), "", about]


def compared(result: dict[str, Any]) -> list[str]:
    return [name for name in result["configuration"]["methods"] if f"{name} / plain" in result["geometric_means"]]


def peers_intervals(result: dict[str, Any]) -> list[str]:
    """All comparisons of `peers` over all sets, with 95 % intervals, and how many outputs equal plain decoding's."""
    rows = []
    for pair, means in result["geometric_means"].items():
        over, _, under = pair.partition(" / ")
        if under == "plain" or over.endswith("recommended") or over == "same-draft":
            rows.append([label(result, over), label(result, under), ratio(means["all"])])
    equal = [
        f"{sum(found['methods'][name]['equal_to_plain'] for found in result['sets'].values())} ({label(result, name)})"
        for name in result["configuration"]["methods"]
        if name != "plain"
    ]
    prompts = sum(found["prompts"] for found in result["sets"].values())
    about = f"Outputs that equal plain decoding's, of {prompts}: {', '.join(equal)}; {setting(result)}"
    return [*markdown(("method", "over", "ratio (95 % interval)"), rows), "", about]


def bench(result: dict[str, Any]) -> list[str]:
    """Medians over prompts of the ratio to plain decoding, with intervals, and tokens a target pass."""
    sets = result["sets"]
    rows = [
        [
            label(result, name),
            *(
                f"{spread(found['speedup'], found['speedup_interval'], 2)}; {found['tokens_per_target_pass']:.2f}"
                for found in (of_set["methods"][name] for of_set in sets.values())
            ),
        ]
        for name in next(iter(sets.values()))["methods"]
        if name != "plain"
    ]
    columns = ("x plain, median (95 %); tokens a target pass", *(SETS.get(name, name) for name in sets))
    return [*markdown(columns, rows), "", setting(result)]


def batches(result: dict[str, Any]) -> list[str]:
    """Speed of a batch over plain decoding of the same batch, by its size."""
    found: dict[str, dict[int, dict]] = {}
    for row in result["rows"]:
        name = SETS.get(row["set"], row["set"])
        several = len({row.get("method") for row in result["rows"]}) > 1
        found.setdefault(f"{name}, {row['method']}" if several else name, {})[row["size"]] = row
    sizes = list(next(iter(found.values())))
    rows = [
        [name, *(spread(rows[n]["speedup"], rows[n]["speedup_interval"], 2) for n in sizes)]
        for name, rows in found.items()
    ]
    columns = ("x plain of the same batch, median (range)", *(f"{n} row{'s' * (n > 1)}" for n in sizes))
    return [*markdown(columns, rows), "", setting(result)]


def contexts(result: dict[str, Any]) -> list[str]:
    """Speed by the length of the prompt."""
    rows = [
        [
            f"{found['prompt_tokens']:,}",
            f"{found['speedup']:.2f}",
            f"{found['specdec++']['tokens_per_target_pass']:.2f}",
        ]
        for found in result["lengths"]
    ]
    return [*markdown(("tokens before", "x plain", "tokens a target pass"), rows), "", setting(result)]


def rules(result: dict[str, Any]) -> list[str]:
    """Every rule on the sets that nothing was chosen on, by replay."""
    sets = [name for name in result["tables"] if name != result["chosen_on"]]
    rows = [
        [rule, *(f"{result['tables'][name][rule]['speedup']:.3f}" for name in sets)]
        for rule in result["tables"][sets[0]]
    ]
    about = f"By replay with measured costs; settings chosen on {result['chosen_on']}; {setting(result)}"
    return [*markdown(("x plain", *(SETS.get(name, name) for name in sets)), rows), "", about]


def clock(result: dict[str, Any]) -> list[str]:
    """What a replay of chains promises, and what the clock gives."""
    rows = [
        [
            SETS.get(name, name),
            f"{found['replay']:.2f}",
            spread(found["clock"], found["clock_interval"], 2),
            spread(found["clock_over_replay"], found["clock_over_replay_interval"], 3),
        ]
        for name, found in result["sets"].items()
    ]
    return [*markdown(("set", "replay", "clock", "clock over replay"), rows), "", setting(result)]


def trees(result: dict[str, Any]) -> list[str]:
    """Chains and trees of the cost-aware rule, and the best of the others, by replay."""
    sets = result["sets"]
    names = [name for name in next(iter(sets.values()))["rules"] if name.startswith(("oracle", "cost-aware"))]
    rows = [[name, *(f"{found['rules'][name]['speedup']:.2f}" for found in sets.values())] for name in names]
    for kind, family in (("fixed ", "the best fixed length"), ("eagle-2", "the best of EAGLE-2's trees")):
        best = [
            max(rule["speedup"] for name, rule in found["rules"].items() if name.startswith(kind))
            for found in sets.values()
        ]
        rows.append([family, *(f"{speedup:.2f}" for speedup in best)])
    columns = ("x plain", *(name.removesuffix("-greedy") for name in sets))
    counts = ", ".join(str(found["prompts"]) for found in sets.values())
    return [*markdown(columns, rows), "", f"By replay of {counts} prompts; {setting(result)}"]


def lossless(rows: list[dict[str, Any]]) -> list[str]:
    """How many outputs equal plain decoding's."""
    prompts, equal = Counter(row["set"] for row in rows), Counter(row["set"] for row in rows if row["equal"])
    first = rows[0]
    lines = [[SETS.get(name, name), f"{equal[name]} of {prompts[name]}"] for name in prompts]
    columns = ["set", "outputs equal to plain decoding's"]
    if len(first.get("seconds", [])) > 2:  # ours between plain decoding in the mode and outside it
        columns += ["x plain in the same mode", "x plain outside it"]
        for line, name in zip(lines, prompts, strict=True):
            seconds = [row["seconds"] for row in rows if row["set"] == name]
            line += [f"{median(own[plain] / own[1] for own in seconds):.2f}" for plain in (0, 2)]
    about = f"{'Sampling under one seed' if first.get('sample') else 'Greedy'}, {first.get('dtype', 'float32')}"
    about += ", both in passes of one width" if first.get("reproducible") else ""
    return [*markdown(columns, lines), "", about]


def heads(result: dict[str, Any]) -> list[str]:
    """How well a head predicts acceptance, beside what predicts it without one; less is better."""
    judged = {name[6:]: stage["result"] for name, stage in result["stages"].items() if name.startswith("judge ")}
    predictors = list(next(iter(judged.values())))
    rows = [
        [name.replace("_test", " test"), *(f"{found[predictor]['binary_kl']:.3f}" for predictor in predictors)]
        for name, found in judged.items()
    ]
    return [*markdown(("binary KL, nats", *predictors), rows), "", f"Held-out sets; {setting(result)}"]


def drafts(result: dict[str, Any]) -> list[str]:
    """How often drafts agree with the target, by position."""
    rows = [
        [
            SETS.get(name, name),
            draft,
            " ".join(f"{share:.3f}" for share in found["match"]),
            f"{found['first_four']:.3f}",
            f"{found['overlap'][0]:.3f}",
            f"{found['tokens']:,}",
        ]
        for name, of_set in result["sets"].items()
        for draft, found in of_set.items()
    ]
    columns = ("set", "draft", "match, positions 1 to 5", "first four", "sum min(p, q)", "tokens")
    return [*markdown(columns, rows), "", setting(result)]


def forms(result: dict[str, Any]) -> list[str]:
    """How drafts of several forms agree with the target after as many steps."""
    rows = [
        [
            FORMS.get(name, name),
            f"{found['weights'] / 1e6:.1f}",
            *(f"{of_set['match'][0]:.3f}; {of_set['first_four']:.3f}" for of_set in found["sets"].values()),
        ]
        for name, found in result["forms"].items()
    ]
    sets = next(iter(result["forms"].values()))["sets"]
    columns = ("first token; first four", "million weights", *(SETS.get(name, name) for name in sets))
    return [*markdown(columns, rows), "", f"After {result['max_steps']} steps; {setting(result)}"]


def coverage(result: dict[str, Any]) -> list[str]:
    """How often the target's likeliest token is one that a vocabulary of a size has."""
    rows = [
        [f"{int(size):,}", *(f"{share:.3f}" for share in shares.values())]
        for size, shares in result["covered"].items()
    ]
    sets = next(iter(result["covered"].values()))
    columns = ("tokens of the vocabulary", *(SETS.get(name, name) for name in sets))
    return [*markdown(columns, rows), "", setting(result)]


def label(result: dict[str, Any], method: str) -> str:
    name = next(iter(result["sets"].values()))["methods"][method]["label"]
    return f"**{name}**" if method.endswith("recommended") else name


def ratio(mean: dict[str, Any]) -> str:
    return spread(mean["mean"], mean["interval"], 2)


def setting(result: dict[str, Any]) -> str:
    """What a result was measured on."""
    configuration, models = result.get("configuration", {}), result.get("models", {})
    tokens = configuration.get("max_new_tokens") or result.get("max_new_tokens")
    longest = result.get("max_length")
    prompts = configuration.get("count") or (result.get("prompts") if isinstance(result.get("prompts"), int) else None)
    versions, threads = result.get("versions", {}), result.get("threads")
    device = result.get("device", "")
    device = device if "NVIDIA" in device else f"{threads} CPU thread{'s' * (threads != 1)}"
    parts = [
        models.get("target", {}).get("name", "").rpartition("/")[2],
        configuration.get("dtype") or result.get("dtype"),
        device,
        prompts and f"{prompts} prompts a set",
        tokens and f"{tokens} new tokens",
        longest and f"at most {longest} with the prompt",
        "sampling" if configuration.get("sample") else None,
        f"torch {versions.get('torch', '').partition('+')[0]}, transformers {versions.get('transformers')}",
    ]
    return ", ".join(str(part) for part in parts if part)


MAKERS = [
    first, peers, peers_intervals, bench, batches, contexts, rules, clock, trees, lossless, drafts, forms, coverage,
    heads,
]  # fmt: skip
KINDS = {maker.__name__: maker for maker in MAKERS}


def read(name: str) -> Any:
    """A result, JSON or JSONL."""
    text = (ROOT / "benchmarks" / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else json.loads(text)


def updated(page: Path) -> str:
    """The text of a page with its tables filled."""

    def fill(marker: re.Match) -> str:
        begin, kind, name, end = marker.groups()
        *table, about = KINDS[kind](read(name))
        path = ROOT / "benchmarks" / name
        link = f"{SITE}/benchmarks/{name}" if page.parent.name == "docs" else os.path.relpath(path, page.parent)
        return "\n".join([begin, *table, f"{about} ([numbers]({link})).", "", end])

    return TABLE.sub(fill, page.read_text())


def draw(result: dict[str, Any], path: Path) -> None:
    """The table of `first` as bars."""
    from matplotlib.figure import Figure

    means, sets = result["geometric_means"], [*result["sets"], "all"]
    names = [name for name in compared(result) if name not in DETAILS]
    made = Figure(figsize=(9, 4), layout="constrained")
    axes = made.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    width = 0.84 / len(names)
    for number, name in enumerate(names):
        found = [means[f"{name} / plain"][each] for each in sets]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(sets))]
        heights = [each["mean"] for each in found]
        axes.bar(
            places,
            heights,
            width * 0.92,
            color=COLOURS.get(name) or colour(name),
            label=label(result, name).strip("*"),
        )
        for place, height in zip(places, heights, strict=True):
            axes.annotate(
                f"{height:.2f}",
                (place, height),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=6,
                rotation=90,
            )
    axes.axhline(1, color="#4d4d4d", linewidth=1, label="plain generate")
    axes.set_xticks(range(len(sets)), [SETS.get(name, name) for name in sets])
    axes.set(ylabel="tokens a second, times plain")
    made.legend(loc="outside upper center", fontsize="x-small", frameon=False, ncols=4)
    made.patch.set_facecolor("white")
    save_figure(made, path)


COLOURS = {
    "flashspec": "#2ca02c", "fixed=0": "#d0d0d0", "compiled:fixed=0": "#969696", "compiled:recommended": "#7b0d1e",
}  # fmt: skip


def main() -> None:
    for page in PAGES:
        text = updated(page)
        if text != page.read_text():
            write_atomically(page, text)
            print(page.relative_to(ROOT))
    main_result = TABLE.search((ROOT / "README.md").read_text())
    if main_result:
        draw(read(main_result[3]), FIGURE)


if __name__ == "__main__":
    main()
