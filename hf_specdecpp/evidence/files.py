"""Files that are there whole or not at all, and long jobs that go on where they were killed."""

from __future__ import annotations

import errno
import json
import os
import reprlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Of what is being written, and of what a killed writer left.
PARTIAL = ".partial-"


@contextmanager
def one_sentence_if_full(path: Path) -> Iterator[None]:
    """Turns the errors of a full disk into a `ValueError` that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors writes files by itself and has the system's error in its words only.
        if getattr(error, "errno", None) not in FULL and not any(f"(os error {n})" in str(error) for n in FULL):
            raise
        raise ValueError(
            f"the disk of {str(path.parent)!r} is full: free some space and run the same command again, what is "
            "written stays"
        ) from error


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A place to write the file or folder `path` to, of the same name in a folder of its own.

    When the context ends, what is there becomes `path`, in place of an older file; if it fails, nothing is left.

    Raises:
        ValueError: if the disk is full.
    """
    with one_sentence_if_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
            partial = Path(folder) / path.name
            yield partial
            for written in [*partial.rglob("*")] if partial.is_dir() else [partial]:
                synchronise(written)
            os.replace(partial, path)
        synchronise(path.parent)


def synchronise(path: Path) -> None:
    """Waits until a file, or the names in a folder, would survive a power cut."""
    if path.is_dir() and os.name != "posix":  # elsewhere folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces the file `path` by one that holds `content`, text as UTF-8.

    Raises:
        ValueError: if the disk is full.
    """
    with atomically(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def drop_partial(folder: Path) -> None:
    """Removes what a writer that was killed left in `folder`, of which there must be no other now."""
    for left in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)


def read_settings(path: Path) -> dict[str, Any] | None:
    """The settings in the JSON file `path`; `None` where there is no such file.

    Raises:
        ValueError: if it holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} is damaged: choose another output, or remove it with what is beside it")
    return found


def check_settings(found: dict[str, Any], settings: dict[str, Any], holds: str, grows: str | None = None) -> None:
    """Compares the settings that a job was begun with, `found`, with those that it is to go on with.

    Args:
        holds: what is there, such as `"'runs/labels' holds labels made"`.
        grows (`str`, *optional*): the name of a list of which one may go on where the other ends.

    Raises:
        ValueError: if they differ, also in names, as those of another version of this library do.
    """
    settings = json.loads(json.dumps(settings))  # with lists for tuples, as `found` has them
    differ = {name: (found.get(name), settings.get(name)) for name in settings.keys() | found.keys()}
    differ = {name: (there, asked) for name, (there, asked) in sorted(differ.items()) if there != asked}
    if grows in differ and all(a == b for a, b in zip(found.get(grows) or [None], settings[grows], strict=False)):
        del differ[grows]
    if differ:
        values = ((name, shown(there), shown(asked)) for name, (there, asked) in differ.items())
        named = ", ".join(f"{name} ({there} there, {asked} asked for)" for name, there, asked in values)
        raise ValueError(f"{holds} with another {named}: go on as it was begun, or choose another output")


def shown(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


def keep_settings(
    path: Path, settings: dict[str, Any], holds: str, grows: str | None = None, writes: bool = True
) -> None:
    """Writes into the JSON file `path` what a long job is of, or, where it was begun, compares, see `check_settings`.

    Args:
        writes (`bool`): whether this process writes; the others of one job compare only.

    Raises:
        ValueError: if the job was begun with other settings, if the file is damaged, or if the disk is full.
    """
    found, settings = read_settings(path), json.loads(json.dumps(settings))
    if found is not None:
        check_settings(found, settings, holds, grows)
        if grows:
            settings = settings | {grows: max(settings[grows], found[grows], key=len)}
    if writes and settings != found:
        write_atomically(path, json.dumps(settings, indent=1) + "\n")


class Lines:
    """A file that a long job appends lines to, with its settings beside it. Killed, it goes on behind the last line.

    Args:
        path: of the lines; the settings are in `.settings.json` beside it.
        settings, holds, grows: see `keep_settings`.

    Attributes:
        found (`list[str]`): the lines that are there already.

    Raises:
        ValueError: if the lines are of a job with other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], holds: str, grows: str | None = None):
        self.path, beside = path, path.with_suffix(".settings.json")
        content = path.read_bytes() if path.exists() else b""
        end = content.rfind(b"\n") + 1
        if end and not beside.exists():
            raise ValueError(f"{holds}, but not {beside.name!r}, which says with what settings: choose another output")
        keep_settings(beside, settings, holds, grows)
        if end < len(content):  # only half a line goes, which needs no space
            os.truncate(path, end)
        self.found = content[:end].decode().split("\n")[:-1]

    def append(self, line: str) -> None:
        """Writes one more line; it is on the disk when this returns.

        Raises:
            ValueError: if the disk is full.
        """
        with one_sentence_if_full(self.path), self.path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that its suffix names; an SVG is the same each time, and its text stays text."""
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix == ".svg" else None
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=150, metadata=metadata)
