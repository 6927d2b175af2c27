"""The issue forms have what GitHub requires of one; else it shows none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.docs.markdown import PROJECT

FOLDER = PROJECT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in FOLDER.glob("*.yml") if path.name != "config.yml")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_is_required(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() <= {"name", "description", "title", "labels", "assignees", "body"}
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    assert form["body"]
    for field in form["body"]:
        attributes = field["attributes"]
        assert field["type"] in {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert attributes["value" if field["type"] == "markdown" else "label"]
        options = attributes.get("options", [])
        assert bool(options) == (field["type"] in {"dropdown", "checkboxes"})
        if field["type"] == "dropdown":  # an unquoted Yes or No would be a truth value
            assert all(isinstance(option, str) for option in options)
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len({*ids}) == len(ids)


def test_the_pull_request_template_names_files_that_are_there() -> None:
    text = (PROJECT / ".github" / "pull_request_template.md").read_text("utf-8")
    for name in (".ci/run", "CONTRIBUTING.md", "CHANGELOG.md", "docs/disclosure.md"):
        assert name in text
        assert (PROJECT / name).exists()
