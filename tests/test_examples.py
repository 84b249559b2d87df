"""The examples in docstrings say what the code gives."""

import doctest
import importlib
from pathlib import Path

import pytest

import lossbench

PACKAGE = Path(lossbench.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lossbench"])
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
