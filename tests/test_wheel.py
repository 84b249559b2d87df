import os
import subprocess
import sys
from pathlib import Path

import pytest

from lossbench.sweep.recipe import recipe_dir, recipe_names

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built and unpacked somewhere else."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    target = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return target


def test_a_sweep_plans_from_the_wheel_alone(installed, tmp_path):
    command = [sys.executable, "-m", "lossbench", "sweep", "--dry-run", "--format", "csv"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1 + 12  # a header, two modes times six seeds
    where = subprocess.run(
        [sys.executable, "-c", "import lossbench; print(lossbench.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert Path(where.strip()).is_relative_to(installed)


def test_the_wheel_carries_the_same_recipes_as_the_checkout(installed):
    shipped = {path.stem: path.read_text() for path in (installed / "lossbench" / "_recipes").glob("*.toml")}
    assert shipped == {name: (recipe_dir() / f"{name}.toml").read_text() for name in recipe_names()}


def test_the_wheel_carries_the_reports_templates(installed):
    names = {path.name for path in (installed / "lossbench" / "report").iterdir()}
    assert {"template.html.j2", "style.css"} <= names


def test_the_wheel_carries_the_pages(installed):
    shipped = {path.name for path in (installed / "lossbench" / "docs").iterdir()}
    assert shipped == {path.name for path in (ROOT / "lossbench" / "docs").iterdir()} and "your-own.md" in shipped
