"""A target's responses from an OpenAI-compatible server: what `responses.py` is for a target that runs elsewhere."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException, IncompleteRead
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..decoding import Decoding

logger = logging.get_logger(__name__)

PAUSES = (1, 4, 16)  # seconds before another try
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT = 600  # seconds; a request may wait long for its turn
PASSING = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, TimeoutError, IncompleteRead)
ADVICE = dict.fromkeys((401, 403), "it wants another API key (`api_key`, or --server-key-variable)") | {
    404: "it has no such model or no completions; /v1/models lists what it has"
}


class EveryAnswer(HTTPErrorProcessor):
    """Raises for no status, and follows no redirect, which would take the key elsewhere."""

    def http_response(self, request, response):
        return response

    https_response = http_response


def request_responses(
    url: str,
    model: str,
    prompts: list[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    decoding: Decoding,
    max_new_tokens: int,
    eos_token_ids: list[int],
    seed: int = 0,
    concurrency: int = 32,
    api_key: str | None = None,
    vocab_size: int | None = None,
) -> list[list[int]]:
    """Token ids that a served model answers to each prompt, the end-of-sequence token included where it was reached.

    Prompts go to `/v1/completions` as token ids, so the chat template is ours; vLLM, SGLang and llama.cpp take them.
    The answer's ids come back from servers that know `return_token_ids`, as vLLM and SGLang do. The text of others is
    tokenized again: rare tokens may then differ from those that were generated. The labels are valid all the same,
    because they judge whatever tokens are stored.

    Args:
        url: with or without `/v1`, such as `http://localhost:8000/v1`.
        model: the server's name for it.
        prompts: token ids, one list a prompt.
        tokenizer: the target's.
        max_new_tokens (`int`): the longest answer, in tokens.
        eos_token_ids: tokens that end an answer.
        seed (`int`): of the draws; the seed of each request follows from it and from the prompt's place in `prompts`.
        concurrency (`int`): requests under way at once.
        api_key: sent with each request; it is never part of an error.
        vocab_size (`int`, *optional*): of the target; left out, the tokenizer's. Tokens beyond are refused.

    Raises:
        ValueError: for a server that is not there, refuses, or answers nonsense. What may pass (a lost connection, the
            statuses 429 and 5xx) is asked again first, `len(PAUSES)` times.
    """
    key = (api_key or "").strip()
    if not re.fullmatch("https?://[!-?A-~]+", url):
        raise ValueError("the server's URL must look like http://localhost:8000/v1, with no password or space in it")
    if not re.fullmatch("[!-~]*", key):
        raise ValueError("the API key has a space, a line break or a foreign letter in it: copy it once more")
    url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
    # Gateways are known to turn Python's own user agent away.
    headers = {"Content-Type": "application/json", "User-Agent": "hf_specdecpp"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
        if url.startswith("http:") and urlsplit(url).hostname not in LOOPBACK:
            logger.warning(f"the API key goes to {url} unencrypted: use https where others could listen")
    vocab_size = vocab_size or len(tokenizer)
    fields = {
        "model": model,
        "max_tokens": max_new_tokens,
        "stop_token_ids": eos_token_ids,
        "return_token_ids": True,
        "skip_special_tokens": False,
        # What is left out, vLLM and SGLang take from the model's generation config, be it greedy decoding or not.
        "temperature": 0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    if decoding.do_sample:
        # To keep all tokens is 0 or -1 in vLLM, but only -1 in SGLang.
        fields |= {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": decoding.top_k or -1}
    opener = build_opener(EveryAnswer)
    one_at_a_time = threading.Lock()  # fast tokenizers fail when two threads use one

    def respond(index: int, prompt: list[int]) -> list[int]:
        asked = fields | {"prompt": prompt}
        if decoding.do_sample:
            asked["seed"] = random.Random(f"{seed} {index}").getrandbits(31)
        request = Request(url, json.dumps(asked).encode(), headers)
        for pause in (*PAUSES, None):
            try:
                with opener.open(request, timeout=TIMEOUT) as response:
                    status, body = response.status, response.read().decode(errors="replace")
                if status == 200:
                    with one_at_a_time:
                        return response_ids(body, tokenizer, eos_token_ids, vocab_size)[:max_new_tokens]
                passing = status == 429 or status >= 500
                said = ADVICE.get(status) or excerpt(body) or response.reason
                trouble = f"{status} to a prompt of {len(prompt)} tokens for the model {model!r}: {said}"
            except (OSError, HTTPException) as error:
                cause = error.reason if isinstance(error, URLError) else error
                passing, trouble = isinstance(cause, PASSING), f"nothing: {cause}"
            except ValueError as error:
                passing, trouble = False, str(error)
            if pause is None or not passing:
                sentence = f"the server at {url} answered {trouble}"
                raise ValueError(sentence.replace(key, "***") if key else sentence)  # servers may repeat the key
            time.sleep(pause)

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(respond, range(len(prompts)), prompts))


def response_ids(
    body: str, tokenizer: PreTrainedTokenizerBase, eos_token_ids: list[int], vocab_size: int
) -> list[int]:
    """The token ids in a server's answer."""
    try:
        choice = json.loads(body)["choices"][0]
        ids, reason = choice.get("token_ids"), choice["finish_reason"]
        if ids is None:
            ids = tokenizer(choice["text"], add_special_tokens=False)["input_ids"]
        ids = [int(i) for i in ids]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f"something other than a completion: {excerpt(body)}") from None
    beyond = [i for i in ids if not 0 <= i < vocab_size]
    if beyond:
        raise ValueError(
            f"the token {beyond[0]}, which the target's vocabulary of {vocab_size} lacks: serve the target itself"
        )
    if reason == "stop":
        # The token that ended the answer is not in its text, nor in the ids of some gateways. vLLM and SGLang name it.
        named = choice.get("stop_reason"), choice.get("matched_stop")
        if not ids or ids[-1] not in (*named, *eos_token_ids):
            ids += [i for i in (*named, tokenizer.eos_token_id, *eos_token_ids) if i in eos_token_ids][:1]
    if not ids or reason not in ("stop", "length"):
        raise ValueError(f"{len(ids)} tokens and finish_reason {reason!r}, which is no whole answer")
    return ids


def excerpt(body: str) -> str:
    """The message in a server's answer, or the answer's beginning."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        content = json.loads(body)
        body = content.get("error", content)["message"]
    return " ".join(str(body).split())[:300]
