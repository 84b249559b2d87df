"""The list of mutants is current; their score is computed by `python tests/support/mutants.py`."""

import ast

import pytest
from support.mutants import ROOT, read_mutants

MUTANTS = read_mutants()


def test_it_is_long_enough_and_names_no_edit_twice():
    assert len(set(MUTANTS)) == len(MUTANTS) >= 150


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS}))
def test_every_edit_applies_once_and_gives_another_program(path):
    text = (ROOT / path).read_text()
    for mutant in MUTANTS:
        if mutant.path == path:
            assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text)), mutant.new


def test_the_tests_that_it_names_exist():
    assert [name for mutant in MUTANTS for name in mutant.tests if not (ROOT / name).exists()] == []
