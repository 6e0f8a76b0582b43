"""`SpecDecPP`: what a caller names in `generate`, and our drafting inside transformers' own loop."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.streamers import BaseStreamer

from ..drafting.config import DraftingConfig
from ..drafting.informed.config import ReadsTarget
from ..drafting.lookup import LookupStore
from ..drafting.pair import Pair, check_pair, decoding_of
from ..drafting.recycling import RecyclingTable
from ..stopping import Round, StoppingConfig
from .call import decode, needs_transformers_loop
from .law import Law
from .sequences import Sequences
from .transformers_loop import CandidateGeneratorFactory, assisted_decoding


class SpecDecPP(AssistedCandidateGenerator):
    """Drafts candidates until its stopping rule has enough, that of SpecDec++ (arXiv 2405.19715) or another.

    Two ways to use it, with equal output:

    - `model.generate(..., assistant_model=draft, candidate_generator=SpecDecPP, stopping_config=StoppingConfig())`;
    - `model.generate(..., custom_generate=SpecDecPP(assistant_model=draft))`, transformers' own hook. The hook keeps
      `streamer` and `tokenizer` to itself, so give the streamer here as well, and stop strings as a
      `StopStringCriteria` in `stopping_criteria`.

    Both run our own loop. As a candidate generator of transformers' own loop, which subclasses and calls that ask for
    attentions or hidden states go through, an object drafts chains for one text and samples by rejection.

    Logits processors must be functions of ids and scores: they are called for drafted tokens, and again where the
    target verifies them. One that counts its calls, say, changes the output; those known to keep state are refused.

    Args:
        assistant_model (`PreTrainedModel` or `PeftModel`): the draft, with an active acceptance head if the rule asks
            one.
        stopping_config (`StoppingConfig`, *optional*): left out, the head's recommended settings serve.
        streamer (`BaseStreamer`, *optional*): only for `custom_generate`.
        target_config (`PretrainedConfig`, *optional*): the target's configuration, against which the pair is checked.
        target_model (`PreTrainedModel`, *optional*): the target. Without it a rule that measures costs begins anew.
        drafting_config (`DraftingConfig`, *optional*): only for `custom_generate`, as are the next two.
        lookup_store (`LookupStore`, *optional*): texts of earlier generations.
        recycling_table (`RecyclingTable`, *optional*): what earlier generations taught it.
        input_ids: this and what is not named above is what `generate` passes to a candidate generator.

    Raises:
        TypeError: if the draft is missing or no causal language model of transformers.
        ValueError: if the rule asks a head and none is active on the draft, if the head is for another pair, if the
            vocabularies differ, if the draft is prompt-tuned, or for a setting that SpecDec++ cannot honour.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor | None = None,
        assistant_model: nn.Module | None = None,
        generation_config: GenerationConfig | None = None,
        model_kwargs: dict | None = None,
        inputs_tensor: Tensor | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_config: StoppingConfig | None = None,
        streamer: BaseStreamer | None = None,
        target_config: PretrainedConfig | None = None,
        target_model: PreTrainedModel | None = None,
        drafting_config: DraftingConfig | None = None,
        lookup_store: LookupStore | None = None,
        recycling_table: RecyclingTable | None = None,
    ):
        self.pair = Pair.of(input_ids if isinstance(input_ids, nn.Module) else assistant_model, stopping_config)
        self.assistant_model = self.pair.draft
        self.streamer, self.drafting_config = streamer, drafting_config
        self.lookup_store, self.recycling_table = lookup_store, recycling_table
        self.stop_reason: str | None = None
        if input_ids is None:
            return
        super().__init__(
            input_ids, self.assistant_model, generation_config, model_kwargs or {}, inputs_tensor, logits_processor
        )
        # The loop writes num_assistant_tokens back to the draft when its schedule is "heuristic": leave it as it was.
        self.num_assistant_tokens = self.assistant_model.generation_config.num_assistant_tokens
        vocab_size = check_pair(self.pair.head, self.assistant_model.config, target_config)
        if isinstance(self.assistant_model.config, ReadsTarget):
            raise ValueError(
                "the draft reads the target's states, which transformers' own loop does not hand on: leave out "
                "what needs that loop (attentions, hidden states, inputs besides text, a subclass of SpecDecPP)"
            )
        mask = (model_kwargs or {}).get("attention_mask")
        padding = 0 if mask is None else int((mask == 0).sum())
        self.sequences = Sequences(input_ids.to(self.assistant_model.device), [padding], self.main_model_max_length)
        processors = LogitsProcessorList() if logits_processor is None else logits_processor
        law = Law(processors, decoding_of(generation_config, "rejection"), self.sequences, vocab_size)
        settings = self.pair.settings(generation_config)
        [self.rule], self.experience = self.pair.rules(settings, input_ids.shape[1], 1, target_model)
        eos = generation_config.eos_token_id
        eos = set() if eos is None else set(torch.as_tensor(eos).flatten().tolist())
        self.drafter = self.pair.drafter(law, self.sequences, self.rule, eos)
        self.reads_prompt = True

    def __call__(self, model: PreTrainedModel, input_ids: torch.LongTensor, **kwargs):
        """Generates with `model`; the signature that `generate(custom_generate=...)` expects."""
        return generated(
            type(self), model, input_ids, assistant_model=self.assistant_model, streamer=self.streamer,
            stopping_config=self.pair.stopping_config, drafting_config=self.drafting_config,
            lookup_store=self.lookup_store, recycling_table=self.recycling_table, **kwargs,
        )  # fmt: skip

    def get_candidates(self, input_ids: torch.LongTensor, **kwargs) -> tuple[torch.LongTensor, Tensor | None]:
        """Drafts one round.

        Args:
            input_ids (`torch.LongTensor` of shape `(1, length)`): the tokens generated so far, on any device.

        Returns:
            `torch.LongTensor` of shape `(1, length + drafted)`, and when sampling the processed logits
            (`torch.FloatTensor` of shape `(1, drafted, vocab_size)`) that the drafted tokens were drawn from.
        """
        self.begun = time.perf_counter()
        self.draft = self.drafter.draft([self.rule.plan()])
        [self.stop_reason], [nodes] = self.draft.stop_reasons, self.draft.nodes
        self.drafted_until = time.perf_counter()
        if not nodes:
            return input_ids, None
        tokens = self.draft.ids().to(input_ids.device)
        for node, token in zip(nodes, tokens[0].tolist(), strict=True):
            node.id = token
        q = torch.stack([self.draft.q[id(node)] for node in nodes])[None].log() if self.draft.q else None
        return torch.cat((input_ids, tokens), dim=-1), q

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: Tensor, num_matches: int) -> None:
        """Tells the rule what became of the round; transformers' own heuristic and ROC curve stay out of it."""
        new_ids = input_ids[0, self.sequences.length(0) :].tolist()
        [nodes] = self.draft.nodes
        matched = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1], zip(nodes, new_ids, strict=False)))
        self.drafter.commit([nodes[: min(matched, len(new_ids) - 1)]], input_ids, scores)
        self.sequences.append(0, new_ids)
        round = Round(
            [node.token for node in nodes], matched, censored=self.stop_reason in ("end_of_sequence", "max_length"),
            draft_seconds=self.drafted_until - self.begun, target_seconds=time.perf_counter() - self.drafted_until,
            reads_prompt=self.reads_prompt, new_tokens=len(new_ids), stop_reason=self.stop_reason,
        )  # fmt: skip
        self.reads_prompt = False
        if self.stop_reason != "no_room":
            if self.experience is not None:
                self.experience.hear(round)
            self.rule.end(round)


def generated(
    candidate_generator: CandidateGeneratorFactory,
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    assistant_model: nn.Module | None = None,
    stopping_config: StoppingConfig | None = None,
    drafting_config: DraftingConfig | None = None,
    lookup_store: LookupStore | None = None,
    recycling_table: RecyclingTable | None = None,
    streamer: BaseStreamer | None = None,
    **prepared: Any,
):
    """Generates by our own loop; other candidate generators, and what ours does not know, by transformers'.

    Args:
        prepared: what `generate` hands its decoding methods.

    Raises:
        TypeError, ValueError: see `decode` and `assisted_decoding`.
    """
    shared = {"assistant_model": assistant_model, "stopping_config": stopping_config, "streamer": streamer}
    own = {
        "drafting_config": drafting_config, "lookup_store": lookup_store, "recycling_table": recycling_table,
    }  # fmt: skip
    if candidate_generator is SpecDecPP and not needs_transformers_loop(**prepared):
        return decode(model, input_ids, **own, **shared, **prepared)
    for name, value in own.items():
        if value is not None:
            raise ValueError(
                f"{name} is for our own loop, and this call needs transformers' (another candidate generator, "
                "attentions, hidden states or inputs besides text): leave one of them out"
            )
    return assisted_decoding(model, input_ids, candidate_generator=candidate_generator, **shared, **prepared)
