"""Our numbers against those of verl, TRL, ms-swift and oat themselves: equal, or in the table of departures."""

import math

import pytest
from support.conformance import SOURCES, Comparison, document, equal, tensor

from lossbench.loss.verl_agg_loss import agg_loss


def _departures(file: str) -> dict[str, dict]:
    """The table of departures: the row's settings -> {number, ours, theirs, reason}."""
    table = document("departures.json")
    rows = [entry for entry in table["departures"] if entry["file"] == file]
    assert all(entry["reason"] in table["reasons"] for entry in rows), "a departure without a reason"
    return {str(entry["row"]): entry for entry in rows}


def _explained(row: Comparison, entry: dict) -> bool:
    number = entry["number"]
    same = equal(row.ours[number], entry["ours"], 1e-9, 1e-12) and equal(
        tensor(row.theirs[number]), entry["theirs"], 0, 0
    )
    return same and not equal(tensor(entry["ours"]), entry["theirs"], 1e-9, 1e-12)


@pytest.mark.parametrize(("file", "total"), [(file, len(document(file)["results"])) for file in SOURCES])
def test_every_row_is_equal_or_a_stated_departure(file: str, total: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows, table = list(SOURCES[file]()), _departures(file)
    unexplained = [row.row for row in rows if not row.agrees and str(row.row) not in table]
    mended = [row.row for row in rows if row.agrees and str(row.row) in table]
    moved = [
        row.row for row in rows if not row.agrees and str(row.row) in table and not _explained(row, table[str(row.row)])
    ]
    with capsys.disabled():
        equal_rows = sum(row.agrees for row in rows)
        print(f"\n{file}: {equal_rows} equal / {len(rows) - equal_rows} departing / {len(rows)} total")
    assert len(rows) == total
    assert not unexplained, f"departing without a reason: {unexplained}"
    assert not mended, f"listed as departing but equal now, take them off the table: {mended}"
    assert not moved, f"departing by other numbers than the table has: {moved}"
    assert len(table) == sum(not row.agrees for row in rows), "the table names rows that the file does not have"


def test_agg_loss_reproduces_every_row_of_verl(capsys: pytest.CaptureFixture[str]) -> None:
    doc = document("verl_agg_loss.json")
    cases, tolerance = {case["id"]: case for case in doc["cases"]}, doc["header"]["tolerance"]
    wrong = [row for row in doc["results"] if not _agg_loss_agrees(cases[row["case"]], row, **_bounds(tolerance))]
    with capsys.disabled():
        total = len(doc["results"])
        print(f"\nverl_agg_loss.json: {total - len(wrong)} equal / {len(wrong)} departing / {total} total")
    assert not wrong


def _bounds(tolerance: dict) -> dict[str, float]:
    return {"rtol": tolerance["rtol"], "atol": tolerance["atol"]}


def _agg_loss_agrees(case: dict, row: dict, rtol: float, atol: float) -> bool:
    loss_mat, loss_mask = tensor(case["loss_mat"]).requires_grad_(), tensor(case["loss_mask"])
    settings = {"loss_agg_mode": row["mode"], "version": row["version"], **case["params"][row["params"]]}
    if "raises" in row:
        with pytest.raises(ValueError, match="dp_size"):
            agg_loss(loss_mat, loss_mask, **settings)
        return True
    loss = agg_loss(loss_mat, loss_mask, **settings)
    loss.backward()
    agrees = equal(loss.detach(), row["loss"], rtol, atol) and equal(loss_mat.grad, row["grad"], rtol, atol)
    if "loss_bool_mask" in row:
        bool_loss = agg_loss(loss_mat.detach(), loss_mask.bool(), **settings)
        agrees = agrees and equal(bool_loss, row["loss_bool_mask"], rtol, atol)
    return agrees


def test_the_table_would_notice_a_wrong_number() -> None:
    # one divisor off by 1e-6 relative is outside every tolerance used above
    assert not equal(1.0 + 1e-6, 1.0, rtol=5e-7, atol=1e-7)
    assert equal(math.nan, "nan", rtol=0, atol=0) and not equal(0.0, "nan", rtol=0, atol=0)
