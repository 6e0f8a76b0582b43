"""`specdecpp push`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import console, speaks_plainly
from .options import Described

HEAD = Described("hub.push", "push_head")


@speaks_plainly
def push(
    head: Path = typer.Argument(help="Folder that a head was saved in."),
    repo_id: str = typer.Argument(help="Repository on the Hub, user/name; created if there is none."),
    draft: str = HEAD.option("draft"),
    target: str = HEAD.option("target"),
    private: bool = HEAD.option("private", "--private"),
    license: str = HEAD.option("license"),
    data: list[str] = HEAD.option("data"),
) -> None:
    """Upload a head to the Hub with a model card, as whoever `hf auth login` or HF_TOKEN says."""
    from hf_specdecpp.hub.push import push_head

    url = push_head(head, repo_id, draft=draft, target=target, private=private, license=license, data=data)
    console.print(f"head uploaded to {url}", soft_wrap=True)
