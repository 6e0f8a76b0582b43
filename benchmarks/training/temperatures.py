# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""What a temperature for each position of a draft would add to a head (as DSpark scales its confidence head).

    specdecpp trace --target TARGET --draft DRAFT --head HEAD --prompts alpaca_dev.jsonl --limit 20 --output dev.jsonl
    python benchmarks/training/temperatures.py --fit dev.jsonl --judge test.jsonl --output temperatures.json

One temperature for all positions, and one for each, divide the head's logits; they are chosen by likelihood on the
first file and judged on the others, on tokens that are verified: all before them accepted.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as log_loss

from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.evidence.trace import read_traces

TEMPERATURES = torch.linspace(0.5, 3.0, 126)


def verdicts(path: Path) -> dict[int, tuple[Tensor, Tensor]]:
    """By position: the head's logits, float32 (n,), and whether the target accepted, float32 (n,)."""
    found = defaultdict(list)
    for trace in read_traces(path):
        for draft in trace.drafts:
            for k, token in enumerate(draft.tokens[: draft.accepted + 1]):
                if token.acceptance is not None:
                    found[token.position].append((token.acceptance, float(k < draft.accepted)))
    columns = {position: torch.tensor(pairs).T for position, pairs in sorted(found.items())}
    return {position: (said.clamp(1e-3, 1 - 1e-3).logit(), accepted) for position, (said, accepted) in columns.items()}


def best_temperature(logits: Tensor, accepted: Tensor) -> float:
    losses = [log_loss(logits / temperature, accepted).item() for temperature in TEMPERATURES]
    return TEMPERATURES[losses.index(min(losses))].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, required=True, help="chains, of `specdecpp trace` with a head")
    parser.add_argument("--judge", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    fitted = verdicts(args.fit)
    one = best_temperature(*(torch.cat(column) for column in zip(*fitted.values(), strict=True)))
    each = {position: best_temperature(*pair) for position, pair in fitted.items()}
    judged = {}
    for path in (args.fit, *args.judge):
        found = verdicts(path)
        tokens = sum(len(logits) for logits, _ in found.values())

        def mean_loss(temperature, found=found, tokens=tokens):
            losses = [
                log_loss(logits / temperature(position), accepted, reduction="sum")
                for position, (logits, accepted) in found.items()
            ]
            return sum(losses).item() / tokens

        judged[path.stem] = {
            "tokens": tokens,
            "head": mean_loss(lambda _: 1.0),
            "one temperature": mean_loss(lambda _: one),
            "a temperature for each position": mean_loss(lambda position: each.get(position, one)),
        }
    for name, row in judged.items():
        print(f"{name:24}", *(f"{kind} {value:.4f}  " for kind, value in row.items() if kind != "tokens"))
    write_result(args.output, {"one": one, "each": each, "nats_a_token": judged})


if __name__ == "__main__":
    main()
