"""Options say what the library says of what they fill, and asking for help imports no library."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import hf_specdecpp
from hf_specdecpp.bench.run import Settings
from hf_specdecpp_cli import app
from hf_specdecpp_cli.options import Described, descriptions

COMMANDS = ["chat", "demo", "bench", "label", "train", "trace", "calibrate", "compile", "push"]


def test_a_docstring_is_read_argument_by_argument():
    found = descriptions(
        """What it is.

Args:
    first (`int`), second (`str`, *optional*): numbers `of`
        two lines: "a", see `that`.
    third: called with each.

Raises:
    ValueError: never.
"""
    )
    assert found == {
        "first": 'Numbers of two lines: "a".', "second": 'Numbers of two lines: "a".', "third": "Called with each.",
    }  # fmt: skip


def test_an_option_has_the_text_and_the_default_of_its_field():
    described = Described("bench.run", "Settings")
    count = described.option("count", min=1, note="More.")
    assert count.default == Settings.__dataclass_fields__["count"].default == 12
    assert count.help == "Prompts of each set. More." and count.min == 1
    assert described.option("threads").default is None and described.option("methods").default is ...
    with pytest.raises(LookupError, match=r"bench.run.Settings does not describe 'colour'"):
        described.option("colour")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described(command):
    help = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert help.exit_code == 0 and "--verbose" in help.output
    for parameter in typer.main.get_command(app).commands[command].params:
        if parameter.name != "help" and parameter.param_type_name == "option":
            assert parameter.help, parameter.name


def test_a_group_does_nothing_for_its_subcommands(monkeypatch):
    monkeypatch.setattr("hf_specdecpp_cli.bench.measure", None)
    assert CliRunner().invoke(app, ["bench", "report", "--help"]).exit_code == 0


def test_a_head_without_its_draft_is_refused_before_anything_is_loaded():
    done = CliRunner().invoke(app, ["compile", "--target", "no/such-target", "--head", "head"])
    assert done.exit_code == 1 and "--head is of a draft: give --draft too" in " ".join(done.stderr.split())


def test_help_imports_no_library():
    """`specdecpp --help` takes less than a second, as long as this holds."""
    code = """
import sys
from typer.testing import CliRunner
from hf_specdecpp_cli import app
for command in sys.argv[1:]:
    assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0
heavy = {"torch", "transformers", "peft", "datasets", "numpy", "evaluate", "matplotlib", "hf_specdecpp"}
print(sorted(heavy & set(sys.modules)))
"""
    shown = subprocess.run(
        [sys.executable, "-c", code, "", "bench report", *COMMANDS], capture_output=True, text=True,
        cwd=f"{hf_specdecpp.__path__[0]}/..",
    )  # fmt: skip
    assert shown.stdout == "[]\n", shown.stderr
