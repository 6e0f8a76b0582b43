"""`specdecpp push`."""

from __future__ import annotations

from pathlib import Path

import typer

from .app import console, speaks_plainly


@speaks_plainly
def push(
    head: Path = typer.Argument(help="Folder that a head was saved in."),
    repo_id: str = typer.Argument(help="Repository on the Hub, user/name; created if there is none."),
    draft: str = typer.Option(None, help="Hub id of the draft, if the head was trained with a folder."),
    target: str = typer.Option(None, help="Hub id of the target, likewise."),
    private: bool = typer.Option(False, "--private", help="Hide the repository from others."),
    license: str = typer.Option("apache-2.0", help="Of the head."),
    data: list[str] = typer.Option([], help="Hub dataset behind the labels; repeat it for more.", show_default=False),
) -> None:
    """Upload a head to the Hub with a model card, as whoever `hf auth login` or HF_TOKEN says."""
    from ..hub.push import push_head

    url = push_head(head, repo_id, draft=draft, target=target, private=private, license=license, data=data)
    console.print(f"head uploaded to {url}", soft_wrap=True)
