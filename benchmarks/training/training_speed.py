# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Seconds of an epoch of head training, with the draft's hidden states from the labels and with the draft running.

    python benchmarks/training/training_speed.py --labels runs/labels --draft recipes/smollm2-135m/draft \\
        --output benchmarks/training/results/training-speed.json

The labels are from `specdecpp label --states before` (or `after`, with `--reads after`). Two heads learn from the same
rows in the same order, an epoch each in turn, as `specdecpp train` sets them up; evaluation, saving and the first
epoch of each, a warm-up, are left out. Their losses are reported too: they are those of the same training.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import TrainerCallback

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.hub.loading import load_model
from hf_specdecpp.training.head_inputs import HeadInputs
from hf_specdecpp.training.label_folder import read_card, read_labels
from hf_specdecpp.training.trainer import AcceptanceTrainer, AcceptanceTrainingArguments


class EpochClock(TrainerCallback):
    """Takes the time from the first batch of an epoch to its last step."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.seconds = time.perf_counter() - self.start


def epoch(model: PeftModel, inputs: HeadInputs, rows: Dataset, batch_size: int) -> tuple[float, float]:
    """Seconds and mean loss of one epoch."""
    clock = EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = AcceptanceTrainingArguments(
            folder, num_train_epochs=1, learning_rate=1e-3, per_device_train_batch_size=batch_size, disable_tqdm=True,
            eval_strategy="no", save_strategy="no", logging_strategy="no", load_best_model_at_end=False,
        )  # fmt: skip
        trainer = AcceptanceTrainer(model, inputs, args=arguments, train_dataset=rows, callbacks=[clock])
        loss = trainer.train().training_loss
    return clock.seconds, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True, help="folder, with hidden states")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--reads", default="before", choices=("before", "after"))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3, help="timed ones, of each")
    parser.add_argument("--limit", type=int, default=10**9, help="only so many rows")
    parser.add_argument("--dtype", default="bfloat16", help="of the draft")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    card = read_card(args.labels)
    mode = next(iter(card.decodings))
    stored = read_labels(args.labels).shuffle(seed=0).take(args.limit).with_format("numpy")
    states = [f"{name}_{state}" for name in card.decodings for state in card.states]
    rows = {"stored": stored, "draft": stored.remove_columns(states)}
    config = {"num_layers": 1, "reads": args.reads, "features": ["probability", "entropy"]}
    models, inputs = {}, {}
    for name in rows:
        torch.manual_seed(0)
        models[name] = get_peft_model(load_model(args.draft, args.dtype), AcceptanceHeadConfig(**config))
        inputs[name] = HeadInputs(mode, card.rows, args.reads, config["features"], stored=name == "stored")

    seconds, losses = ({name: [] for name in rows} for _ in range(2))
    for number in range(args.epochs + 1):
        for name in rows:
            took, loss = epoch(models[name], inputs[name], rows[name], args.batch_size)
            losses[name].append(loss)
            if number:
                seconds[name].append(took)
            print(f"epoch {number}, {name}: {took:.2f} s, loss {loss:.4f}", flush=True)
    ratios = [slow / fast for slow, fast in zip(seconds["draft"], seconds["stored"], strict=True)]
    result = {
        "dtype": args.dtype,
        "reads": args.reads,
        "batch_size": args.batch_size,
        "rows": len(stored),
        "tokens": sum(map(len, stored["response_ids"])),
        "median_seconds": {name: median(times) for name, times in seconds.items()},
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "seconds": seconds,
        "losses": losses,
    }
    write_result(args.output, result, draft=models["draft"].config)
    print(f"stored states are {median(ratios):.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
