# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Text for a draft without any set of prompts: the target writes the prompts too, and answers them.

    python recipes/smollm2-135m/self_prompts.py --target TARGET --rounds 200 --output runs/self.jsonl

Given its chat template up to the user's turn a chat model goes on with what users say. An opening such as "Write a
Python function" turns it to other kinds. Prompts are sampled at temperature 1, top-k 100; those that do not end, and
those that are mostly not ASCII, go. Responses are greedy for every third round, else sampled at temperature 1, top-k
50; in every fourth round the target then writes the user's next turn, and answers that as well.

A line of the output has `round`, `set`, `decoding`, `prompt_ids` and `response_ids`. Lines are appended round by
round; a killed run goes on with the next.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.evidence.files import Lines
from hf_specdecpp.training.responses import generate_responses

# Half of the prompts begin with nothing.
OPENINGS = (
    "Write a Python function", "Write a function that", "Fix the following code", "Explain", "Explain step by step",
    "List", "Give me a list of", "Translate", "Rewrite", "Rewrite the following", "Summarize",
    "Summarize the following",
    "Calculate", "Solve", "A farmer has", "If a train", "How many", "How do I", "What is", "What are", "Why", "Who",
    "Compare", "Describe", "Create a", "Write a story", "Write a poem", "Write an email", "Write a short", "Design",
    "Classify", "Find", "Edit the following", "Convert", "Imagine", "Tell me", "Can you", "I need", "In the following",
    "Given", "Complete the following", "Write a SQL query", "Write a bash", "Implement", "Generate", "Suggest", "Plan",
    "Answer the following question", "Extract", "Name",
)  # fmt: skip
PROMPTS = Decoding(do_sample=True, temperature=1.0, top_k=100)
GREEDY, SAMPLED = Decoding(), Decoding(do_sample=True, temperature=1.0, top_k=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.target)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16).eval()
    settings = {name: getattr(args, name) for name in ("target", "batch_size", "max_new_tokens", "seed")}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(args.output, settings, f"{str(args.output)!r} holds text made")
    tokens, begin = 0, time.perf_counter()
    first = json.loads(lines.found[-1])["round"] + 1 if lines.found else 0
    for number in range(first, args.rounds):
        rows = one_round(model, tokenizer, args.seed * 100_000 + number, number, args)
        if rows:
            lines.append("\n".join(json.dumps({"round": number, **row}) for row in rows))
        tokens += sum(len(row["response_ids"]) for row in rows)
        rate = tokens / (time.perf_counter() - begin)
        print(f"{number + 1}/{args.rounds} rounds, {tokens} tokens, {rate:.0f} tokens/s", flush=True)


def one_round(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int, number: int, args: argparse.Namespace
) -> list[dict]:
    """A batch of the target's own prompts with its responses, and every fourth time a second turn of each."""
    rng = random.Random(seed)
    end = tokenizer.eos_token_id
    before, behind = turn(tokenizer)
    begun = [
        before + tokenizer(rng.choice(OPENINGS) if rng.random() < 0.5 else "")["input_ids"]
        for _ in range(args.batch_size)
    ]
    decoding = SAMPLED if number % 3 else GREEDY
    rows = []
    for name in ("self", "self_second_turn") if number % 4 == 3 else ("self",):
        written = generate_responses(model, begun, PROMPTS, args.max_new_tokens, [end], seed)
        prompts = [
            ids + said[:-1] + behind
            for ids, said in zip(begun, written, strict=True)
            if said[-1] == end and is_a_prompt(tokenizer.decode(said[:-1]), name == "self" and len(ids) > len(before))
        ]
        if not prompts:
            break
        prompts.sort(key=len)
        responses = generate_responses(model, prompts, decoding, args.max_new_tokens, [end], seed + 1)
        rows += [
            {
                "set": name, "decoding": "sampling" if decoding.do_sample else "greedy", "prompt_ids": prompt,
                "response_ids": response,
            }
            for prompt, response in zip(prompts, responses, strict=True)
        ]  # fmt: skip
        begun = [
            prompt + response + between(tokenizer)
            for prompt, response in zip(prompts, responses, strict=True)
            if response[-1] == end
        ]
        if not begun:
            break
    return rows


def turn(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the chat template puts before a user's words, and between them and the answer."""
    mark = "\u2603"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], add_generation_prompt=True, tokenize=False
    )
    before, behind = text.split(mark)
    return tokenizer(before)["input_ids"], tokenizer(behind)["input_ids"]


def between(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the chat template puts between an answer, which ends in the end-of-sequence token, and the user's words."""
    marks = "\u2603", "\u2604"
    messages = [
        {"role": "user", "content": "."},
        *({"role": r, "content": m} for r, m in zip(("assistant", "user"), marks, strict=True)),
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text.split(marks[0])[1].split(marks[1])[0])["input_ids"]
    return ids[1:] if ids[0] == tokenizer.eos_token_id else ids


def is_a_prompt(text: str, goes_on: bool) -> bool:
    """Whether what the target wrote in the user's place can be answered; behind an opening a few words are enough."""
    ascii_share = sum(c.isascii() for c in text) / max(len(text), 1)
    return len(text.split()) >= (1 if goes_on else 2) and ascii_share > 0.8


if __name__ == "__main__":
    main()
