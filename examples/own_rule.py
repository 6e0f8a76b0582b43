"""A stopping rule of one's own, beside one of the library's: it drafts one token more than the last rounds accepted.

    python examples/own_rule.py

A rule is a class with a `plan` for the next round, and `end`, by which it learns from the last. `RULES` gives it the
name that `StoppingConfig` knows it by; the arguments of its `__init__` are its `settings`, checked by their types.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp import SpecDecPP, StoppingConfig, collect_stats, load_draft
from hf_specdecpp.hub.demo_pair import DRAFT, demo_target
from hf_specdecpp.stopping import ONE_TEXT, RULES, Plan, Round, Scope, StoppingRule


class OneMore(StoppingRule):
    """Drafts one token more than recent rounds accepted in the mean."""

    reason = "one more"  # in `stats.stop_reasons`

    def __init__(self, memory: float = 0.8):
        self.memory, self.accepted = memory, 2.0

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        return Plan(cap=1 + round(self.accepted), cap_reason=self.reason)

    def end(self, round: Round) -> None:
        self.accepted = self.memory * self.accepted + (1 - self.memory) * round.accepted


RULES["one-more"] = OneMore


def main(target=None, draft=DRAFT, max_new_tokens=64):
    target = target or demo_target()
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    draft = load_draft(draft, target=model, dtype=torch.bfloat16)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name ten animals and say what each of them eats."}],
        add_generation_prompt=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    for config in (
        StoppingConfig(rule="one-more", settings={"memory": 0.7}, max_draft_length=10),
        StoppingConfig(rule="fixed", settings={"length": 5}),
    ):
        with collect_stats() as stats:
            model.generate(
                **inputs, assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=config,
                max_new_tokens=max_new_tokens, do_sample=False,
            )  # fmt: skip
        print(f"{config.rule}\n{stats}\n")


if __name__ == "__main__":
    main()
