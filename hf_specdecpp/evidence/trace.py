"""Records, at every position of the target's own output, what a long draft would have been. `replay` reads it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..acceptance import (
    AcceptanceHead,
    AcceptanceHeadConfig,
    acceptance_layer,
    listening,
    model_signature,
    token_features,
)
from ..decoding import Decoding, draw_beside, draw_tokens
from ..decoding.law import Law
from ..decoding.masks import windows, within_windows
from ..decoding.sequences import Sequences
from ..decoding.taps import read_whole
from ..drafting.draft import Node
from ..drafting.informed.block_config import DFlashConfig
from ..drafting.informed.config import layers_read
from ..drafting.model import in_vocabulary
from ..drafting.pair import Pair, active_head_config, check_pair
from ..stopping import ONE_TEXT, DraftedToken, Plan, Scope, StoppingConfig, StoppingRule
from ..stopping.trees import Eagle2
from ..training.responses import end_of_sequence, generate_responses
from .files import Lines, drop_partial, write_atomically

DRAFTS_PER_PASS = 128  # bounds the logits in memory
BLOCKS_PER_PASS = 16  # bounds the keys and values, of which each block has those of the text


@dataclass(frozen=True)
class Draft:
    """The longest draft at one position: its tokens as a rule sees them, and how many of them the target accepts.

    `ended` says that the last one ends the sequence. A tree's tokens have `parents`, the number of each one's parent,
    -1 for none, and `path`, the numbers of those that the target accepts.
    """

    tokens: list[DraftedToken]
    accepted: int
    ended: bool = False
    parents: list[int] | None = None
    path: list[int] | None = None

    @property
    def accepted_first(self) -> int:
        """How many tokens of a chain are accepted, which in a tree is that of its first choices."""
        if self.path is None:
            return self.accepted
        return next((n for n, node in enumerate(self.path) if self.tokens[node].rank > 1), len(self.path))


@dataclass(frozen=True)
class Trace:
    """One generation of the target.

    Attributes:
        target_ids (`list[int]`): the generated tokens.
        max_new_tokens (`int`): the bound that the generation had.
        drafts (`list[Draft]`): the draft that begins after `i` generated tokens, for every `i`.
        judged_late (`bool`): the head judged each token in the pass that drew the next.
        block (`int`): the most tokens that a pass of the draft drafts, see `Scope`.
    """

    target_ids: list[int]
    max_new_tokens: int
    drafts: list[Draft]
    judged_late: bool = False
    block: int = 1

    def seen(self, drafted: list[DraftedToken]) -> list[DraftedToken]:
        """What a rule sees of `drafted` when the last of them is the newest."""
        return [*drafted[:-1], replace(drafted[-1], acceptance=None)] if self.judged_late and drafted else drafted

    def to_json(self) -> str:
        """One line; floats survive exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Trace:
        fields = json.loads(line)
        drafts = [
            Draft(**d | {"tokens": [DraftedToken(**token) for token in d["tokens"]]}) for d in fields.pop("drafts")
        ]
        return cls(**fields, drafts=drafts)


def read_traces(path: str | Path) -> list[Trace]:
    """The traces of a JSONL file.

    Raises:
        ValueError: if a line is none.
    """
    lines = Path(path).read_text().splitlines()
    try:
        return [Trace.from_json(line) for line in lines]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{str(path)!r} holds a line that is no trace of this version, or half of one: run `specdecpp trace` to "
            "its end, or record them again"
        ) from error


def states_path(path: Path, number: int) -> Path:
    return path.with_suffix(".states") / f"{number:05}.safetensors"


def read_states(path: Path) -> list[Tensor]:
    """The hidden states that belong to the traces in `path`, for `judged`."""
    return [load_file(states_path(path, n))["states"] for n in range(len(path.read_text().splitlines()))]


class Branches:
    """The drafts that begin at many positions of one sequence, side by side, a forward pass for a token of each.

    The draft reads the sequence once. A branch then sees the sequence up to where it begins, and itself.

    Args:
        sequence (`torch.LongTensor` of shape `(1, length)`).
        vocab_size (`int`): of the target.
        taps (`torch.Tensor` of shape `(1, length, width)`, *optional*): the target's states of the sequence, for a
            draft that reads them; a branch reads its own.
    """

    reach: ClassVar[float] = math.inf  # tokens of the longest

    def __init__(self, draft: PreTrainedModel, sequence: Tensor, vocab_size: int, taps: Tensor | None = None):
        self.draft, self.vocab_size = draft, vocab_size
        self.skipped = 0 if taps is None else 1  # there is nothing before the first token to read it beside
        config = draft.config.get_text_config()
        self.most, self.windows = config.vocab_size - 1, windows(config) or {"full_attention": None}
        self.cache = DynamicCache()  # without a config nothing in it slides, see `SpecDecPP`
        inputs = {} if taps is None else {"taps": taps[:, :-1].to(sequence.device)}
        self.own: Tensor | None = None  # what an informed draft feeds back behind what it read last
        self.of_sequence = (*self._pass(input_ids=sequence[:, self.skipped :], **inputs), self.own)
        self.length = sequence.shape[1] - self.skipped

    def _pass(self, input_ids: Tensor, **kwargs) -> tuple[Tensor, Tensor | None]:
        """Logits (length, vocab_size) and hidden states (length, hidden_size), with a head or of an informed draft."""
        kwargs |= {"input_ids": input_ids.clamp(max=self.most), "past_key_values": self.cache, "use_cache": True}
        if self.skipped:
            outputs = self.draft.get_decoder()(**kwargs)
            self.own, heard = outputs.states[0], outputs.last_hidden_state
            logits = self.draft.lm_head(heard)
        else:
            with listening() as listener:
                logits = self.draft(**kwargs).logits
            heard = listener.hidden_states
        return logits[0], None if heard is None else heard[0].half().cpu()

    def begin(self, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """Branches that begin before each of `places` of the sequence, (branches,); returns what they begin with."""
        places = places - self.skipped
        excess = self.cache.get_seq_length() - self.length
        if excess:
            self.cache.crop(-excess)
        self.places = places
        keys = torch.arange(self.length, device=places.device)
        self.seen, self.at = keys < places[:, None], keys.expand(len(places), -1)
        logits, states, own = self.of_sequence
        self.own = None if own is None else own[places - 1]
        return self._found(logits[places - 1], None if states is None else states[places.cpu() - 1])

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Goes on with a token for each branch, (branches,)."""
        self.seen = torch.cat((self.seen, torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)), dim=-1)
        self.at = torch.cat((self.at, self.places.expand(len(tokens), -1)), dim=-1)
        mask = within_windows(self.windows, self.seen[None], self.places[None], self.at[None], self.draft.dtype)
        inputs = {} if self.own is None else {"states": self.own[None]}
        found = self._pass(tokens[None], position_ids=self.places[None], attention_mask=mask, **inputs)
        self.places = self.places + 1
        return self._found(*found)

    def beside(self, tokens: Tensor) -> Tensor | None:
        """The hidden states behind a token for each branch, (branches,), none of which goes on with it."""
        before = self.seen, self.at, self.places, self.own
        _, states = self.read(tokens)
        self.cache.crop(-len(tokens))
        self.seen, self.at, self.places, self.own = before
        return states

    def _found(self, logits: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The next token's logits, (branches, vocab_size) in float32, and the states they are of."""
        return in_vocabulary(logits, self.vocab_size), states


class Blocks:
    """`Branches` of a draft of blocks: a branch is a block, which one pass says whole where the branch begins.

    A block depends on the text before it alone: on the target's states of it, and on its newest token. What is read of
    a branch only shifts the next place by DSpark's bias.
    """

    def __init__(self, draft: PreTrainedModel, sequence: Tensor, vocab_size: int, taps: Tensor):
        self.draft, self.vocab_size, self.reach = draft, vocab_size, draft.config.drafted
        self.sequence, self.cache = sequence[0], DynamicCache()  # see `Branches`
        draft.get_decoder()(sequence, taps[:, :-1].to(sequence.device), past_key_values=self.cache)
        self.cache.crop(-1)  # the newest token, of a block; what is read of the text stays

    def begin(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """See `Branches.begin`."""
        newest = self.sequence[places - 1]
        self.states = torch.cat([self._said(part) for part in (places - 1).split(BLOCKS_PER_PASS)])
        self.place, self.memory = 0, None
        if not self.draft.config.sample_from_anchor:  # the memory begins at the first place all the same
            self.read(newest)
        return self.read(newest)

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `Branches.read`; at most `reach - 1` tokens of each branch."""
        states = self.states[:, self.place]
        logits, self.memory = self.draft.biased(self.draft.lm_head(states), tokens, states, self.memory)
        self.place += 1
        return in_vocabulary(logits, self.vocab_size), states.half().cpu()

    def _said(self, newest: Tensor) -> Tensor:
        """The states of the blocks that begin with the tokens number `newest` of the sequence, (n, block, width)."""
        config, rows, device = self.draft.config, len(newest), newest.device
        cache = DynamicCache()
        for number, layer in enumerate(self.cache.layers):
            cache.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), number)
        tokens = torch.full((rows, config.block_size), config.mask_token_id, device=device)
        tokens[:, 0] = self.sequence[newest]
        text = torch.arange(self.cache.get_seq_length(), device=device) < newest[:, None]
        nothing = torch.empty(rows, 0, config.num_taps * config.target_hidden_size, device=device)
        return self.draft.get_decoder()(
            tokens, nothing, torch.cat((text, torch.ones_like(tokens, dtype=torch.bool)), dim=-1),
            newest[:, None] + torch.arange(config.block_size, device=device), cache,
        )  # fmt: skip


def branches_of(draft: PreTrainedModel, *args) -> Branches | Blocks:
    """Those of a draft of any kind, see `Branches`."""
    return (Blocks if isinstance(draft.config, DFlashConfig) else Branches)(draft, *args)


@torch.no_grad()
def record_trace(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    response: list[int],
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
    seed: int = 0,
) -> tuple[Trace, Tensor | None]:
    """Drafts at every position of `response`.

    When sampling, a draft is drawn beside the target's tokens (`draw_beside`) as long as it equals them. Beyond the
    first rejection it is the draft's alone.

    Args:
        draft (`PreTrainedModel`): with or without an acceptance head; without one, the traces serve rules that need
            none.
        prompt, response (`list[int]`): token ids; `target` decoded the response as `decoding` says.
        max_new_tokens (`int`): the bound that the response had.
        max_draft_length (`int`): longest draft recorded; rules with a larger bound cannot be replayed.
        seed (`int`): of the draws.

    Returns:
        The trace, and with a head, for `judged`, the hidden state of the draft before each drafted token
        (`torch.HalfTensor` of shape `(drafted tokens, hidden_size)`).
    """
    head, device = mounted_head(draft), draft.device
    vocab_size = check_pair(head and head[1], draft.config, target.config)
    known, first = torch.tensor([prompt + response]), len(prompt)
    response_ids = torch.tensor(response, device=device)
    eos = torch.tensor(end_of_sequence(target), dtype=torch.long, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    layers, taps = layers_read(draft.config, target.config), None
    if layers:
        logits, taps = read_whole(target, known, layers)
    elif decoding.do_sample:
        logits = target(known.to(target.device)).logits
    if decoding.do_sample:
        target_logits = logits[0, first - 1 : -1].to(device)
    # A draft that reads the target's states has none beside the prompt.
    drafts, kept = [Draft([], 0)] if layers else [], []
    begins = torch.arange(len(drafts), len(response), device=device)
    if len(begins):
        branches = branches_of(draft, known[:, :-1].to(device), vocab_size, None if taps is None else taps[:, :-1])
    for begin in begins.split(DRAFTS_PER_PASS) if len(begins) else ():
        logits, states, drawn = *branches.begin(begin + first), None
        followed = torch.ones_like(begin, dtype=torch.bool)  # the drafts that are what the target said so far
        found, found_states = [], []
        for step in range(min(max_draft_length, branches.reach)):
            if step:
                logits, states = branches.read(drawn)
            raw, q, at = logits.softmax(-1), decoding.probabilities(logits), begin + step
            followed = followed & (at < len(response))
            drawn = draw_tokens(q, generator).squeeze(-1) if decoding.do_sample else logits.argmax(-1)
            if decoding.do_sample and followed.any():
                p = decoding.probabilities(target_logits[at[followed]].float())
                drawn[followed] = draw_beside(q[followed], p, response_ids[at[followed]], generator, decoding.coupling)
            followed = followed & (drawn == response_ids[at.clamp(max=len(response) - 1)])
            probability = (q if decoding.do_sample else raw).gather(-1, drawn[:, None]).squeeze(-1)
            entropy = torch.special.entr(raw).sum(-1)
            found.append(torch.stack((probability, entropy, followed, torch.isin(drawn, eos)), dim=-1).cpu())
            found_states.append(states)
        for number, steps in enumerate(torch.stack(found, dim=1)):
            *_, followed_steps, ends = steps.bool().unbind(-1)
            count = int(ends.int().argmax()) + 1 if ends.any() else len(steps)
            facts = steps[:count].tolist()
            tokens = [DraftedToken(n, p, e) for n, (p, e, *_) in enumerate(facts, start=1)]
            drafts.append(Draft(tokens, int(followed_steps[:count].sum()), bool(ends.any())))
            if head is not None:
                kept += [state[number] for state in found_states[:count]]
    trace = Trace(list(response), max_new_tokens, drafts, block=Pair(draft, None, None).block)
    if head is None:
        return trace, None
    kept_states = torch.stack(kept) if kept else torch.empty(0, head[1].hidden_size, dtype=torch.float16)
    return judged(trace, kept_states, *head), kept_states


@torch.no_grad()
def record_trees(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    decoding: Decoding,
    max_new_tokens: int,
    branches: int = 3,
    depth: int = 6,
    expanded: int = 4,
    seed: int = 0,
) -> Trace:
    """A generation of the target, and the tree that the draft would make at each of its positions.

    Behind each place the draft says its `branches` likeliest tokens, and the `expanded` likeliest paths of a level go
    on. Sampled texts are those of plain `generate` under `seed`, and the draft chooses under the same noise.

    Args:
        depth (`int`): levels of a tree; rules with a larger bound cannot be replayed.

    Returns:
        The trace; chains replay from it as well.
    """
    ids = torch.tensor([prompt], device=target.device)
    torch.manual_seed(seed)
    response = target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **decoding.generate_kwargs()
    )[0, len(prompt) :].tolist()
    torch.manual_seed(seed)
    sequences = Sequences(ids, [0], len(prompt) + max_new_tokens + depth + 1)
    law = Law(decoding.processors(), decoding, sequences, target.config.get_text_config().vocab_size)
    head = mounted_head(draft)
    pair = Pair.of(draft, StoppingConfig(rule="fixed", settings={"length": 1}))
    rule = Recorder(head is not None, branches, depth, expanded)
    taps = pair.taps(target, 1)
    if taps is not None:
        whole = torch.tensor([prompt + response])
        states = read_whole(target, whole, taps.layers)[1][0].to(draft.device)
        taps.kept[0].append(states[: len(prompt) - 1])
    drafter = pair.model_drafter(law, sequences, rule, set(end_of_sequence(target)), taps)
    drafts = []
    for position, token in enumerate(response):
        [nodes] = drafter.grow([rule.plan()]).nodes
        number = {id(node): i for i, node in enumerate(nodes)}
        parents = [-1 if node.parent is None else number[id(node.parent)] for node in nodes]
        path = walk(nodes, parents, response[position:])
        drafts.append(Draft([node.token for node in nodes], len(path), False, parents, path))
        drafter.commit([[]], ids, ids)  # the draft reads the target's next token itself
        sequences.append(0, [token])
        if taps is not None:
            taps.kept[0].append(states[None, len(prompt) - 1 + position])
        law.passed()
    late = head is not None and head[1].reads == "after"
    return Trace(response, max_new_tokens, drafts, judged_late=late, block=pair.block)


def walk(nodes: list[Node], parents: list[int], tokens: list[int]) -> list[int]:
    """The numbers of the nodes that are `tokens`, from the root on."""
    path, at = [], -1
    for token in tokens:
        at = next((i for i, p in enumerate(parents) if p == at and nodes[i].id == token), None)
        if at is None:
            break
        path.append(at)
    return path


class Recorder(StoppingRule):
    """Drafts trees as large as they are recorded."""

    def __init__(self, uses_head: bool, branches: int, depth: int, expanded: int):
        self.needs = frozenset({"probability", "entropy"} | ({"acceptance"} if uses_head else set()))
        self.widest = Eagle2(branches, 10**6, depth), expanded

    def plan(self, scope: Scope = ONE_TEXT) -> Plan:
        rule, expanded = self.widest
        plan = rule.plan(Scope(max_nodes=10**6))
        return replace(plan, expanded=expanded) if plan.branches > 1 else plan


def mounted_head(draft: PreTrainedModel) -> tuple[AcceptanceHead, AcceptanceHeadConfig] | None:
    """The head that is active on `draft`, if any."""
    try:
        layer, config = acceptance_layer(draft), active_head_config(draft)
    except ValueError:
        return None
    return layer.acceptance_head[layer.active_head_name], config


@torch.no_grad()
def judged(trace: Trace, states: Tensor, head: AcceptanceHead, config: AcceptanceHeadConfig) -> Trace:
    """`trace` as it would be with another head on the draft, whose tokens do not depend on it.

    Args:
        states: see `record_trace`.
    """
    tokens = [token for draft in trace.drafts for token in draft.tokens]
    facts = ([getattr(token, name) for token in tokens] for name in ("probability", "entropy", "position"))
    features = token_features(config.features, *(torch.tensor(values) for values in facts))
    late = config.reads == "after"
    if late:  # the state after a token is the one before the next
        states = torch.cat((states[1:], states[-1:]))
    probabilities = torch.sigmoid(config.acceptance_logits(head(states[None], features[None])))[0].tolist()
    drafts, first = [], 0
    for draft in trace.drafts:
        own = probabilities[first : first + len(draft.tokens)]
        first += len(draft.tokens)
        pairs = zip(draft.tokens, [*own[:-1], None] if late else own, strict=True)
        new = [replace(token, acceptance=p) for token, p in pairs]
        drafts.append(replace(draft, tokens=new))
    return replace(trace, drafts=drafts, judged_late=late)


def record_traces(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: list[list[int]],
    path: Path,
    decoding: Decoding,
    max_new_tokens: int,
    max_draft_length: int = 20,
    on_prompt: Callable[[], None] = lambda: None,
    keep_states: bool = False,
    max_length: int | None = None,
    batch_size: int = 64,
    branches: int = 1,
) -> None:
    """Appends a trace for each prompt to the JSONL file `path`; those that it holds already are not made again.

    Args:
        prompts: token ids. The target responds to `batch_size` of them at a time. A killed run goes on to the same
            file.
        max_new_tokens (`int`): most tokens generated for each prompt.
        max_draft_length (`int`): the longest draft that is recorded.
        on_prompt: called after each prompt.
        keep_states (`bool`): keep the draft's hidden states beside it, see `read_states`.
        max_length (`int`, *optional*): bound on prompt and response together.
        branches (`int`): tokens drafted behind one; from 2 on trees are recorded, which keep no states.

    Raises:
        ValueError: if a prompt leaves no room for two tokens, or if the file holds traces of something else.
    """
    bounds = [min(max_new_tokens, (max_length or math.inf) - len(prompt)) for prompt in prompts]
    if min(bounds, default=2) < 2:
        raise ValueError(
            f"the longest prompt has {max(map(len, prompts))} tokens, which leaves no room within {max_length}: leave "
            "such prompts out or raise max_length"
        )
    settings = {
        "pair": [model_signature(model.config) for model in (target, draft)], "head": mounted_head(draft) is not None,
        "decoding": asdict(decoding), "max_new_tokens": max_new_tokens, "max_length": max_length,
        "max_draft_length": max_draft_length, "states": keep_states,
    }  # fmt: skip
    if branches > 1:
        if keep_states:
            raise ValueError("trees are recorded without hidden states: leave --states out, or --branches")
        settings["branches"] = branches
    settings["prompts"] = [hashlib.sha256(repr(prompt).encode()).hexdigest()[:16] for prompt in prompts]
    lines = Lines(path, settings, f"{str(path)!r} holds traces made", grows="prompts")
    done = len(lines.found)
    drop_partial(states_path(path, 0).parent)
    eos = end_of_sequence(target)
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        responses = [[]] * len(batch)
        if first + len(batch) > done and branches == 1:
            responses = generate_responses(target, batch, decoding, max_new_tokens, eos, seed=first)
        for number, (prompt, response) in enumerate(zip(batch, responses, strict=True), start=first):
            if number >= done:
                bound = bounds[number]
                if branches > 1:
                    trace = record_trees(
                        target, draft, prompt, decoding, bound, branches, max_draft_length, seed=number
                    )
                else:
                    trace, states = record_trace(
                        target, draft, prompt, response[:bound], decoding, bound, max_draft_length, seed=number
                    )
                if keep_states:
                    write_atomically(states_path(path, number), save({"states": states}))
                lines.append(trace.to_json())
            on_prompt()
