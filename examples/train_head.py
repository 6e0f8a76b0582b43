"""Trains an acceptance head on one's own prompts, one a line: labels, training, and a generation with the new head.

    python examples/train_head.py examples/prompts.txt runs/own_head

A killed run goes on where it was. Hundreds of prompts make a good head; these few only show the way. The commands
`specdecpp label` and `specdecpp train` do the same.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp import AcceptanceHeadConfig, SpecDecPP, collect_stats, load_draft
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.hub.data import fingerprint, tokenized_prompts
from hf_specdecpp.hub.demo_pair import DRAFT, demo_target
from hf_specdecpp.training.label_folder import LabelsCard
from hf_specdecpp.training.labels import Rows
from hf_specdecpp.training.pipeline import label_prompts, train_head
from hf_specdecpp.training.trainer import AcceptanceTrainingArguments


def main(file, output, target=None, draft=DRAFT, max_new_tokens=48, epochs=6):
    target, output = target or demo_target(), Path(output)
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    draft = load_draft(draft, target=model, dtype=torch.bfloat16)

    prompts = tokenized_prompts(tokenizer, Dataset.from_dict({"prompt": Path(file).read_text().splitlines()}))
    greedy = Decoding()  # how the head will be used; Decoding(do_sample=True, temperature=0.8) for sampling
    card = LabelsCard.of(
        model, draft, greedy, {"greedy": greedy}, Rows(), states=["before"], max_new_tokens=max_new_tokens,
        batch_size=8, seed=0, prompts=len(prompts), prompts_sha256=fingerprint(prompts),
    )  # fmt: skip
    label_prompts(model, draft, prompts, output / "labels", card)

    config = AcceptanceHeadConfig(
        num_layers=1, reads="before", features=["probability", "entropy"], min_draft_length=1, rule="cost-aware",
        decoding=card.decodings["greedy"],
    )  # fmt: skip
    arguments = AcceptanceTrainingArguments(
        str(output / "checkpoints"), num_train_epochs=epochs, learning_rate=1e-3, per_device_train_batch_size=8
    )
    metrics = train_head(draft, output / "labels", output / "head", config, arguments, patience=3)
    print(
        f"error of the head (binary KL): {metrics['binary_kl']:.4f}, of a constant {metrics['binary_kl_constant']:.4f}"
    )

    draft = load_draft(draft.config.name_or_path, target=model, dtype=torch.bfloat16)
    draft.load_adapter(str(output / "head"))
    ids = torch.tensor([prompts[0]["prompt_ids"]])
    with collect_stats() as stats:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=draft, candidate_generator=SpecDecPP,
            max_new_tokens=max_new_tokens, do_sample=False,
        )  # fmt: skip
    print(stats)
    return metrics


if __name__ == "__main__":
    main(*sys.argv[1:3])
