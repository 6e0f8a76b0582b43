"""Prompts for code: functions of Python's standard library, their bodies cut off behind the docstring.

    python recipes/smollm2-135m/docstring_prompts.py --output runs/docstrings.jsonl

The library (PSF licence) is read where Python keeps it; nothing of it is run. A line of the output has `prompt`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from pathlib import Path

SHORTEST, LONGEST = 60, 1200  # characters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    skipped = {"test", "tests", "idlelib", "site-packages", "lib2to3"}
    found = sorted(args.library.rglob("*.py"))
    files = (path for path in found if not skipped & set(path.relative_to(args.library).parts))
    prompts = dict.fromkeys(prompt for path in files for prompt in prompts_of(path))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    print(f"{len(prompts)} prompts in {args.output}")


def prompts_of(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # some files of the library are there to be wrong
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and not node.name.startswith("__"):
            node.decorator_list, node.body = [], node.body[:1]
            found.append(ast.unparse(node))
    return [prompt for prompt in found if SHORTEST <= len(prompt) <= LONGEST]


if __name__ == "__main__":
    main()
