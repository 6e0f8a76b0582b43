import logging
import re
import socket
import threading
import traceback
from http.client import IncompleteRead
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import URLError

import pytest
from completions_stand_in import CompletionsStandIn, completed
from models import card_of, prompt, prompts, similar_draft

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training import server
from hf_specdecpp.training.pipeline import served
from hf_specdecpp.training.responses import generate_responses
from hf_specdecpp.training.server import request_responses

EOS = 2
GREEDY = Decoding()
KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses that were made, in no time."""
    made = []
    monkeypatch.setattr(server.time, "sleep", made.append)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return made


@pytest.fixture
def request_from(tokenizer):
    """`request_responses` with less to say."""

    def request(stand_in, prompts=((5, 6, 7),), decoding=GREEDY, max_new_tokens=8, eos_token_ids=(EOS,), **more):
        url = getattr(stand_in, "url", stand_in)
        prompts = [list(p) for p in prompts]
        return request_responses(
            url, "org/70b", prompts, tokenizer, decoding, max_new_tokens, list(eos_token_ids), **more
        )

    return request


def test_a_served_target_responds_as_it_does_here(target, request_from):
    ids = [prompt(length, seed)[0].tolist() for seed, length in enumerate((3, 9, 5, 7))]
    here = [generate_responses(target, [p], Decoding(), 12, [])[0] for p in ids]
    eos = here[0][4]

    def answer(asked):
        assert asked["temperature"] == 0
        [ids] = generate_responses(target, [asked["prompt"]], Decoding(), asked["max_tokens"], asked["stop_token_ids"])
        return completed(ids, reason="stop" if ids[-1] in asked["stop_token_ids"] else "length")

    with CompletionsStandIn(answer) as stand_in:
        found = request_from(stand_in, ids, max_new_tokens=12, eos_token_ids=[eos], concurrency=2, vocab_size=264)
    assert found == [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in here]
    assert len({len(own) for own in found}) > 1


def test_a_request_leaves_nothing_to_the_servers_defaults(request_from):
    """vLLM and SGLang take the model's own penalties and warpers for what is missing."""
    with CompletionsStandIn(lambda asked: completed([9, EOS])) as stand_in:
        for decoding in (Decoding(top_p=0.5), Decoding(True, 0.7, 20, 0.9), Decoding(True, top_k=0)):
            assert request_from(stand_in, decoding=decoding) == [[9, EOS]]
    greedy, sampled, all_tokens = stand_in.asked
    assert greedy == {
        "model": "org/70b", "prompt": [5, 6, 7], "max_tokens": 8, "stop_token_ids": [EOS], "return_token_ids": True,
        "skip_special_tokens": False, "temperature": 0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    assert sampled == greedy | {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": sampled["seed"]}
    assert all_tokens == greedy | {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": sampled["seed"]}


def test_the_url_may_end_in_v1_or_not(request_from):
    with CompletionsStandIn(lambda asked: completed([9, EOS])) as stand_in:
        for url in (stand_in.url, stand_in.url + "/", stand_in.url.removesuffix("/v1"), stand_in.url[:-2]):
            request_from(url)
    assert stand_in.paths == ["/v1/completions"] * 4


def test_the_key_goes_into_the_header_if_there_is_one(request_from):
    with CompletionsStandIn(lambda asked: completed([9, EOS])) as stand_in:
        for key in (f"{KEY}\n", "", None):
            request_from(stand_in, api_key=key)
    assert [headers.get("Authorization") for headers in stand_in.headers] == [f"Bearer {KEY}", None, None]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (completed([9, 8, EOS]), [9, 8, EOS]),
        (completed([9, 8], reason="length"), [9, 8]),
        (completed([9, 8]), [9, 8, EOS]),  # a gateway that drops what ended the answer
        (completed([9, 8, 3]), [9, 8, 3]),
        (completed([9, 8], stop_reason=3), [9, 8, 3]),
        (completed([9, 77], stop_reason=77), [9, 77]),  # ends an answer only for the server
        (completed([EOS]), [EOS]),
        (completed(text="Hi"), "Hi"),
        (completed(text="Hi", reason="length"), "Hi"),
        (completed(text="Hi", stop_reason=3), "Hi"),
        (completed(text="Hi", matched_stop=3), "Hi"),
        (completed(text=""), [EOS]),
        (completed(text="longer than eight", reason="length"), "longer t"),
    ],
)
def test_ids_are_taken_as_they_are_and_text_is_tokenized(body, expected, request_from, tokenizer):
    if isinstance(expected, str):
        [choice] = body["choices"]
        end = choice.get("stop_reason") or choice.get("matched_stop") or EOS
        expected = tokenizer(expected)["input_ids"] + ([end] if choice["finish_reason"] == "stop" else [])
    with CompletionsStandIn(lambda asked: body) as stand_in:
        assert request_from(stand_in, eos_token_ids=[3, EOS]) == [expected]


def test_responses_keep_the_order_of_prompts_that_are_answered_backwards(request_from):
    answered = [threading.Event() for _ in range(5)]
    answered[-1].set()

    def answer(asked):
        [place] = asked["prompt"]
        assert answered[place].wait(60)  # only if all five are under way at once
        if place:
            answered[place - 1].set()
        return completed(text="abcde"[place])

    with CompletionsStandIn(answer) as stand_in:
        responses = request_from(stand_in, [[i] for i in range(5)], concurrency=5)
    assert [ids[0] for ids in responses] == sorted(ids[0] for ids in responses)
    assert len({ids[0] for ids in responses}) == 5


def test_no_more_requests_are_under_way_than_allowed(request_from):
    under_way, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def answer(asked):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        both.wait(60)
        with lock:
            under_way -= 1
        return completed([9, EOS])

    with CompletionsStandIn(answer) as stand_in:
        request_from(stand_in, [[i] for i in range(8)], concurrency=2)
    assert most == 2


def test_every_prompt_has_a_seed_that_a_resumed_run_gives_it_again(request_from):
    prompts = [[i] for i in range(50)]
    seeds = []
    with CompletionsStandIn(lambda asked: completed([9, EOS])) as stand_in:
        for seed in (3, 3, 4):
            request_from(stand_in, prompts, Decoding(True), seed=seed)
            seeds.append({asked["prompt"][0]: asked["seed"] for asked in stand_in.asked})
            stand_in.asked.clear()
    assert seeds[0] == seeds[1]
    assert len({*seeds[0].values(), *seeds[2].values()}) == 100
    assert all(0 <= seed < 2**31 for seed in seeds[0].values())


@pytest.mark.parametrize("trouble", [None, (429, {}), (500, b"Internal Server Error"), (503, b"")])
def test_what_may_pass_is_asked_again_after_a_growing_pause(trouble, request_from, pauses):
    troubles = [trouble, trouble]
    with CompletionsStandIn(lambda asked: troubles.pop() if troubles else completed([9, EOS])) as stand_in:
        assert request_from(stand_in) == [[9, EOS]]
    assert stand_in.asked == stand_in.asked[:1] * 3
    assert len(pauses) == 2 and 0 < pauses[0] < pauses[1]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (URLError(ConnectionResetError("reset")), True),
        (URLError(TimeoutError("timed out")), True),
        (TimeoutError("timed out"), True),
        (IncompleteRead(b"{"), True),
        (URLError(ConnectionRefusedError("refused")), False),
        (URLError(socket.gaierror("unknown name")), False),
    ],
)
def test_a_lost_connection_may_pass_and_one_never_made_will_not(error, passes, request_from, pauses, monkeypatch):
    monkeypatch.setattr(server, "build_opener", lambda *handlers: SimpleNamespace(open=Mock(side_effect=error)))
    with pytest.raises(ValueError, match="answered nothing: "):
        request_from("http://host/v1")
    assert pauses == (list(server.PAUSES) if passes else [])


def test_what_does_not_pass_is_told_in_the_end(request_from, pauses):
    trouble = 503, {"error": {"message": "engine is \n dead"}}
    told = "503 to a prompt of 3 tokens for the model 'org/70b': engine is dead"
    with CompletionsStandIn(lambda asked: trouble) as stand_in, pytest.raises(ValueError, match=told):
        request_from(stand_in)
    assert pauses == list(server.PAUSES)
    assert len(stand_in.asked) == len(pauses) + 1


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {"error": "Unauthorized"}, "401.*it wants another API key .*--server-key-variable"),
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, "401.*it wants another API key"),
        (403, b"<html>Forbidden</html>", "403.*it wants another API key"),
        (404, {"object": "error", "message": "The model `org/70b` does not exist."}, "404.*'org/70b'.*/v1/models"),
        (
            400,
            {"error": {"message": "maximum context length is 2 tokens"}},
            "400 to a prompt of 3 tokens.*length is 2",
        ),
        (400, {"message": f"no field Bearer {KEY}"}, r"no field Bearer \*\*\*"),
        (422, {"detail": "prompt must be a string"}, "422 .*prompt must be a string"),
        (307, b"", "answered 307 .*: Temporary Redirect"),
        (200, b"<html>Sign in</html>", "other than a completion: <html>Sign in"),
        (200, b"", "other than a completion"),
        (200, {"headers": {"Authorization": f"Bearer {KEY}"}}, "other than a completion"),
        (200, {"choices": []}, "other than a completion"),
        (200, {"choices": [{"finish_reason": "stop"}]}, "other than a completion"),
        (200, {"choices": ["Hi"]}, "other than a completion"),
        (200, ["Hi"], "other than a completion"),
        (200, completed(["Hi"]), "other than a completion"),
        (200, completed(text=None), "other than a completion"),
        (200, completed(text="", reason="length"), "0 tokens and finish_reason 'length', which is no whole answer"),
        (200, completed(text="Hi", reason="content_filter"), "finish_reason 'content_filter'"),
        (200, completed([9], reason=None), "finish_reason None"),
        (200, completed([9, 260, EOS]), "the token 260, which the target's vocabulary of 260 lacks: serve the target"),
        (200, completed([9, -1, EOS]), "the token -1, which"),
    ],
)
def test_what_will_not_pass_is_one_sentence_at_once(status, body, told, request_from, pauses, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with CompletionsStandIn(lambda asked: (status, body)) as stand_in, pytest.raises(ValueError, match=told) as error:
        request_from(stand_in, api_key=KEY)
    assert stand_in.paths == ["/v1/completions"] and pauses == []
    assert str(error.value).startswith(f"the server at {stand_in.url}/completions answered ")
    assert "\n" not in str(error.value) and len(str(error.value)) < 450
    written = "".join((*traceback.format_exception(error.value), caplog.text, *capfd.readouterr()))
    assert KEY not in written


def test_a_server_that_is_not_there_is_told_at_once(request_from, pauses):
    with CompletionsStandIn(lambda asked: None) as stand_in:
        pass
    with pytest.raises(ValueError, match=re.escape(f"{stand_in.url}/completions answered nothing: [Errno")):
        request_from(stand_in)
    assert pauses == []


def test_one_hopeless_answer_ends_the_work(request_from):
    with CompletionsStandIn(lambda asked: (400, {"message": "too long"})) as stand_in, pytest.raises(ValueError):
        request_from(stand_in, [[i] for i in range(500)], concurrency=2)
    assert len(stand_in.asked) < 500


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [
        ("localhost:8000", None, "URL must look like"),
        ("file:///etc", None, "URL must look like"),
        (f"http://me:{KEY}@host/v1", None, "no password"),
        ("http://host /v1", None, "URL must look like"),
        ("http://host:port/v1", None, "answered nothing"),
        ("http:///v1", None, "answered nothing"),
        ("http://host/v1", KEY + "\nX-More: 1", "API key has"),
        ("http://host/v1", KEY + "…", "API key has"),
    ],
)
def test_a_bad_url_or_key_is_one_sentence_without_the_key(url, key, told, request_from, pauses):
    with pytest.raises(ValueError, match=told) as error:
        request_from(url, api_key=key)
    assert KEY not in "".join(traceback.format_exception(error.value)) and pauses == []


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://10.0.0.1:8000/v1", True), ("https://host/v1", False), ("http://localhost:8000", False)],
)
def test_a_key_that_others_could_hear_is_warned_of(url, warned, request_from, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("hf_specdecpp"), "propagate", True)
    request_from(url, [], api_key=KEY)
    assert ("unencrypted: use https" in caplog.text) == warned and KEY not in caplog.text


def test_no_key_goes_anywhere_unless_its_variable_is_named(target, tokenizer, monkeypatch):
    """Not even that of the variable that all such servers' clients know."""
    rows = prompts(tokenizer, 2)
    card = card_of((target, similar_draft(target)), rows)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OURS", "sk-ours")
    with CompletionsStandIn(lambda asked: completed([9, EOS])) as stand_in:
        for variable in (None, "OURS"):
            served(stand_in.url, "m", tokenizer, target, card, variable)([[5, 6]], seed=0)
    assert [headers.get("Authorization") for headers in stand_in.headers] == [None, "Bearer sk-ours"]
    with pytest.raises(ValueError, match="the environment has no MISSING: put the server's API key in it"):
        served(stand_in.url, "m", tokenizer, target, card, "MISSING")


def test_tokens_that_pad_the_targets_vocabulary_are_its_own(target, tokenizer):
    card = card_of((target, similar_draft(target)), prompts(tokenizer, 2))
    with CompletionsStandIn(lambda asked: completed([263, EOS])) as stand_in:
        assert served(stand_in.url, "m", tokenizer, target, card)([[5]], seed=0) == [[263, EOS]]


def test_no_prompts_need_no_server(request_from):
    assert request_from("http://127.0.0.1:9/v1", []) == []
