"""Writing that leaves a file whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file `path` by one that holds `text`."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


def changed(path: Path, settings: dict[str, Any]) -> list[str]:
    """The names of `settings` that have another value in the JSON file `path`; none where there is no such file."""
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    return [name for name, value in json.loads(json.dumps(settings)).items() if value != before[name]]
