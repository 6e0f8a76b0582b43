"""Enough of the Hub, on loopback, to upload and load models over HTTP, with its answers to those who may not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = r"/api/models/(?P<repo>[^/]+/[^/]+)"


class Refused(Exception):
    """An answer other than 200, with the headers by which the Hub tells its errors apart."""

    def __init__(self, status: int, message: str, code: str = "", **more: str):
        self.status = status
        self.headers = {"X-Error-Message": message, "X-Error-Code": code}
        self.content = {"error": message, "errors": [{"message": message}], **more}


@dataclass
class Repository:
    private: bool
    commits: list[str] = field(default_factory=lambda: ["0" * 40])
    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)  # names of files that were uploaded by LFS


class HubStandIn:
    """`with HubStandIn() as hub:` listens at `hub.endpoint`. `hub.users` maps access tokens to names."""

    def __init__(self):
        self.users: dict[str, str] = {}
        self.read_only: set[str] = set()  # tokens
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.unknown: list[str] = []  # requests that it does not know: a test must leave none

    def __enter__(self) -> HubStandIn:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add(self, repo: str, folder: Path, private: bool = False) -> None:
        """A repository with the files of `folder`."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.repositories[repo] = Repository(private, files=files)

    def user(self, authorization: str | None) -> str | None:
        """Whose token it is; None for no token."""
        if authorization is None:
            return None
        token = authorization.removeprefix("Bearer ")
        if token not in self.users:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.users[token]

    def readable(self, repo: str, authorization: str | None) -> Repository:
        """The repository. One that is missing and one that the reader may not see get the same answer."""
        user = self.user(authorization)
        found = self.repositories.get(repo)
        if found is None or (found.private and repo.split("/")[0] != user):
            status, message = (401, "Invalid username or password.") if user is None else (404, "Repository not found")
            raise Refused(status, message, "RepoNotFound")
        return found

    def writable(self, repo: str, authorization: str | None) -> Repository:
        found = self.readable(repo, authorization)
        self.check_rights(repo.split("/")[0], authorization)
        return found

    def check_rights(self, namespace: str, authorization: str | None) -> None:
        if self.user(authorization) is None:
            raise Refused(401, "Invalid username or password.")
        if self.user(authorization) != namespace or authorization.removeprefix("Bearer ") in self.read_only:
            raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn

    def log_message(self, *arguments) -> None:
        pass

    def answer(self) -> None:
        self.access = self.headers.get("Authorization")
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.split("?")[0]
        try:
            for method, pattern, respond in ROUTES:
                match = re.fullmatch(pattern, path)
                if match and self.command in method:
                    content, headers = respond(self, **match.groupdict())
                    break
            else:
                self.hub.unknown.append(f"{self.command} {self.path}")
                self.missing()
            status = 200
        except Refused as refused:
            status, content, headers = refused.status, refused.content, refused.headers
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), headers | {"Content-Type": "application/json"}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": len(content)}).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self):
        raise Refused(404, "Not found")

    do_HEAD = do_GET = do_POST = do_PUT = answer

    def create(self):
        asked = json.loads(self.body)
        repo = f"{asked['organization']}/{asked['name']}"
        self.hub.check_rights(asked["organization"], self.access)
        url = f"{self.hub.endpoint}/{repo}"
        if repo in self.hub.repositories:
            raise Refused(409, "You already created this model repo", url=url)
        self.hub.repositories[repo] = Repository(asked.get("visibility") == "private")
        return {"url": url}, {}

    def validate_yaml(self):
        if "license: wrong" in json.loads(self.body)["content"]:
            raise Refused(400, '"license" must be one of [apache-2.0, mit]')
        return {"errors": [], "warnings": []}, {}

    def preupload(self, repo, revision):
        self.hub.writable(repo, self.access)
        names = [file["path"] for file in json.loads(self.body)["files"]]
        modes = {name: "lfs" if name.endswith((".safetensors", ".png")) else "regular" for name in names}
        return {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}, {}

    def lfs_batch(self, repo):
        self.hub.writable(repo, self.access)
        objects = [
            o | {"actions": {"upload": {"href": f"{self.hub.endpoint}/storage/{o['oid']}"}}}
            for o in json.loads(self.body)["objects"]
        ]
        return {"transfer": "basic", "objects": objects}, {}

    def store(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "The hash is another")
        self.hub.objects[oid] = self.body
        return b"", {}

    def commit(self, repo, revision):
        repository = self.hub.writable(repo, self.access)
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.objects[value["oid"]]
                repository.large.add(value["path"])
            elif item["key"] == "deletedFile":
                del repository.files[value["path"]]
        repository.commits.append(hashlib.sha1(self.body).hexdigest())
        return {"commitOid": repository.commits[-1], "commitUrl": f"{self.hub.endpoint}/{repo}", "success": True}, {}

    def info(self, repo, revision=None):
        repository = self.hub.readable(repo, self.access)
        siblings = [{"rfilename": name} for name in repository.files]
        return {"id": repo, "sha": repository.commits[-1], "private": repository.private, "siblings": siblings}, {}

    def tree(self, repo, revision, folder):
        repository = self.hub.readable(repo, self.access)
        entries = [
            {"type": "file", "path": name, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
            for name, content in repository.files.items()
            if folder is None or name.startswith(folder + "/")
        ]
        if folder and not entries:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        return entries, {}

    def resolve(self, repo, revision, name):
        repository = self.hub.readable(repo, self.access)
        if name not in repository.files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        content = repository.files[name]
        headers = {"X-Repo-Commit": repository.commits[-1], "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if name in repository.large:
            headers |= {"X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": len(content)}
        return content, headers


ROUTES = [
    ("GET", "/api/agent-harnesses", _Handler.missing),  # asked for wherever an agent seems to be at work
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate_yaml),
    ("POST", MODEL + r"/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("PUT", r"/storage/(?P<oid>\w+)", _Handler.store),
    ("POST", MODEL + r"/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("GET", MODEL + r"(/revision/(?P<revision>[^/]+))?", _Handler.info),
    ("GET", MODEL + r"/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?", _Handler.tree),
    ("GET HEAD", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)", _Handler.resolve),
]
