"""What is left when a writer is killed or the disk is full, and how a job goes on."""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from hf_specdecpp.evidence import files
from hf_specdecpp.evidence.files import Lines, atomically, keep_settings, save_figure, write_atomically

MODULE = files.__file__


@contextmanager
def full_disk():
    """Files may grow to a few kilobytes only, which ends in the system's own error.

    A block, since pytest writes its own report, often to a longer file, before a fixture would end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


KILLED = """
import importlib.util, os, random, signal, sys, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
folder, path, rng = Path(sys.argv[2]), Path(sys.argv[2]) / "lines.jsonl", random.Random(0)
expected = [f"{n} " + "x" * rng.choice([0, 50, 300_000]) for n in range(150)]


def job(told=None):
    lines = files.Lines(path, {"seed": 0}, "it holds lines")
    for n in range(len(lines.found), len(expected)):
        files.write_atomically(folder / f"{n}.state", expected[n])
        lines.append(expected[n])
        if told is not None:
            os.write(told, b".")


acknowledged = 0
for _ in range(50):
    told_in, told_out = os.pipe()
    child = os.fork()
    if not child:
        job(told_out)
        os._exit(0)
    os.close(told_out)
    for _ in range(rng.randrange(4)):
        acknowledged += len(os.read(told_in, 1))
    time.sleep(rng.uniform(0, 0.004))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while told := os.read(told_in, 4096):
        acknowledged += len(told)
    os.close(told_in)
    content = path.read_text() if path.exists() else ""
    whole = content.split("\\n")[:-1]
    assert whole == expected[: len(whole)] and len(whole) >= acknowledged, (len(whole), acknowledged)
    for n in range(len(expected)):
        state = folder / f"{n}.state"
        assert state.read_text() == expected[n] if state.exists() else n >= len(whole)
assert acknowledged
job()
assert path.read_text() == "".join(line + "\\n" for line in expected)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fifty_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path):
    command = [sys.executable, "-c", KILLED, MODULE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_half_a_line_goes_and_what_is_before_it_is_not_even_touched(tmp_path):
    """As with the disk full: resuming needs no space at all."""
    path = tmp_path / "lines.jsonl"
    lines = Lines(path, {"seed": 0}, "it holds lines")
    whole = ["x" * 5000, "y" * 5000, "z"]
    for line in whole:
        lines.append(line)
    with path.open("a") as file:
        file.write('{"half": ')
    inode = path.stat().st_ino
    with full_disk():
        lines = Lines(path, {"seed": 0}, "it holds lines")
        with pytest.raises(ValueError, match=r"is full: free some space and run the same command again, what is"):
            lines.append("w" * 5000)
    assert lines.found == whole == path.read_text().splitlines() and path.stat().st_ino == inode
    assert Lines(path, {"seed": 0}, "it holds lines").found == whole


@pytest.mark.parametrize("kind", ("text", "safetensors", "folder"))
def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path, kind):
    path = tmp_path / "file"
    write_atomically(path, "old")
    with full_disk(), pytest.raises(ValueError, match="is full: free some space"), atomically(path) as partial:
        if kind == "folder":
            partial.mkdir()
            (partial / "part").write_bytes(b"x" * 10_000)
        elif kind == "text":
            partial.write_bytes(b"x" * 10_000)
        else:  # its error is none of Python's
            save_file({"states": torch.zeros(10_000)}, partial)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), atomically(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(KeyboardInterrupt), atomically(tmp_path / "file") as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with atomically(path) as first, atomically(path) as second:
        first.write_text("1")
        second.write_text("2")
    assert path.read_text() == "1" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_is_written_reaches_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: order.append("fsync"))
    replace = os.replace
    monkeypatch.setattr(files.os, "replace", lambda *paths: order.append("replace") or replace(*paths))
    write_atomically(tmp_path / "file", "content")
    assert order == ["fsync", "replace", "fsync"]


def test_a_job_goes_on_with_the_same_settings_only(tmp_path):
    path, holds = tmp_path / "settings.json", "'it' holds labels made"
    keep_settings(path, {"seed": 0, "modes": ("a", "b")}, holds)
    before = path.stat().st_mtime_ns
    keep_settings(path, {"seed": 0, "modes": ("a", "b")}, holds)
    assert path.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"^'it' holds labels made with another seed \(0 there, 1 asked for\): go on"):
        keep_settings(path, {"seed": 1, "modes": ("a", "b")}, holds)
    with pytest.raises(ValueError, match=r"another modes \(\['a', 'b'\] there, None asked for\), name \(None there"):
        keep_settings(path, {"seed": 0, "name": "of a later version"}, holds)
    for damaged in ("", "[1]", '{"seed": '):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=r"settings.json' is damaged: choose another output"):
            keep_settings(path, {"seed": 0}, holds)


def test_a_process_that_does_not_write_compares_all_the_same(tmp_path):
    path = tmp_path / "settings.json"
    keep_settings(path, {"seed": 0}, "it", writes=False)
    assert not path.exists()
    keep_settings(path, {"seed": 0}, "it")
    with pytest.raises(ValueError, match="seed"):
        keep_settings(path, {"seed": 1}, "it", writes=False)


def test_a_list_may_grow(tmp_path):
    path = tmp_path / "settings.json"
    for given, kept in (([1, 2], [1, 2]), ([1], [1, 2]), ([1, 2, 3], [1, 2, 3])):
        keep_settings(path, {"prompts": given}, "it", grows="prompts")
        assert json.loads(path.read_text())["prompts"] == kept
    for other in ([2], [1, 2, 4]):
        with pytest.raises(ValueError, match="another prompts"):
            keep_settings(path, {"prompts": other}, "it", grows="prompts")
    path.write_text("{}")  # of a version that did not name them
    with pytest.raises(ValueError, match=r"another prompts \(None there"):
        keep_settings(path, {"prompts": [1]}, "it", grows="prompts")


def test_lines_of_unknown_settings_are_refused(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError, match=r"^it holds lines, but not 'lines.settings.json'"):
        Lines(path, {"seed": 0}, "it holds lines")
    assert Path(path).read_text() == "{}\n"


def test_an_svg_is_the_same_each_time_and_its_text_stays_text(tmp_path):
    made = Figure()
    made.subplots().plot([1, 3], label="tokens a second")
    made.legend(loc="upper right")
    for folder in ("first", "again"):
        (tmp_path / folder).mkdir()
        save_figure(made, tmp_path / folder / "speed.svg")
    first, again = ((tmp_path / folder / "speed.svg").read_text() for folder in ("first", "again"))
    assert first == again and ">tokens a second</text>" in first
