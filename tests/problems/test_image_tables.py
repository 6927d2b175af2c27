"""Tests of tables beside images: files, labels, sites and groups by columns, and faults with counts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from problems.data import OWN, DataError, DataSpec, load, read_own
from problems.data.formats.new_rows import read_array_rows
from tests.refusals import refuses

SPEC = DataSpec(
    "image-folder",
    partition="natural",
    image_column="Image Index",
    label_column="Finding",
    positive_label="Mass",
    site_column="Hospital",
    group_column="Patient",
)


@pytest.fixture
def table(tmp_path: Path) -> "pd.DataFrame":
    """Write 40 images of 20 patients at two hospitals: half of them in nested folders, by their names alone."""
    rows = []
    for index in range(40):
        folder = tmp_path / ("images_001" if index % 2 else "images_002/images")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), index).save(folder / f"{index}.png")
        name = f"{index}.png" if index % 2 else f"images_002/images/{index}.png"
        rows.append((name, "Mass" if index % 4 > 1 else "No Finding", f"H{index % 2}", f"0{index // 2}", 50 + index))
    frame = pd.DataFrame(rows, columns=["Image Index", "Finding", "Hospital", "Patient", "Age"])
    frame.to_csv(tmp_path / "Data_Entry.csv", index=False)
    return frame


def test_columns_name_files_labels_sites_and_groups(
    tmp_path: Path, table: "pd.DataFrame", caplog: pytest.LogCaptureFixture
) -> None:
    data = load(replace(SPEC, data_dir=str(tmp_path)), 2)
    assert data.site_names == ("H0", "H1")
    for client in range(2):
        images = np.rint(data.client(client).features[:, 0, 0, 0] * 255).astype(int)
        assert (images % 2 == client).all()
        np.testing.assert_array_equal(data.client(client).labels, images % 4 > 1)
    patients = [set((np.rint(part.features[:, 0, 0, 0] * 255) // 2).tolist()) for part in (data.train, data.test)]
    assert not patients[0] & patients[1]
    assert len(data.train) + len(data.test) == 40
    assert "1 columns are ignored: Age" in caplog.text
    assert "ignored: " not in caplog.text.replace("are ignored: ", "")
    form = data.sample_format
    assert form is not None
    new = read_array_rows(tmp_path / "Data_Entry.csv", form, SPEC)
    np.testing.assert_array_equal(np.asarray(new.features)[:, 0, 0, 0], np.arange(40))
    assert new.labels is not None
    assert new.labels.tolist() == table["Finding"].tolist()
    assert new.files is not None
    assert new.files[:2] == ("images_002/images/0.png", "images_001/1.png")


def test_a_site_reads_its_own_table_and_a_test_table_has_the_test_rows(
    tmp_path: Path, table: "pd.DataFrame", caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(SPEC, partition=OWN, site_column="")
    rows = read_own(str(tmp_path / "Data_Entry.csv"), spec, 0)
    assert (rows.shape, len(rows.train_rows) + len(rows.test_rows)) == ((1, 4, 4), 40)
    (tmp_path / "Data_Entry.csv").unlink()
    table[:30].to_csv(tmp_path / "train.csv", index=False)
    table[30:].drop(columns="Patient").to_csv(tmp_path / "test.csv", index=False)
    server = read_own(str(tmp_path / "test.csv"), replace(spec, data_dir="x"), None)
    assert len(server.test_rows) == 10
    caplog.clear()
    data = load(replace(SPEC, data_dir=str(tmp_path), group_column="", partition="iid"), 2)
    assert "read as images" not in caplog.text
    np.testing.assert_allclose(data.test.features[:, 0, 0, 0], np.arange(30, 40) / np.float32(255))


def test_faults_are_counted_in_one_error(tmp_path: Path, table: "pd.DataFrame") -> None:
    spec = replace(SPEC, data_dir=str(tmp_path))

    def refuse(line: str, **changes: str) -> None:
        table.to_csv(tmp_path / "Data_Entry.csv", index=False)
        with refuses(DataError, line):
            load(replace(spec, **changes), 2)

    refuse("image-column: got 'Finding', allowed: a column that no other key names", image_column="Finding")
    refuse("image-column: got 'File', allowed: columns Image Index, Finding", image_column="File")
    refuse("label-column: got 'label', allowed: columns Image Index", label_column="")
    refuse("image-column: got 'File', allowed: '' with dataset 'csv'", dataset="csv", image_column="File")
    refuse("drop-columns: got 'Age', allowed: '' with dataset 'image-folder'", drop_columns="Age")
    table.loc[5, "Image Index"] = "images_001/7.png"
    refuse("1 files in more than one row, such as 7.png, allowed: each file in one row")
    for folder in ("images_001", "images_002"):
        Image.new("L", (4, 4)).save(tmp_path / folder / "twice.png")
    table.loc[:2, "Image Index"] = ["twice.png", "lost.png", "also/lost.png"]
    refuse(
        "of 40 files 2 that do not exist, such as lost.png, also/lost.png and 1 that have a name that several files "
        "have, such as twice.png"
    )
    table.loc[:2, "Image Index"] = None
    refuse("'Image Index', which is empty in 3 of 40 rows, allowed: a file for each row")
