"""One run of `specdecpp bench`: loads a pair, measures costs, traces and methods, and returns the result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..costs.measure import calibrate
from ..costs.store import Calibration
from ..costs.warm import rooms, warm
from ..decoding import Decoding
from ..drafting.pair import check_pair
from ..evidence.conditions import conditions, public
from ..evidence.files import write_atomically
from ..evidence.trace import read_traces, record_traces
from ..hub.data import prompt_ids
from ..hub.demo_pair import DRAFT, HEADS, demo_target, shipped
from ..hub.loading import load_pair, load_tokenizer
from .measure import Bench, Row, measure, obstacle, resume
from .methods import KINDS, active_head, new_method, recommendation, running_of_method, unknown_method
from .sets import load_prompts
from .summary import finished, summarise, summarise_replay

LONGEST = 8  # drafts in traces, and the most tokens whose verification is timed


@dataclass(frozen=True)
class Settings:
    """What a run measures.

    Args:
        target (`str`, *optional*): Hub id or folder of the target; left out, SmolLM2-135M-Instruct.
        draft (`str`, *optional*): Hub id or folder of the draft; left out, the shipped one.
        head (`str`, *optional*): Hub id or folder of the draft's head; a draft of your own may go without. Left out,
            the shipped one of the shipped draft.
        sets (`list[str]`): sets of prompts: mixed, alpaca, gsm8k, humaneval, mt-bench, summaries, or NAME=SOURCE with
            a JSONL file or a dataset on the Hub, see `load_prompts`.
        methods (`list[str]`): ways to decode: plain, compiled, assisted, assisted=K, lookup; recommended (SpecDec++),
            text (without a draft), model, chain or tree (from the draft alone), transformers-loop; a rule,
            RULE=THRESHOLD or fixed=K; ours behind static: or compiled: too, see `new_method`.
        sample (`bool`): sample (temperature 1, top-k 50) instead of greedy decoding.
        count (`int`): prompts of each set.
        repeats (`int`): timed runs of every method on every prompt, after one that warms up; with 0 that one is timed.
        max_new_tokens (`int`): most tokens generated for each prompt.
        dtype (`str`): of both models: bfloat16, float16 or float32.
        threads (`int`, *optional*): of the CPU; left out, torch's.
        traced (`int`, *optional*): prompts of each set whose drafts are recorded for the replay, else all.
        minutes (`float`, *optional*): no prompt is begun that would end later.
        seed (`int`): of the choice of prompts.
        device_map, attention, quantization: see `load_pair`.
    """

    target: str | None
    draft: str | None
    head: str | None
    sets: list[str]
    methods: list[str]
    sample: bool = False
    count: int = 12
    repeats: int = 3
    max_new_tokens: int = 64
    dtype: str = "bfloat16"
    threads: int | None = None
    traced: int | None = None
    minutes: float | None = None
    seed: int = 0
    device_map: str | dict | None = None
    attention: str | None = None
    quantization: dict | None = None

    def filled(self) -> Settings:
        """With the demo's pair, or the parts of it, in place of what was left out.

        Raises:
            ValueError: if these are not there, as in an installation without the repository.
        """
        head = self.head
        if self.draft is None and head is None:
            head = shipped(HEADS / ("sampling" if self.sample else "greedy"))
        return replace(self, target=self.target or demo_target(), draft=self.draft or shipped(DRAFT), head=head)


def load(settings: Settings) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Target, draft with its head, and tokenizer, of filled settings; the pair fits."""
    target, draft = load_pair(
        settings.target, settings.draft, settings.dtype, settings.device_map, settings.attention,
        settings.quantization, settings.head,
    )  # fmt: skip
    check_pair(active_head(draft), draft.config, target.config)
    return target, draft, load_tokenizer(settings.target)


def run_bench(
    settings: Settings,
    output: Path,
    on_begin: Callable[[str, int], None] = lambda what, total: None,
    on_step: Callable[[], None] = lambda: None,
    on_ready: Callable[..., None] = lambda bench, tokenizer, costs: None,
) -> dict[str, Any]:
    """Measures, and writes the result to `output`. Rows, traces and costs are kept beside it, so a killed run goes on.

    Args:
        on_begin: called with each stage and the number of its steps.
        on_step: called after each step.
        on_ready: called with the `Bench`, the tokenizer and the `CostProfile`, before anything is generated.

    Raises:
        ValueError: if there is a result already, or rows of a run with other settings.
    """
    begun = time.monotonic()
    if output.exists():
        raise ValueError(f"{str(output)!r} is a result, and results are never edited: give another --output")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    settings = settings.filled()
    for name in settings.methods:
        if name.rpartition(":")[2].partition("=")[0] not in KINDS:  # said before anything is loaded
            raise unknown_method(name)
    target, draft, tokenizer = load(settings)
    prompts = {}
    for named in settings.sets:
        name, texts = load_prompts(named, settings.count, settings.seed)
        ids = (prompt_ids(tokenizer, text) for text in texts)
        prompts[name] = [torch.tensor([tokens], device=target.device) for tokens in ids]
    about = conditions(target=target.config, draft=draft.config)
    configuration = described(settings, prompts)
    header = configuration | {name: about[name] for name in ("models", "versions", "device", "threads")}
    rows, append = resume(output.with_suffix(".rows.jsonl"), header)

    lengths = sorted(ids.shape[1] for found in prompts.values() for ids in found)
    context = lengths[len(lengths) // 2] + settings.max_new_tokens // 2
    names = dict.fromkeys(["plain", *settings.methods])
    ways = list(dict.fromkeys(["eager", *map(running_of_method, names)]))
    on_begin("costs", len(ways))
    for running in ways:
        for room in rooms(running, target, draft, [length + settings.max_new_tokens for length in lengths]):
            warm(room, target, draft)
        on_step()
    costs_file = output.with_suffix(".costs.json")
    if not costs_file.exists():
        calibrate(target, draft, [context], LONGEST).save(costs_file)
    calibration = Calibration.load(costs_file)
    costs = calibration.at(context)  # of replays; rules learn their own, as they do for users

    decoding = Decoding(do_sample=settings.sample)
    bench = Bench(target, draft, decoding.generate_kwargs() | {"max_new_tokens": settings.max_new_tokens})
    on_ready(bench, tokenizer, costs)
    methods = [new_method(name, target, draft) for name in names]
    on_begin("warm-up", len(methods))
    longest = max((ids for found in prompts.values() for ids in found), key=lambda ids: ids.shape[1])
    unavailable = {}
    for method in methods:
        reason = obstacle(bench, method, longest)
        if reason is not None:
            unavailable[method.name] = reason
        on_step()
    if "plain" in unavailable:
        raise ValueError(f"plain generate does not run, so there is nothing to compare with: {unavailable['plain']}")
    methods = [method for method in methods if method.name not in unavailable]

    traced = {name: ids[: settings.traced] for name, ids in prompts.items()}
    on_begin("traces", sum(map(len, traced.values())))
    replayed = {}
    for name, ids in traced.items():
        path = output.with_suffix(f".traces-{name}.jsonl")
        plain_ids = [tokens[0].tolist() for tokens in ids]
        record_traces(target, draft, plain_ids, path, decoding, settings.max_new_tokens, LONGEST, on_step)
        replayed[name] = summarise_replay(
            read_traces(path), costs, LONGEST, recommendation(draft), active_head(draft) is not None
        )

    on_begin("generations", len(methods) * (settings.repeats + 1) * sum(map(len, prompts.values())))
    for _ in rows:
        on_step()
    deadline = settings.minutes and begun + 60 * settings.minutes
    for row in measure(bench, methods, prompts, settings.repeats, rows, deadline):
        append(row)
        rows.append(row)
        on_step()

    result = about | {
        "configuration": configuration,
        "costs": {"context": context, **asdict(costs), "linear_fit": calibration.linear_fit()},
        "unavailable": unavailable,
        "sets": {
            name: summarise_set([row for row in rows if row.set == name], methods, settings.repeats, ids)
            | {"replay": replayed[name]}
            for name, ids in prompts.items()
        },
    }
    text = json.dumps(result)
    write_atomically(output, text + "\n")
    return json.loads(text)


def read_result(path: Path) -> dict[str, Any]:
    """What `run_bench` wrote.

    Raises:
        ValueError: if the file is none of its results.
    """
    try:
        result = json.loads(path.read_text())
        if {"configuration", "costs", "sets", "unavailable"} <= set(result):
            return result
    except (OSError, TypeError, json.JSONDecodeError):
        pass
    raise ValueError(f"{str(path)!r} holds no result: make one with `specdecpp bench --output`")


def summarise_set(rows: list[Row], methods: list, repeats: int, prompts: list[Tensor]) -> dict[str, Any]:
    """The methods on one set, and its prompts that went through all of them."""
    rows = finished(rows, methods, repeats)
    numbers = sorted({row.prompt for row in rows})
    lengths = [prompts[number].shape[1] for number in numbers]
    return {
        "prompts": len(numbers),
        "asked": len(prompts),
        "prompt_tokens": [min(lengths), max(lengths)],
        "methods": summarise(rows, methods),
    }


def described(settings: Settings, prompts: dict[str, list[Tensor]]) -> dict[str, Any]:
    """The settings as JSON keeps them, with a fingerprint of each set's tokens."""
    texts = {name: json.dumps([ids.tolist() for ids in found]) for name, found in prompts.items()}
    kept = {name: value for name, value in vars(settings).items() if name not in ("target", "draft", "threads")}
    return kept | {
        "sets": [public(named) for named in settings.sets],
        "head": settings.head and public(settings.head),
        "prompts_sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    }
