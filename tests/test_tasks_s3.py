"""A team's cache behind a real S3 server: nothing is built twice; pull requests add nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_stores import files_of, s3_server
from tasks_project import flip_weight
from tasks_shared import Shared, outcomes

URL = "s3://bucket/the team/mnnqnn"


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    """Projects without a local store, and the server that they share."""
    with s3_server("bucket") as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield Shared(tmp_path, MNNQNN_CACHE_DIR="off", MNNQNN_CACHE_REMOTE=URL)


@pytest.mark.slow
def test_a_second_checkout_and_a_pull_request(team: Shared) -> None:
    first = team.project("one")
    result = team.doit(first, "export_qnn")
    assert result.code == 0 and "WARNING" not in result.text, result.text
    held = files_of(URL)
    second = team.project("a second 'two'")
    states = json.loads(team.doit(second, "ci_plan", "--json").text)["parts"]
    assert [part["state"] for part in states] == ["restorable"]
    assert {part["key"] for part in states} <= {path.rpartition("/")[2] for path in held}
    result = team.doit(second, "export_qnn")
    assert result.ran == {"bundle:m:a"} and "WARNING" not in result.text
    assert not second.build.exists()
    assert second.tree() == first.tree()
    assert files_of(URL) == held

    team.env["MNNQNN_CACHE_READ_ONLY"] = "on"
    pull = team.project("pull request")
    flip_weight(first, 1)
    (pull.model / "llm.mnn.weight").write_bytes((first.model / "llm.mnn.weight").read_bytes())
    matrix = json.loads(team.doit(pull, "ci_plan", "--matrix").text)
    assert [row["task"] for row in matrix["include"]] == ["export_qnn:m:a"]
    result = team.doit(pull, "export_qnn")
    assert result.code == 0 and "WARNING" not in result.text, result.text
    assert {task for task, outcome in outcomes(pull).items() if outcome == "miss"} == {
        "partition:m",
        "translate:m:graph1",
        "translate:m:graph1_1",
        "link:m:a:graph1",
    }
    assert pull.tree() != first.tree()
    assert files_of(URL) == held, "a pull request reads, and adds nothing"
