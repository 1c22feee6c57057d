"""The example workflow: checked by actionlint, and its steps run as GitHub would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tasks_project import REPO, Project
from tasks_shared import TWO

FILE = REPO / ".github" / "workflows" / "export.yml"
BIN = Path(sys.executable).parent


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    """Asks actionlint, which asks shellcheck about every script."""
    shellcheck = BIN / "shellcheck"
    assert shellcheck.exists()
    command = [BIN / "actionlint", "-no-color", "-shellcheck", shellcheck, "-pyflakes", "", path]
    return subprocess.run(command, cwd=REPO, capture_output=True, encoding="utf-8")


def test_actionlint_finds_nothing() -> None:
    done = lint(FILE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "finding"),
    [
        ("steps.plan.outputs", "steps.plans.outputs", '"plans" is not defined'),
        ("needs: plan", "needs: plans", "plans"),
        ('why=1 "$TASK"', "why=1 $TASK", "SC2086"),
    ],
)
def test_actionlint_would_find_it(tmp_path: Path, right: str, wrong: str, finding: str) -> None:
    text = FILE.read_text("utf-8")
    assert right in text
    bad = tmp_path / "bad.yml"
    bad.write_text(text.replace(right, wrong), "utf-8")
    done = lint(bad)
    assert done.returncode == 1 and finding in done.stdout


def workflow() -> Any:
    return yaml.safe_load(FILE.read_text("utf-8"))


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow()["jobs"][job]["steps"]
    return found


def step(job: str, name: str) -> dict[str, Any]:
    return next(s for s in steps(job) if s.get("name") == name)


def test_actions_are_public_and_pinned() -> None:
    used = [s["uses"] for job in ("plan", "build") for s in steps(job) if "uses" in s]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_the_secrets_go_to_the_steps_that_need_them() -> None:
    whole = workflow()
    assert whole["permissions"] == {"contents": "read"}
    assert "secrets" not in json.dumps(whole["env"])
    holders = [s["name"] for job in ("plan", "build") for s in steps(job) if "secrets" in str(s)]
    assert holders == ["What must be built", "Export"]


class Runner:
    """Runs steps in a project as GitHub's runner would: bash, files for outputs."""

    def __init__(self, folder: Path, remote: Path, event: str) -> None:
        self.project = Project.create(folder / "checkout", targets=TWO)
        self.folder = folder
        self.env = dict(os.environ)
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        script = f'#!/bin/sh\nPYTHONPATH="{REPO}" exec "{sys.executable}" -m doit "$@"\n'
        (bin_dir / "doit").write_text(script, "utf-8")
        (bin_dir / "doit").chmod(0o755)
        self.env["PATH"] = f"{bin_dir}{os.pathsep}{self.env['PATH']}"
        self.env |= {"MNNQNN_CACHE": "on", "MNNQNN_CACHE_DIR": "off"}
        self.context = {
            "vars.MNNQNN_CACHE_REMOTE": remote.as_uri(),
            "vars.AWS_DEFAULT_REGION || 'us-east-1'": "us-east-1",
            "secrets.AWS_ACCESS_KEY_ID": "",
            "secrets.AWS_SECRET_ACCESS_KEY": "",
            "github.event_name == 'pull_request' && 'on' || 'off'": (
                "on" if event == "pull_request" else "off"
            ),
        }

    def value(self, text: str) -> str:
        """Text with its expressions replaced; an expression that we do not know is an error."""
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda m: self.context[m[1]], text)

    def run(self, job: str, name: str) -> str:
        what = step(job, name)
        said = {**workflow()["env"], **what.get("env", {})}
        environ = {key: self.value(value) for key, value in said.items()}
        for file in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
            environ[file] = str(self.folder / file)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.value(what["run"])],
            cwd=self.project.root,
            env={**self.env, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def plan(self) -> str:
        """The output of the job ``plan``."""
        (self.folder / "GITHUB_OUTPUT").unlink(missing_ok=True)
        self.run("plan", "What must be built")
        (line,) = (self.folder / "GITHUB_OUTPUT").read_text("utf-8").splitlines()
        name, _, value = line.partition("=")
        expression = f"${{{{ steps.plan.outputs.{name} }}}}"
        assert workflow()["jobs"]["plan"]["outputs"]["matrix"] == expression
        return value

    def build(self, row: dict[str, str]) -> None:
        """The steps of the job ``build`` for a row of the matrix."""
        self.context |= {f"matrix.{name}": value for name, value in row.items()}
        self.run("build", "Export")
        kept = step("build", "Keep the bundle")["with"]["path"]
        assert (self.project.root / self.value(kept) / "config_qnn.json").is_file()
        assert (self.project.root / step("build", "Keep the report")["with"]["path"]).is_file()


def test_the_steps_do_their_work(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    pull = Runner(tmp_path / "pull", remote, "pull_request")
    rows = json.loads(pull.plan())["include"]
    assert [row["task"] for row in rows] == ["export_qnn:m:a", "export_qnn:m:b"]
    assert "2 to build" in (pull.folder / "GITHUB_STEP_SUMMARY").read_text("utf-8")
    plan = json.loads((pull.project.root / "plan.json").read_text("utf-8"))
    assert {part["state"] for part in plan["parts"]} == {"build"}
    pull.build(rows[0])
    assert not remote.exists(), "a pull request adds nothing"

    push = Runner(tmp_path / "push", remote, "push")
    assert json.loads(push.plan())["include"] == rows
    for row in rows:
        push.build(row)
    again = Runner(tmp_path / "again", remote, "push")
    condition = workflow()["jobs"]["build"]["if"]
    assert condition == f"needs.plan.outputs.matrix != '{again.plan()}'"
