"""An OpenAI-compatible server on loopback that answers completions as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completed(ids: list[int] | None = None, text: str = "", reason: str | None = "stop", **more: Any) -> dict:
    """The body of a completion as vLLM sends it; without `ids`, as servers do that know no `return_token_ids`."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, **more}
    return {"object": "text_completion", "choices": [choice if ids is None else choice | {"token_ids": ids}]}


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the default of 5 makes a burst of connections wait for seconds


class CompletionsStandIn:
    """`with CompletionsStandIn(answer) as server:` listens at `server.url`.

    `answer` gets the fields of a request and returns a body (bytes or JSON), a status and a body, or None to hang up.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Any]):
        self.answer = answer
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> CompletionsStandIn:
        self.server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"stand_in": self}))
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stand_in: CompletionsStandIn

    def log_message(self, *arguments) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.stand_in.paths.append(self.path)
        self.stand_in.headers.append(dict(self.headers))
        self.stand_in.asked.append(asked)
        answer = self.stand_in.answer(asked)
        if answer is None:
            return
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if 300 <= status < 400:
            self.send_header("Location", f"{self.stand_in.url}/elsewhere")
        self.end_headers()
        self.wfile.write(content)
