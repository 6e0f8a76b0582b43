"""Lets mkdocstrings read arguments as transformers writes them: ``name (`int`, *optional*), other (`int`): text``."""

import re

import griffe

ENTRY = re.compile(r"^( +)(\w+ \(.*\)): (.*)$", re.MULTILINE)


class TransformersTypes(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ENTRY.sub(plain, obj.docstring.value)


def plain(entry: re.Match) -> str:
    """An entry for each name, with its type in plain words."""
    indent, names, text = entry.groups()
    *others, last = re.split(r"(?<=\)), (?=\w+ \()", names.replace("`", "").replace("*optional*", "optional"))
    lines = [f"{name}: see `{last.partition(' ')[0]}`." for name in others]
    return "\n".join(indent + line for line in [*lines, f"{last}: {text}"])
