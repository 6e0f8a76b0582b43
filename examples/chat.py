"""A chat that streams its answers. The target's cache is kept, so a turn reads only what is new in it.

python examples/chat.py "Why is the sky blue?" "And why is it red in the evening?"
"""

import sys
from itertools import takewhile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, TextStreamer

from hf_specdecpp import SpecDecPP, load_draft
from hf_specdecpp.hub.demo_pair import DRAFT, HEADS, demo_target


def main(questions, target=None, draft=DRAFT, head=HEADS / "greedy", max_new_tokens=64):
    target = target or demo_target()
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    draft = load_draft(draft, target=model, dtype=torch.bfloat16)
    draft.load_adapter(str(head))

    messages, read, cache = [], [], DynamicCache()
    for question in questions:
        messages.append({"role": "user", "content": question})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        # A template may write the end of an answer otherwise than the model did: keep what is the same.
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(read, ids[:-1], strict=False)))
        if (beyond := cache.get_seq_length() - same) > 0:
            cache.crop(-beyond)
        print(f"\n> {question}\n")
        output = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), past_key_values=cache,
            assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=max_new_tokens, do_sample=False,
            streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        )  # fmt: skip
        read = output[0].tolist()
        messages.append({"role": "assistant", "content": tokenizer.decode(read[len(ids) :], skip_special_tokens=True)})
    return messages


if __name__ == "__main__":
    main(sys.argv[1:] or ["Why is the sky blue?", "And why is it red in the evening?"])
