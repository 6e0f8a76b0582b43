"""The sets of prompts: where their rows come from, and what the user of a chat would say for each."""

from __future__ import annotations

from collections.abc import Callable

from ..hub.data import load_rows, prompt_text

# Asked where no set is named: nothing needs to be fetched.
MIXED = [
    "Explain in simple words why the sky is blue.",
    "Write three tips for someone who starts running.",
    "A baker sells 12 loaves in the morning and twice as many in the afternoon, at $3 each. How much does she earn?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Rewrite this more politely: Send me the report now, I have been waiting for days.",
    "What are the main differences between a frog and a toad?",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List the planets of the solar system and say one thing about each.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain each step.",
    "Write an SQL query that counts the orders of each customer in the year 2024.",
    "Summarise in one sentence: The committee met on Monday, discussed the budget for two hours, could not agree on "
    "the costs of the new roof, and adjourned until the builders send another offer.",
    "Give me a recipe for pancakes with quantities for two people.",
]


def completion_request(row: dict) -> str:
    """HumanEval's code, as what a user asks of a chat model."""
    return f"Complete the following Python function. Answer with the whole function.\n\n```python\n{row['prompt']}```"


def first_turn(row: dict) -> str:
    """The first of the two questions of a row of MT-Bench."""
    return row["prompt"][0]


ARTICLE_WORDS = 500  # of an article that is summarised: about 700 tokens, so that small contexts hold it


def summary_request(row: dict) -> str:
    """The first `ARTICLE_WORDS` words of a news article, with what a user asks of it."""
    article = " ".join(row["article"].split()[:ARTICLE_WORDS])
    return f"Summarize the following article in a few sentences.\n\n{article}"


# Name: source and template.
SETS: dict[str, tuple[str, Callable[[dict], str]]] = {
    "alpaca": ("tatsu-lab/alpaca", prompt_text),
    "gsm8k": ("openai/gsm8k:main:test", prompt_text),
    "humaneval": ("openai/openai_humaneval:test", completion_request),
    "mt-bench": ("HuggingFaceH4/mt_bench_prompts", first_turn),
    "summaries": ("abisee/cnn_dailymail:3.0.0:test", summary_request),
}


def load_prompts(named: str, count: int, seed: int = 0) -> tuple[str, list[str]]:
    """The name of a set and `count` of its prompts, the same for the same seed; `mixed` keeps its order.

    Args:
        named: a name of `SETS`, `mixed`, or NAME=SOURCE with what `load_rows` takes as a source. Rows from a source of
            your own go through the template of NAME if there is one.

    Raises:
        ValueError: for an unknown name, or a source without rows.
    """
    name, _, source = named.partition("=")
    if named == "mixed":
        return name, MIXED[:count]
    if not source and name not in SETS:
        raise ValueError(
            f"there is no set {name!r}: choose one of mixed, {', '.join(SETS)}, or name a JSONL file or a dataset on "
            "the Hub with NAME=SOURCE"
        )
    known, template = SETS.get(name, (None, prompt_text))
    rows = load_rows(source or known).shuffle(seed=seed)
    if not len(rows):
        raise ValueError(f"the set {name!r} has no rows: give a source with prompts")
    return name, [template(row) for row in rows.take(min(count, len(rows)))]
