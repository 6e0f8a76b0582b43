"""The ways to decode that are compared, each a name and the keywords that a user would give to `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

from ..decoding.specdecpp import SpecDecPP
from ..decoding.static import keywords_of
from ..drafting.config import DraftingConfig
from ..drafting.pair import recommending_head
from ..stopping import RULES, StoppingConfig

QUICK = ("plain", "assisted", *(f"assisted={k}" for k in (1, 2, 3, 5)), "lookup", "text", "recommended")
USUAL = (
    "plain", "compiled", "assisted", "assisted=heuristic", *(f"assisted={k}" for k in (1, 2, 3, 4, 5, 6, 8)), "lookup",
    "text", "chain", "recommended",
)  # fmt: skip
# What our loop drafts from where it is told, and how such methods are called in tables.
DRAFTING = {
    "model": ("SpecDec++, the model alone", DraftingConfig(("model",))),
    "chain": ("SpecDec++, chains of the model", DraftingConfig(("model",), branches=1)),
    "tree": ("SpecDec++, trees of the model", DraftingConfig(("model",), branches=4)),
}
# Those that need no further setting; "fixed" needs a length, and combinations are for Python.
SINGLE_RULES = tuple(rule for rule in RULES if rule not in ("fixed", "any", "all"))
KINDS = (
    "plain", "compiled", "assisted", "lookup", "recommended", *DRAFTING, "text", "transformers-loop", "fixed",
    *SINGLE_RULES,
)  # fmt: skip
ALL = (*USUAL, "model", "tree", "transformers-loop", *(f"fixed={k}" for k in (1, 2, 3, 4, 5, 6, 8)), *SINGLE_RULES)


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Args:
        name (`str`): as on the command line.
        label (`str`): as in tables.
        keywords (`dict`): of `generate`, in the calls that are timed.
        counted (`dict`, *optional*): what the call that counts rounds takes besides; `None` where each pass of the
            target makes one token, so that there is nothing to count.
        drafting (`dict`): settings of the draft's generation config meanwhile, where transformers looks for them.
    """

    name: str
    label: str
    keywords: dict[str, Any]
    counted: dict[str, Any] | None = None
    drafting: dict[str, Any] = field(default_factory=dict)


@contextmanager
def draft_settings(draft: PreTrainedModel, settings: dict[str, Any]) -> Iterator[None]:
    """Within the context the draft's generation config has `settings`."""
    before = draft.generation_config.to_dict()
    draft.generation_config.update(**settings)
    try:
        yield
    finally:
        draft.generation_config.update(**before)


def new_method(name: str, target: PreTrainedModel, draft: PreTrainedModel) -> Method:
    """The method called `name`: NAME or NAME=VALUE.

    - `plain`; `compiled`, with a static cache;
    - `assisted`, transformers' default; `assisted=heuristic`; `assisted=K` with K tokens a round;
    - `lookup` or `lookup=K`, K tokens from the prompt;
    - `recommended`, SpecDec++ as the head recommends it, or without a head the cost-aware rule, from all sources that
      the rule can weigh; the same rule from the draft alone, `model`, and `chain` or `tree` of it;
    - `text`, SpecDec++ without a draft; `transformers-loop`, the recommended rule in transformers' own loop;
    - a rule of `StoppingConfig`, with its threshold (`svip=0.3`) or, for `fixed`, its length; `fixed=0` is plain
      decoding in our loop;
    - any of ours behind `static:` or `compiled:`, to run so, see `keywords_of`.

    Raises:
        ValueError: for another name, or a value that it does not take.
    """
    running, _, rest = name.rpartition(":")
    if running:
        return run_otherwise(new_method(rest, target, draft), running)
    kind, _, value = name.partition("=")
    try:
        match kind:
            case "plain" if not value:
                return Method(name, "plain generate", {})
            case "compiled" if not value:
                return compiled()
            case "assisted":
                return assisted(draft, value)
            case "lookup":
                return lookup(target, int(value or 10))
            case "recommended" if not value:
                return Method(name, "SpecDec++", *specdecpp(draft, recommendation(draft)))
            case _ if kind in DRAFTING and not value:
                label, drafting = DRAFTING[kind]
                return Method(name, label, *specdecpp(draft, recommendation(draft), drafting_config=drafting))
            case "text" if not value:
                config = StoppingConfig(rule="cost-aware", settings={"uses_head": False})
                return Method(name, "SpecDec++ without a draft", *specdecpp(None, config))
            case "transformers-loop" if not value:
                keywords, counted = specdecpp(draft, recommendation(draft))
                keywords["candidate_generator"] = InTransformersLoop
                return Method(name, "SpecDec++ in transformers' loop", keywords, counted)
            case "fixed":
                config = StoppingConfig(
                    rule=kind, settings={"length": int(value)}, max_draft_length=max(int(value), 1)
                )
                label = f"our loop, fixed {value}" if int(value) else "our loop, no drafts"
                return Method(name, label, *specdecpp(draft, config))
            case _ if kind in SINGLE_RULES:
                config = rule_config(kind, float(value) if value else None, draft)
                return Method(name, f"our loop, {kind} {value}".strip(), *specdecpp(draft, config))
    except ValueError as error:
        raise ValueError(f"the method {name!r} cannot be: {error}") from error
    raise unknown_method(name)


def running_of_method(name: str) -> str:
    """How the models run in the method called `name`, as far as it is ours."""
    return name.rpartition(":")[0] or "eager"


def run_otherwise(method: Method, running: str) -> Method:
    """A method of our own loop, whose models run as `keywords_of(running)` asks.

    Raises:
        ValueError: for other methods, which have no such choice, and for another `running`.
    """
    asked = keywords_of(running)
    if method.keywords.get("candidate_generator") is not SpecDecPP:
        raise ValueError(f"{running}:{method.name}: only our own loop runs {running}; leave out {running}:")
    label = f"{method.label}, {running}"
    return replace(method, name=f"{running}:{method.name}", label=label, keywords=method.keywords | asked)


def running_so(names: list[str], running: str) -> list[str]:
    """`names` with each method of our own loop running so, unless it says how itself."""
    theirs = ("plain", "compiled", "assisted", "lookup", "transformers-loop")
    own = (":" not in name and name.partition("=")[0] not in theirs for name in names)
    return [
        f"{running}:{name}" if is_own and running != "eager" else name for name, is_own in zip(names, own, strict=True)
    ]


def unknown_method(name: str) -> ValueError:
    return ValueError(
        f"there is no method {name!r}: choose among {', '.join(KINDS)}, some with =VALUE, ours behind static: or "
        "compiled: too"
    )


def compiled(backend: str = "inductor") -> Method:
    """Plain decoding with `torch.compile`, which transformers leaves out on a CPU unless told otherwise."""
    keywords = keywords_of("compiled")
    keywords["compile_config"].backend = backend
    if hasattr(GenerationConfig(), "max_cache_len"):  # else each length of text has a graph of its own
        keywords["max_cache_len"] = 512
    return Method("compiled", "plain generate, compiled", keywords)


def assisted(draft: PreTrainedModel, value: str = "") -> Method:
    """transformers' own assisted decoding; the counted call goes through the same loop and generator."""
    name, label, settings = f"assisted={value}", f"fixed {value}", {}
    if not value:
        name, label = "assisted", "default"
    elif value == "heuristic":
        label = value
        settings = {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": value}
    else:
        settings = {"num_assistant_tokens": int(value), "num_assistant_tokens_schedule": "constant"}
    if settings:
        settings["assistant_confidence_threshold"] = 0.0
    keywords, counted = {"assistant_model": draft}, {"candidate_generator": AssistedCandidateGenerator}
    return Method(name, f"transformers assisted, {label}", keywords, counted, settings)


def lookup(target: PreTrainedModel, length: int) -> Method:
    """Prompt lookup: the candidates are what followed the last tokens where they stood before; no draft model."""

    def counted(generation_config, logits_processor):
        return PromptLookupCandidateGenerator(
            generation_config._eos_token_tensor, length, max_length=generation_config.max_length,
            logits_processor=logits_processor, vocab_size=target.config.get_text_config().vocab_size,
        )  # fmt: skip

    name = "lookup" if length == 10 else f"lookup={length}"
    return Method(
        name, f"prompt lookup, {length}", {"prompt_lookup_num_tokens": length}, {"candidate_generator": counted}
    )


class InTransformersLoop(SpecDecPP):
    """The same head and rule, which transformers' own loop asks for candidates, as it does any subclass."""


def specdecpp(
    draft: PreTrainedModel | None, config: StoppingConfig, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords of `SpecDecPP`, and none besides to count."""
    return {"assistant_model": draft, "candidate_generator": SpecDecPP, "stopping_config": config, **more}, {}


def recommendation(draft: PreTrainedModel) -> StoppingConfig:
    """What the active head recommends; without a head the cost-aware rule."""
    head = active_head(draft)
    if head is None:
        return rule_config("cost-aware", None, draft)
    return StoppingConfig().filled_from(head)


def rule_config(rule: str, threshold: float | None, draft: PreTrainedModel) -> StoppingConfig:
    """A rule with its bounds; the cost-aware one does without a head where there is none."""
    head = active_head(draft)
    settings = {"uses_head": False} if rule == "cost-aware" and head is None else {}
    if rule == "specdec++" and head is None:
        threshold = threshold or 0.7  # recommended by nobody, so that the generation says what is missing: the head
    return StoppingConfig(threshold, rule=rule, settings=settings).filled_from(head)


def active_head(draft: PreTrainedModel):
    """The configuration of the head that is active on `draft`, if one is."""
    return recommending_head(draft, StoppingConfig(rule="fixed", settings={"length": 1}))
