"""Figures in files: the same bytes, whatever the last bits of the layout."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from lossbench.report.style import look, save


def drawn(folder: Path, blocks: bool) -> list[bytes]:
    folder.mkdir()
    with look():
        figure = Figure(figsize=(6, 4), layout="constrained")
        for part in figure.subfigures(2, 1) if blocks else [figure]:
            part.suptitle("title")
            for axes in part.subplots(1, 2):
                axes.plot([0, 1, 2], [3, 1, 2])
        save(figure, folder, "figure")
    return [(folder / f"figure.{suffix}").read_bytes() for suffix in ("png", "svg")]


@pytest.mark.parametrize("blocks", [False, True])
def test_the_last_bits_of_the_layout_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    wanted = drawn(tmp_path / "plain", blocks)
    plain = ConstrainedLayoutEngine.execute

    def nudged(self: ConstrainedLayoutEngine, figure: Figure) -> None:
        plain(self, figure)
        for part in figure.subfigs:
            part.bbox_relative.set_points(part.bbox_relative.get_points() * (1 + 2**-50))
        for axes in figure.axes:
            axes.set_position(Bbox(axes.get_position().get_points() * (1 + 2**-50)))

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", nudged)
    assert drawn(tmp_path / "nudged", blocks) == wanted
