"""Answers all prompts of a file, one a line, in batches; a JSON line for each goes to standard output.

python examples/batch.py examples/prompts.txt
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp import SpecDecPP, collect_stats, load_draft
from hf_specdecpp.hub.demo_pair import DRAFT, HEADS, demo_target


def main(file, target=None, draft=DRAFT, head=HEADS / "greedy", batch_size=4, max_new_tokens=48):
    target = target or demo_target()
    tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    draft = load_draft(draft, target=model, dtype=torch.bfloat16)
    draft.load_adapter(str(head))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    prompts = Path(file).read_text().splitlines()
    prompts.sort(key=len)  # prompts of one length need no padding
    with collect_stats() as stats:
        for first in range(0, len(prompts), batch_size):
            batch = prompts[first : first + batch_size]
            inputs = tokenizer.apply_chat_template(
                [[{"role": "user", "content": prompt}] for prompt in batch],
                add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt",
            )  # fmt: skip
            output = model.generate(
                **inputs, assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=max_new_tokens,
                do_sample=False, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
            answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for prompt, answer in zip(batch, answers, strict=True):
                print(json.dumps({"prompt": prompt, "answer": answer}))
    print(stats, file=sys.stderr)  # in trees most drafted tokens are alternatives: what counts is tokens a target pass


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["examples/prompts.txt"])
