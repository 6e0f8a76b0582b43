"""The README.md of an uploaded head: what it is, how to use it, how good it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from ..acceptance import AcceptanceHeadConfig
from ..decoding import Decoding
from ..drafting.informed.published import KINDS

PROJECT_URL = "https://github.com/hf-specdecpp/hf_specdecpp"
INSTALLED_FROM = f"git+{PROJECT_URL}@v{version('hf_specdecpp')}"  # what pip takes

METRICS, PLOT = "metrics.json", "reliability.png"
# Either marks a card that nobody wrote: the title that PEFT's save_pretrained gives, or a line of ours.
UNWRITTEN = (
    "# Model Card for Model ID",
    "<!-- Made by `specdecpp push`, which makes it anew unless this line is removed. -->",
)
CARD = """\
{mark}

# Acceptance head: {draft} drafts for {target}

Predicts, token by token, whether `{target}` will accept what `{draft}` drafts, so that drafting stops when a rejection
is likely enough (SpecDec++, [arXiv 2405.19715](https://arxiv.org/abs/2405.19715)). The output is the target's own.
A PEFT adapter for {mode}, made with [hf_specdecpp]({project}):
`pip install {installed_from}`, then

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
from hf_specdecpp import {imports}

tokenizer = AutoTokenizer.from_pretrained("{target}")
target = AutoModelForCausalLM.from_pretrained("{target}", dtype="auto")
draft = {load}  # the draft with this head
inputs = tokenizer("Why is the sky blue?", return_tensors="pt")
output = target.generate(
    **inputs, assistant_model=draft, candidate_generator=SpecDecPP, max_new_tokens=64,
    {keywords}
)
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

`custom_generate="{repo_id}", trust_remote_code=True` in place of `candidate_generator=SpecDecPP` does the same.

## Recommended settings

They hold when `generate` is given no `stopping_config`.

{settings}

## Training

{training}
"""


def head_card(
    folder: Path, repo_id: str, config: AcceptanceHeadConfig, license: str, data: Sequence[str]
) -> ModelCard:
    """The card of the head in `folder`: its `README.md` if somebody wrote that one, with what its front matter lacks.

    Args:
        repo_id: where the card will be.
        data: datasets that the labels were made from.

    Raises:
        ValueError: if the folder's `README.md` or `metrics.json` cannot be read.
    """
    facts = ModelCardData(
        base_model=config.base_model_name_or_path, library_name="peft", license=license, datasets=list(data) or None,
        pipeline_tag="text-generation", tags=["acceptance-head", "speculative-decoding", "specdec++"],
    )  # fmt: skip
    readme = folder / "README.md"
    if readme.exists():
        try:
            card = ModelCard.load(readme)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(
                f"{str(readme)!r} must be UTF-8 with a front matter in YAML: correct or remove it"
            ) from error
        if not any(mark in card.text for mark in UNWRITTEN):
            for name, value in facts.to_dict().items():
                # The Hub finds an adapter's model by this field, so a person's guess will not do.
                if name == "base_model" or card.data.get(name) is None:
                    card.data[name] = value
            return card

    decoding = Decoding.stored(config.decoding)
    warpers = f"temperature {decoding.temperature:g}, top-k {decoding.top_k}, top-p {decoding.top_p:g}"
    mode = f"sampling ({warpers}, {decoding.coupling} coupling)"
    imports, load = "SpecDecPP", f'AutoModelForCausalLM.from_pretrained("{repo_id}", dtype="auto")'
    is_own = config.base_model_name_or_path == config.target_name_or_path  # a target's MTP layer
    if is_own or (config.draft_signature or "").split("-")[0] in KINDS:  # transformers cannot load it
        imports, load = "SpecDecPP, load_draft", f'load_draft("{repo_id}", target=target)'
    body = CARD.format(
        imports=imports, load=load,
        mark=UNWRITTEN[1], project=PROJECT_URL, installed_from=INSTALLED_FROM, draft=config.base_model_name_or_path,
        target=config.target_name_or_path, repo_id=repo_id,
        mode=mode if decoding.do_sample else "greedy decoding",
        keywords=", ".join(f"{name}={value}" for name, value in decoding.generate_kwargs().items()),
        settings=_settings(config), training=_training(folder, config, data),
    )  # fmt: skip
    return ModelCard(f"---\n{facts.to_yaml()}\n---\n\n{body}")


def _settings(config: AcceptanceHeadConfig) -> str:
    bounds = {name: getattr(config, name) for name in ("threshold", "min_draft_length", "max_draft_length")}
    return _table("setting", {"rule": config.rule} | config.rule_settings | bounds)


def _training(folder: Path, config: AcceptanceHeadConfig, data: Sequence[str]) -> str:
    blocks = f"one SiLU block applied {config.num_layers} times" if config.tied else f"{config.num_layers} SiLU blocks"
    source = f" on labels from {', '.join(f'`{name}`' for name in data)}" if data else ""
    paragraphs = [
        f"A head of {blocks}, width {config.hidden_size}, float32, on the draft's hidden state {config.reads} the "
        f"token{''.join(f', {name}' for name in config.features)}; trained{source} with rejections weighted "
        f"{config.rejection_weight:g} times."
    ]
    path = folder / METRICS
    if path.exists():
        try:
            metrics = json.loads(path.read_text())
            numbers = {name: f"{value:.4g}" for name, value in metrics.items() if isinstance(value, (int, float))}
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{str(path)!r} must hold numbers by name: train again, or remove it") from error
        paragraphs += [
            "On held-out labels; divergences are in nats, and `binary_kl_constant` is that of the mean acceptance:",
            _table("metric", numbers),
        ]
    if (folder / PLOT).exists():
        paragraphs.append(f"![Predicted against observed acceptance]({PLOT})")
    return "\n\n".join(paragraphs)


def _table(heading: str, rows: dict[str, Any]) -> str:
    return "\n".join(
        [f"| {heading} | |", "| --- | --- |", *(f"| `{name}` | {value} |" for name, value in rows.items())]
    )
