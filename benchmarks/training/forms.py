# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Drafts of several forms at equal training: the same texts in the same order, as many steps, one optimizer.

    python benchmarks/training/forms.py --target TARGET --responses responses.jsonl --teacher runs/teacher \\
        --evaluate alpaca-dev=alpaca.jsonl --output benchmarks/training/results/DATE-forms.json

- `eagle3`: EAGLE-3's layer, whose attention reads an embedding and a state side by side; all begin with the target's
  last layer. `eagle3-2`: with a second layer. `eagle3-8k`, `eagle3-16k`: of other vocabularies than 12k.
- `mixed`: embedding and state are mixed to one width by a matrix, and an ordinary layer reads that.
- `plain-2`: two ordinary layers that read tokens alone, begun as the target's first two.

Texts and options are those of `recipes/train_draft.py`. Every form is judged on the responses of each `--evaluate`,
see `DraftQuality`; forms that are done are kept in the output, and a killed run goes on. `covered` is how often the
target's likeliest token is one that a vocabulary of so many tokens has.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from hf_specdecpp.drafting.informed.config import layers_read
from hf_specdecpp.drafting.informed.eagle3 import Eagle3ForCausalLM, StepModelOutput, decoder_layer
from hf_specdecpp.evidence.conditions import write_result
from hf_specdecpp.hub.loading import load_model, load_tokenizer
from hf_specdecpp.training.informed_draft import (
    DraftTraining,
    Teacher,
    choose_vocabulary,
    in_batches,
    initial_draft,
    judge_draft,
    train_draft,
    training_texts,
)


class MixedLayer(nn.Module):
    """An ordinary layer, begun as the target's last, on a mixture of embedding and state."""

    def __init__(self, draft: Eagle3ForCausalLM, target: PreTrainedModel):
        super().__init__()
        width, eps = draft.config.hidden_size, draft.config.rms_norm_eps
        self.embedding_norm, self.state_norm = LlamaRMSNorm(width, eps=eps), LlamaRMSNorm(width, eps=eps)
        self.mix = nn.Linear(2 * width, width, bias=False)
        self.layer = decoder_layer(draft.config, 0)
        self.layer.load_state_dict(target.get_decoder().layers[-1].state_dict())
        with torch.no_grad():
            half = torch.eye(width) / 2
            self.mix.weight.normal_(0, 0.01).add_(torch.cat((half, half), dim=-1))

    def forward(self, embeddings: Tensor, states: Tensor, **given) -> Tensor:
        both = torch.cat((self.embedding_norm(embeddings), self.state_norm(states)), dim=-1)
        return self.layer(self.mix(both), **given)


class TokensAlone(nn.Module):
    """Takes what a draft that reads its target takes, and reads the tokens; so all unrolled steps say the same."""

    def __init__(self, draft: Eagle3ForCausalLM, target: PreTrainedModel, layers: int):
        super().__init__()
        shape = target.config.get_text_config().to_dict() | {"num_hidden_layers": layers}
        self.model = LlamaModel(LlamaConfig(**shape))
        self.model.embed_tokens = None
        for own, theirs in zip(self.model.layers, target.get_decoder().layers, strict=False):
            own.load_state_dict(theirs.state_dict())
        self.model.norm.load_state_dict(target.get_decoder().norm.state_dict())
        self.embedded = draft.model.embedded

    def forward(self, input_ids: Tensor, position_ids: Tensor, **unread) -> StepModelOutput:
        hidden = self.model(inputs_embeds=self.embedded(input_ids), position_ids=position_ids).last_hidden_state
        return StepModelOutput(last_hidden_state=hidden, states=hidden)


def eagle3(target: PreTrainedModel, token_ids: Tensor, **config) -> Eagle3ForCausalLM:
    draft = initial_draft(target, token_ids, **config)
    for own, theirs in zip(draft.model.layers[1:], target.get_decoder().layers[-1:], strict=False):
        own.load_state_dict(theirs.state_dict())
    draft.borrow(target)
    return draft


def mixed(target: PreTrainedModel, token_ids: Tensor) -> Eagle3ForCausalLM:
    draft = eagle3(target, token_ids)
    draft.model.layers[0] = MixedLayer(draft, target)
    return draft


def plain(target: PreTrainedModel, token_ids: Tensor) -> Eagle3ForCausalLM:
    draft = eagle3(target, token_ids)
    draft.model = TokensAlone(draft, target, layers=2)
    return draft


# The form, how many tokens it can say, and how many steps are unrolled, if not as many as asked for.
FORMS: dict[str, tuple[Callable[..., Eagle3ForCausalLM], int, int | None]] = {
    "eagle3": (eagle3, 12288, None),
    "mixed": (mixed, 12288, None),
    "plain-2": (plain, 12288, 1),
    "eagle3-2": (lambda target, ids: eagle3(target, ids, num_hidden_layers=2), 12288, None),
    "eagle3-8k": (eagle3, 8192, None),
    "eagle3-16k": (eagle3, 16384, None),
}


def coverage(teacher: Teacher, token_ids: Tensor) -> float:
    said = torch.cat([teacher.lesson(number).tokens[:, 0] for number in range(len(teacher.batches))])
    return torch.isin(said, token_ids).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--responses", type=Path, action="append", required=True)
    parser.add_argument("--teacher", type=Path, required=True, help="folder where what the target says is kept")
    parser.add_argument("--evaluate", action="append", required=True, metavar="NAME=FILE")
    parser.add_argument("--form", action="append", choices=FORMS, dest="forms", help="left out, all")
    parser.add_argument("--max-steps", type=int, default=240)
    parser.add_argument("--batch-tokens", type=int, default=DraftTraining().batch_tokens)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    tokenizer, target = load_tokenizer(args.target), load_model(args.target, args.dtype)
    vocab_size = target.config.get_text_config().vocab_size
    texts = training_texts(args.responses, args.evaluate, tokenizer)
    del texts["held_out"]
    layers = layers_read(initial_draft(target, torch.arange(8)).config, target.config)
    training = DraftTraining(batch_tokens=args.batch_tokens, save_every=args.max_steps)
    accelerator = Accelerator(mixed_precision="bf16" if args.dtype == "bfloat16" else "no", cpu=True)
    teachers = {
        name: Teacher(target, in_batches(found, args.batch_tokens), layers, training.top, args.teacher / name)
        for name, found in texts.items()
    }
    sizes = sorted({min(size, vocab_size) for _, size, _ in FORMS.values()})
    vocabularies = {size: choose_vocabulary(texts["train"], size, vocab_size) for size in sizes}
    taught = teachers.pop("train")
    covered = {
        size: {name: coverage(each, token_ids) for name, each in teachers.items()}
        for size, token_ids in vocabularies.items()
    }
    print(covered, flush=True)
    found = json.loads(args.output.read_text())["forms"] if args.output.exists() else {}
    for name in args.forms or FORMS:
        if name in found:
            continue
        build, size, steps = FORMS[name]
        torch.manual_seed(0)
        draft = build(target, vocabularies[min(size, vocab_size)]).float()
        own = replace(training, steps=steps or training.steps)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            losses = train_draft(draft, taught, own, Path(folder), accelerator, args.max_steps)
        seconds = time.monotonic() - begin
        found[name] = {
            "weights": sum(each.numel() for each in draft.parameters() if each.requires_grad),
            "draft_vocab_size": len(draft.lm_head.weight),
            "training": asdict(own),
            "seconds": seconds,
            "first_losses": losses[: max(args.max_steps // 10, 1)],
            "sets": {each: judge_draft(draft, teacher) for each, teacher in teachers.items()},
        }
        for each, quality in found[name]["sets"].items():
            print(name, each, quality, flush=True)
        settings = {"max_steps": args.max_steps, "dtype": args.dtype, "covered": covered, "forms": found}
        write_result(args.output, settings, target=target.config)


if __name__ == "__main__":
    main()
