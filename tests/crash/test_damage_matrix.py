"""Damage at rest: every kind of file, every way of damage, every question a user may ask.

The outcome is the right answer or `Corruption` that names the file. Every structure of every file
is flipped for a query; the other ways of damage are tried with every question. `evidence/run.py`
tries random damages.
"""

import tempfile
from pathlib import Path

import pytest

from crash.damage import (
    KINDS,
    MEMORY_FOLDER,
    QUESTIONS,
    build_world,
    chosen_damages,
    copied,
    questions_about,
    right_answer,
    violation,
)

ASKED_OF_EVERY_FLIP = ("open", "query", "gaps")
"""The questions after each flipped bit; the others read the same files in the same ways."""


@pytest.fixture(scope="module")
def world():
    """A lake with every kind of file, in memory, because these tests test no disk."""
    with tempfile.TemporaryDirectory(prefix="thermocline-damage-", dir=MEMORY_FOLDER) as folder:
        yield build_world(Path(folder))


def test_the_lake_of_these_tests_has_every_kind_of_file_and_no_other(world):
    assert world.files().keys() == KINDS.keys()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_lake_without_damage_is_answered_the_same_twice(world, question):
    with copied(world) as root:
        assert QUESTIONS[question](root) == right_answer(world, question)


@pytest.mark.parametrize("kind", KINDS)
def test_D01_D05_D08_a_flipped_bit_gives_the_right_answer_or_corruption(world, kind):
    flips = [one for one in chosen_damages(world, kind) if "flipped" in one.way]
    assert flips
    about = questions_about(kind)
    rest = [question for question in about if question not in ASKED_OF_EVERY_FLIP]
    always = [question for question in ASKED_OF_EVERY_FLIP if question in about]
    broken = [
        f"{damage}: {found}"
        for place, damage in enumerate(flips)
        # The long questions take turns, so that each is asked about several structures.
        for question in (*always, rest[place % len(rest)])
        if (found := violation(world, damage, question))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("kind", "question"), [(kind, one) for kind in KINDS for one in questions_about(kind)]
)
def test_D03_D04_D06_D07_a_file_lost_cut_or_replaced_gives_the_right_answer_or_corruption(
    world, kind, question
):
    damages = [one for one in chosen_damages(world, kind) if "flipped" not in one.way]
    assert damages
    broken = [f"{one}: {found}" for one in damages if (found := violation(world, one, question))]
    assert broken == []
