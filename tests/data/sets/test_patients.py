"""Sets of patients, from small tables in the form in which they are published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.data.federation import DataError
from kinfolk.data.sets import patients
from kinfolk.data.sets.download import obtain


def test_hospitals_come_from_their_files_with_or_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patients, "HEART", replace(patients.HEART, checksum=""))
    patient = "63.0,1.0,1.0,145.0,{},1.0,2.0,150.0,0.0,2.3,3.0,{},6.0,{}"
    for k, name in enumerate(patients.HOSPITALS):
        lines = [patient.format(233 if n % 2 else 0, "?" if n else "0.0", n % 5) for n in range(5 + k)]
        names = [",".join([*patients.HEART_COLUMNS, "num"])] if k == 0 else []
        (tmp_path / f"processed.{name}.data").write_text("\n".join([*names, *lines]) + "\n")
    files = [tmp_path / file.name for file in patients.HEART.files]
    arrays, _ = obtain(patients.HEART, tmp_path, files)
    assert np.bincount(arrays["client"]).tolist() == [5, 6, 7, 8]
    assert np.isnan(arrays["x"]).sum() == 4 + 5 + 6 + 7
    data = patients.heart_disease(directory=str(tmp_path))
    assert data.ids == patients.HOSPITALS
    assert data.shape == (13 + 10,)
    assert np.isfinite(data.train.x).all()
    assert set(np.unique(data.train.y)) == {0, 1}
    (tmp_path / "mine.data").write_text("")
    with pytest.raises(DataError, match="none of the hospitals"):
        patients.heart_from_files([*files, tmp_path / "mine.data"])
    files[0].write_text("age,sex\n")
    with pytest.raises(DataError, match=r"processed.cleveland.data has no row of 14 values"):
        patients.heart_from_files(files)


def test_breast_cancer_comes_from_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["pid", "age_at_index", *(f"f{n}" for n in range(38)), "E", "T"]
    lines = [[f"P{n}", "60", *["1"] * 38, str(float(n % 2)), str(100.0 * n)] for n in range(30)]
    (tmp_path / "brca.csv").write_text("\n".join(",".join(line) for line in [names, *lines]) + "\n")
    folds = [f"P{n},{half},{half}_{n % 3}" for n in range(29) for half in ["test" if n % 4 == 0 else "train"]]
    (tmp_path / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *folds]) + "\n")
    monkeypatch.setattr(patients, "BRCA", replace(patients.BRCA, checksum=""))
    arrays, _ = obtain(patients.BRCA, tmp_path, [tmp_path / "train_test_split.csv", tmp_path / "brca.csv"])
    assert (arrays["x"].shape, int(arrays["event"].sum()), int(arrays["is_test"].sum())) == ((29, 39), 14, 8)
    data = patients.tcga_brca(directory=str(tmp_path), years=2.0)
    assert data.ids == ("Northeast", "South", "West") or set(data.ids) == {"Northeast", "South", "West"}
    known = [n for n in range(29) if 100 * n > 730.5 or n % 2]
    assert int(data.train.sizes.sum() + data.test.sizes.sum()) == len(known)
    with pytest.raises(DataError, match="both needed"):
        patients.brca_from_files([tmp_path / "brca.csv"])


def test_parkinsons_comes_from_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *list(patients.VOICE)[3:]]
    lines = [[str(n % 2 + 1), "60", "1", str(n), "20", str(17.6 * (n % 2 + 1)), *["0.01"] * 16] for n in range(20)]
    (tmp_path / "parkinsons_updrs.data").write_text("\n".join(",".join(line) for line in [names, *lines]))
    monkeypatch.setattr(patients, "PARKINSONS", replace(patients.PARKINSONS, checksum=""))
    obtain(patients.PARKINSONS, tmp_path, [tmp_path / "parkinsons_updrs.data"])
    data = patients.parkinsons(directory=str(tmp_path))
    assert data.ids == ("patient-00", "patient-01")
    np.testing.assert_allclose(data.train.y[:, 0], [0.1, 0.2], rtol=1e-5)
    assert data.train.x[0, 0, 0] == pytest.approx(0.5)
