import json

import pytest

from hf_specdecpp.training.run_report import RunReport, public_settings

SETTINGS = {"dtype": "float32", "target": "org/target"}


def test_a_stage_that_was_killed_starts_again_and_a_finished_one_does_not(tmp_path, capsys):
    report, calls = RunReport(tmp_path, SETTINGS), []

    def killed():
        raise KeyboardInterrupt

    assert report.stage("first", lambda: calls.append(1) or {"n": 1}) == {"n": 1}
    with pytest.raises(KeyboardInterrupt):
        report.stage("second", killed)
    again = RunReport(tmp_path, SETTINGS)
    assert again.stage("first", killed) == {"n": 1} and again.stage("second", lambda: {"n": 2}) == {"n": 2}
    text = again.markdown()
    assert "| first | 0.0 |" in text and "| second | 0.0, the last of 2 starts |" in text and "| all | 0.0 |" in text
    assert "second took 0.0 minutes\n" in capsys.readouterr().out
    written = json.loads((tmp_path / "report.json").read_text())
    assert {"torch", "transformers", "peft"} <= set(written["versions"]) and written["threads"] > 0
    with pytest.raises(ValueError, match=r"holds a run with another target \('org/target' there, 'org/other' asked"):
        RunReport(tmp_path, SETTINGS | {"target": "org/other"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "report.json' is damaged: choose another output"),
        ('{"stages": {"first": {"minutes": 1}}}', r"another dtype \(None there, 'float32' asked for\), target"),
    ],
)
def test_a_report_that_is_damaged_or_of_another_version_is_refused(tmp_path, content, message):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        RunReport(tmp_path, SETTINGS)


def test_a_run_that_did_nothing_yet_may_change_its_settings(tmp_path):
    with pytest.raises(ZeroDivisionError):
        RunReport(tmp_path, SETTINGS).stage("first", lambda: 1 / 0)
    RunReport(tmp_path, SETTINGS | {"target": "org/other"}).stage("first", dict)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["settings"]["target"] == "org/other" and written["stages"]["first"]["starts"] == 2


def test_paths_of_this_machine_are_not_written():
    settings = {
        "target": "/home/me/target",
        "prompts": ["/nowhere/p.jsonl", "hub/id:train"],
        "server": "http://h:1/v1",
    }
    assert public_settings(settings) == {
        "target": "target",
        "prompts": ["p.jsonl", "hub/id:train"],
        "server": "http://h:1/v1",
    }
