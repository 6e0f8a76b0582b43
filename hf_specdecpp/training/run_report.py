"""What a command of several stages did: a JSON by which it goes on where it was killed, and Markdown for people."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState

from ..evidence.conditions import conditions, public
from ..evidence.files import check_settings, read_settings, write_atomically


class RunReport:
    """The stages of a run, in the `report.json` of its folder, with the conditions they ran in.

    Args:
        folder (`Path`): of the run, new or begun.
        settings (`dict`): what the run is of.

    Raises:
        ValueError: if the folder holds a run with other settings, of which a stage is done.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.path, settings = folder / "report.json", public_settings(settings)
        before = read_settings(self.path) or {}
        stages = before.get("stages", {})
        if any("minutes" in stage for stage in stages.values()):
            check_settings(before.get("settings", {}), settings, f"{str(folder)!r} holds a run")
        self.process = PartialState()
        self.process.wait_for_everyone()  # all have read what is done before one writes
        self.content = conditions() | {
            "processes": self.process.num_processes,
            "settings": settings,
            "stages": stages,
        }

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `work` returns, now or in the run that was killed after it, with its minutes on the console."""
        found = self.content["stages"].setdefault(name, {"starts": 0})
        if "minutes" not in found:
            found["starts"] += 1
            self.write()
            self.say(name)
            start = time.perf_counter()
            found["result"] = work()
            found["minutes"] = round((time.perf_counter() - start) / 60, 2)
            self.write()
        self.say(f"{name} took {found['minutes']:.1f} minutes")
        return found["result"]

    def write(self) -> None:
        if self.process.is_main_process:
            write_atomically(self.path, json.dumps(self.content, indent=1))

    def say(self, line: str) -> None:
        if self.process.is_main_process:
            print(line, flush=True)

    def markdown(self) -> str:
        """The conditions, and a table of the stages' minutes."""
        c, stages = self.content, self.content["stages"]
        libraries = ", ".join(f"{name} {number}" for name, number in c["versions"].items() if number)
        rows = [f"| {name} | {minutes(found)} |" for name, found in stages.items()]
        total = sum(found["minutes"] for found in stages.values())
        return f"""\
`{c["command"]}` at revision {c["git_revision"]}; {c["settings"]["dtype"]} on {c["device"]}, {c["processes"]} x
{c["threads"]} threads; {libraries}.

| stage | minutes |
| --- | ---: |
{chr(10).join(rows)}
| all | {total:.1f} |
"""


def minutes(stage: dict[str, Any]) -> str:
    return f"{stage['minutes']:.1f}" + (f", the last of {stage['starts']} starts" if stage["starts"] > 1 else "")


def public_settings(value: Any) -> Any:
    """`value` with every word in it as other machines may read it, see `public`."""
    if isinstance(value, dict):
        return {name: public_settings(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [public_settings(part) for part in value]
    return public(value) if isinstance(value, str) else value
