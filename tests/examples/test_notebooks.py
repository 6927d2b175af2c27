"""Every notebook runs from its first cell to its last, is saved with what it shows, and is listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import links
from tests.programs import PROJECT, ran

NOTEBOOKS = sorted((PROJECT / "examples" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Its cells of code."""
    return [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells(notebook)), "utf-8")
    ran(script, cwd=tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_with_its_outputs(notebook: Path) -> None:
    shown = [output for cell in cells(notebook) for output in cell["outputs"]]
    assert {output["output_type"] for output in shown} <= {"display_data", "execute_result", "stream"}
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))


def test_every_notebook_is_listed() -> None:
    assert {f"notebooks/{path.name}" for path in NOTEBOOKS} <= set(links(PROJECT / "examples" / "README.md"))
