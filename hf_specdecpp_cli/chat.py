"""`specdecpp chat`."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from .app import ATTENTION, DEVICE_MAP, QUANTIZATION, console, loading, speaks_plainly
from .bench import SETTINGS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@speaks_plainly
def chat(
    target: str = SETTINGS.option("target", default=None),
    draft: str = SETTINGS.option("draft", default=None),
    head: str = SETTINGS.option("head", default=None),
    sample: bool = SETTINGS.option("sample"),
    max_new_tokens: int = SETTINGS.option("max_new_tokens", default=256, min=2),
    dtype: str = SETTINGS.option("dtype"),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Chat in the terminal, and see which tokens were drafted and what was gained. An empty line ends it."""
    from hf_specdecpp.bench.run import Settings, load
    from hf_specdecpp.costs.measure import measure_costs
    from hf_specdecpp.decoding import Decoding

    from .answer import LEGEND, Answer

    settings = Settings(
        target, draft, head, [], [], sample, dtype=dtype, **loading(device_map, attention, quantization)
    )
    with console.status("loading the pair and measuring what its steps cost"):
        models = load(settings.filled())
        costs = measure_costs(*models[:2], max_draft_length=8, repeats=5)
    decoding = Decoding(do_sample=sample).generate_kwargs() | {"max_new_tokens": max_new_tokens}
    conversation = Conversation(*models, decoding)
    console.print(f"{LEGEND} An empty line ends the chat.")
    with suppress(EOFError, KeyboardInterrupt):
        while words := console.input("\n[bold]> [/bold]").strip():
            answer, start = Answer(console, conversation.tokenizer), time.perf_counter()
            conversation.say(words, answer)
            seconds = time.perf_counter() - start
            console.print(f"[dim]{answer.summary(seconds, costs)}[/dim]", highlight=False, soft_wrap=True)


class Conversation:
    """Messages so far, and what the target read of them: a turn reads only what is new.

    Args:
        settings (`dict`): further keywords of `generate`.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: dict[str, Any],
    ):
        from transformers import DynamicCache

        from hf_specdecpp.bench.methods import new_method

        if tokenizer.chat_template is None:
            raise ValueError(f"{target.name_or_path!r} has no chat template: chat with a model that was made for it")
        self.target, self.tokenizer = target, tokenizer
        self.settings = settings | new_method("recommended", target, draft).keywords
        self.messages: list[dict[str, str]] = []
        self.read, self.cache = [], DynamicCache()

    def say(self, words: str, answer: Any) -> None:
        """Streams what the target answers to the user's `words` into `answer`."""
        import torch

        from hf_specdecpp import collect_stats

        self.messages.append({"role": "user", "content": words})
        ids = self.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)["input_ids"]
        room = self.target.config.get_text_config().max_position_embeddings
        if len(ids) >= room:
            raise ValueError(f"the chat has {len(ids)} tokens by now, and the target reads {room}: begin another one")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.read, ids[:-1], strict=False)))
        if (beyond := self.cache.get_seq_length() - same) > 0:
            self.cache.crop(-beyond)
        given = torch.tensor([ids], device=self.target.device)
        with collect_stats(on_round=answer.hear):
            output = self.target.generate(
                given, attention_mask=torch.ones_like(given), past_key_values=self.cache, streamer=answer,
                **self.settings,
            )  # fmt: skip
        self.read = output[0].tolist()
        self.messages.append(
            {"role": "assistant", "content": self.tokenizer.decode(self.read[len(ids) :], skip_special_tokens=True)}
        )
