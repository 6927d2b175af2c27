"""Tests that a release's metadata agree: versions, Python versions, papers, scripts that workflows call."""

import re
import tomllib
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet

from tests.docs.markdown import PROJECT, section

METADATA: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def workflow(name: str) -> Any:
    return yaml.safe_load((PROJECT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))


def test_every_python_that_is_allowed_is_named_and_tested() -> None:
    minors = [word.removeprefix("Programming Language :: Python :: ") for word in METADATA["classifiers"]]
    named = [minor for minor in minors if minor.startswith("3.")]
    allowed = SpecifierSet(METADATA["requires-python"])
    assert named == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in allowed]
    assert workflow("pull-request")["jobs"]["tests"]["strategy"]["matrix"]["python"] == named


def test_workflows_may_read_only_but_for_the_one_that_publishes() -> None:
    assert len(WORKFLOWS) == 3
    for path in WORKFLOWS:
        parsed = workflow(path.stem)
        assert parsed["permissions"] == {"contents": "read"}
        granted = {name: job["permissions"] for name, job in parsed["jobs"].items() if "permissions" in job}
        assert granted == ({"publish": {"id-token": "write"}} if path.stem == "release" else {})


def test_the_citation_and_the_changelog_know_the_version_and_the_papers() -> None:
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == METADATA["version"]
    release = re.findall(r"^## (\d\S*) - (\S+)$", (PROJECT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert release[0] == (citation["version"], str(citation["date-released"]))
    cited = " ".join(section(PROJECT / "README.md", "Cite").split())
    assert len(citation["references"]) == cited.count("- ") == 5
    for paper in citation["references"]:
        assert f"{', '.join(author['family-names'] for author in paper['authors'])}, *{paper['title']}*" in cited


def test_extras_are_listed_and_in_all() -> None:
    """Except the tools of a checkout, and `vision`, which does not import beside PyTorch's CPU build."""
    extras = METADATA["optional-dependencies"]
    page = section(PROJECT / "docs" / "versions.md", "What is installed")
    assert [name for name in extras if f"`{name}`" not in page] == []
    (everything,) = extras["all"]
    assert set(re.findall(r"[\w-]+", everything)) == {"florilegium", *extras} - {
        "all",
        "bench",
        "docs",
        "test",
        "dev",
        "vision",
    }
