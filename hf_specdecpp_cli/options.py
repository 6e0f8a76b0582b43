"""Options of commands are described once: where the library describes what they fill."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

ENTRY = re.compile(r"^((?:\w+(?: \([^)]*\))?(?:, )?)+): (.*)$")


class Described:
    """A class or a function of the library, whose arguments are options of a command.

    What its docstring says of them is the options' help, and its literal defaults are theirs. Both are read from the
    source, since importing the library takes seconds, which `--help` does not have.

    Args:
        module (`str`): relative to the library, like `"bench.run"`.
        name (`str`): of the class or function in it.
    """

    def __init__(self, module: str, name: str):
        self.name, node = f"{module}.{name}", definition(module, name)
        self.texts, self.defaults = descriptions(ast.get_docstring(node) or ""), defaults(node)

    def option(self, name: str, *flags: str, note: str = "", **more: Any) -> Any:
        """The option for the argument `name`.

        Args:
            flags: its names, where they are not the parameter's.
            note (`str`): what only the command has to say of it.
            more: of `typer.Option`; without `default` it is the argument's own, or the option is required.
        """
        if name not in self.texts:
            raise LookupError(f"the docstring of {self.name} does not describe {name!r}")
        default = more.pop("default", self.defaults.get(name, ...))
        if isinstance(default, (list, tuple)):
            default, note = list(default), f"{note} Repeat it for more.".strip()
        if default is None or default == []:
            more = {"show_default": False} | more
        text = f"{self.texts[name]} {note}".strip()
        return typer.Option(default, *flags, help=text, **more)


@cache
def module_of(name: str) -> ast.Module:
    """The syntax of a module of the library, which is not run."""
    [folder] = find_spec("hf_specdecpp").submodule_search_locations
    return ast.parse(Path(folder, *name.split(".")).with_suffix(".py").read_text())


def definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    return next(node for node in module_of(module).body if getattr(node, "name", None) == name)


def descriptions(docstring: str) -> dict[str, str]:
    """Of each argument in a docstring of Google's style, its text as a sentence without types and markup."""
    _, _, section = docstring.partition("Args:\n")
    lines = section.partition("\n\n")[0].splitlines()
    entries: list[tuple[list[str], str]] = []
    for line in lines:
        found = ENTRY.match(line.strip()) if line.startswith("    ") and line[4:5] != " " else None
        if found:
            names = re.sub(r" \([^)]*\)", "", found[1]).split(", ")
            entries.append((names, found[2]))
        else:
            names, text = entries.pop()
            entries.append((names, f"{text} {line.strip()}"))
    return {name: sentence(text) for names, text in entries for name in names}


def sentence(text: str) -> str:
    text = re.sub(r",? see `[^`]*`(, `[^`]*`)*", "", text)  # names of code say nothing to users of commands
    text = text.replace("`", "").strip()
    return text[:1].upper() + text[1:]


def defaults(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    """The defaults that are literals, of the fields of a dataclass or the arguments of a function."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.posonlyargs + node.args.args
        given = [*zip(arguments[::-1], node.args.defaults[::-1], strict=False)]
        given += [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        values = {argument.arg: value for argument, value in given}
    else:
        values = {field.target.id: field.value for field in node.body if isinstance(field, ast.AnnAssign)}
    found = {}
    for name, value in values.items():
        if isinstance(value, ast.Call):  # dataclasses.field(default=...)
            value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
        if isinstance(value, (ast.Constant, ast.List, ast.Tuple)):
            found[name] = ast.literal_eval(value)
    return found
