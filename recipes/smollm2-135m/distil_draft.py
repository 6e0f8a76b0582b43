# /// script
# dependencies = ["hf_specdecpp[demo] @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Step 2 of the draft: distil two of the target's layers, with a compact tied vocabulary, from the cached teacher.

    python recipes/smollm2-135m/distil_draft.py --target TARGET --teacher runs/teacher --output runs/draft

Kill it at any time; the same command goes on from the last checkpoint. The loss is the cross-entropy to the teacher's
distribution over its most likely tokens, at every position of the user's text and of the response. The README beside
this file has the minutes it took and what came out.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import torch
from cache_teacher import batches, held_out, pad
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hf_specdecpp.drafting.compact_llama import CompactLlamaConfig, CompactLlamaForCausalLM


def read_teacher(folders: list[Path]) -> list[dict]:
    """The sequences of all shards, each with its teacher labels: `position`, `tokens`, `log_probabilities`."""
    sequences = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.safetensors"))):
        with safe_open(path, "pt") as shard:
            labels = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118 (not a dict)
            batch = json.loads(shard.metadata()["batch"])
        counts = labels.pop("sequence").bincount(minlength=len(batch)).tolist()
        parts = {name: tensor.split(counts) for name, tensor in labels.items()}
        sequences += [s | {name: parts[name][b] for name in parts} for b, s in enumerate(batch)]
    return sequences


def choose_vocabulary(sequences: list[dict], size: int, vocab_size: int) -> Tensor:
    """The tokens worth a row: what the teacher expects in general prose first, then its mathematics, then by rank.

    GSM8K's few words would drown those of Dolly, so each set's expected counts are normalised; the order of the BPE
    merges, which follows the frequency in the tokenizer's own corpus, decides among tokens seldom seen.
    """
    counts = torch.zeros(vocab_size)
    totals = Counter()
    for s in sequences:
        totals[s["set"]] += len(s["position"])
    for s in sequences:
        weight = (3.0 if s["set"] == "dolly_train" else 1.0) / totals[s["set"]]
        probability = s["log_probabilities"].float().exp() * weight
        counts.index_add_(0, s["tokens"].flatten().long(), probability.flatten())
    counts /= counts.sum()
    prior = 1 / torch.arange(10, vocab_size + 10)  # Zipf's law over the rank of the merge
    return (counts + 0.1 * prior / prior.sum()).topk(size).indices.sort().values


def initial_draft(target, layers: list[int], token_ids: Tensor) -> CompactLlamaForCausalLM:
    """The target's `layers`, final norm and the embedding rows of `token_ids`."""
    base = target.config.to_dict() | {"num_hidden_layers": len(layers), "compact_vocab_size": len(token_ids)}
    base = {k: v for k, v in base.items() if k not in ("model_type", "architectures", "dtype", "_name_or_path")}
    draft = CompactLlamaForCausalLM(CompactLlamaConfig(**base)).float()
    draft.set_vocabulary(token_ids, target.get_input_embeddings().weight)
    for mine, theirs in enumerate(layers):
        draft.model.layers[mine].load_state_dict(target.model.layers[theirs].state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    draft.generation_config = target.generation_config
    return draft


def collate(batch: list[dict], row_of: Tensor) -> dict[str, Tensor]:
    """One training batch; `rows` holds the draft's row of each of the teacher's tokens, -1 where it has none."""
    sequence = torch.cat([torch.full((len(s["position"]),), b) for b, s in enumerate(batch)])
    position = torch.cat([s["position"] for s in batch]).long()
    starts = torch.cat([torch.full((len(s["position"]),), s["response"] - 1) for s in batch])
    return {
        "input_ids": pad(batch),
        "sequence": sequence,
        "position": position,
        "in_response": position >= starts,
        "rows": row_of[torch.cat([s["tokens"] for s in batch]).long()],
        "probabilities": torch.cat([s["log_probabilities"] for s in batch]).float().exp(),
    }


class DistillationTrainer(Trainer):
    """Cross-entropy to the teacher's top tokens; evaluation reports greedy match and overlap on responses."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        draft = self.accelerator.unwrap_model(model)
        hidden = draft.model(inputs["input_ids"]).last_hidden_state[inputs["sequence"], inputs["position"]]
        log_q = F.log_softmax(draft.lm_head.compact_logits(hidden).float(), dim=-1)
        rows, p = inputs["rows"], inputs["probabilities"] * (inputs["rows"] >= 0)
        at_teacher = log_q.gather(-1, rows.clamp(min=0))
        loss = -(p * at_teacher).sum(-1).mean()
        if not return_outputs:
            return loss
        match = (log_q.argmax(-1) == rows[:, 0])[inputs["in_response"]]
        overlap = torch.minimum(p, at_teacher.exp()).sum(-1)[inputs["in_response"]]
        return loss, {"logits": torch.stack([match.float(), overlap], -1)}

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss, outputs["logits"], outputs["logits"]  # labels only have to be there for compute_metrics to run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--teacher", type=Path, nargs="+", required=True, help="folders of cache_teacher.py")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1], help="of the target, to begin with")
    parser.add_argument("--init", help="begin with this draft instead")
    parser.add_argument("--compact-vocab-size", type=int, default=12288)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    args = parser.parse_args()

    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32)
    sequences = read_teacher(args.teacher)
    train = [s for s in sequences if not held_out(s)]
    if args.init:
        draft = AutoModelForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    else:
        draft = initial_draft(
            target, args.layers, choose_vocabulary(train, args.compact_vocab_size, target.config.vocab_size)
        )
    token_ids = draft.lm_head.token_ids
    row_of = torch.full((target.config.vocab_size,), -1)
    row_of[token_ids] = torch.arange(len(token_ids))
    del target

    trainer = DistillationTrainer(
        model=draft,
        args=TrainingArguments(
            str(args.output / "checkpoints"), per_device_train_batch_size=1, per_device_eval_batch_size=1,
            num_train_epochs=args.epochs, max_steps=args.max_steps, learning_rate=args.learning_rate,
            lr_scheduler_type="cosine", warmup_steps=0.03, weight_decay=0.05, bf16=True, use_cpu=True, seed=0,
            logging_steps=20, eval_strategy="steps", eval_steps=400, save_steps=100, save_total_limit=1,
            remove_unused_columns=False, report_to="none", disable_tqdm=True,
        ),
        train_dataset=batches(train, args.batch_tokens),
        eval_dataset=batches([s for s in sequences if held_out(s)], args.batch_tokens),
        data_collator=lambda items: collate(items[0], row_of),
        compute_metrics=lambda p: dict(zip(("match", "overlap"), p.predictions.mean(0).tolist(), strict=True)),
    )  # fmt: skip
    checkpoints = args.output / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints) if checkpoints.exists() else None)
    metrics = trainer.evaluate()
    draft.to(torch.bfloat16).save_pretrained(args.output)
    AutoTokenizer.from_pretrained(args.target).save_pretrained(args.output)
    (args.output / "metrics.json").write_text(json.dumps(metrics, indent=1))
    print(metrics)


if __name__ == "__main__":
    main()
