"""Failing together at the start, and outliving a death between two segments."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sprint.distributed.ranks import RankFailed, Single
from sprint.distributed.recovery import settled
from sprint.distributed.together import text_of_first, together
from sprint.engine.errors import UsageError


class Among(Single):
    """This process as one rank of several; meet() finds what the others had put in."""

    def __init__(self, rank, codes):
        super().__init__()
        self.rank, self.size, self._codes = rank, len(codes), codes
        self.ids, self.hosts = list(range(self.size)), [f"node{i}" for i in range(self.size)]

    def meet(self, values):
        values += np.array(self._codes, float)


def refuse():
    raise UsageError("lr: expected a number > 0, got -1")


def test_what_succeeds_everywhere_is_returned():
    assert together(Among(1, [0, 0, 0]), lambda: "made") == "made"


def test_the_first_rank_that_failed_speaks_with_its_name_and_the_others_leave_with_its_code():
    comm = Among(1, [0, 0, 0])
    with pytest.raises(UsageError, match=r"^rank 1 \(host node1\): lr: expected a number > 0, got -1$") as error:
        together(comm, refuse)
    assert comm.ended and error.value.exit_code == 2
    for rank, codes, work in ((0, [0, 2, 0], list), (2, [0, 2, 0], refuse), (2, [0, 1, 2], list)):
        comm = Among(rank, codes)
        with pytest.raises(SystemExit) as left:
            together(comm, work)
        assert comm.ended and left.value.code == codes[1]


def test_a_failure_of_all_ranks_needs_no_name():
    with pytest.raises(UsageError, match=r"^lr: expected"):
        together(Among(0, [0, 2, 2]), refuse)
    with pytest.raises(UsageError, match=r"^lr: expected"):
        together(Single(), refuse)


def test_an_unexpected_error_keeps_its_type():
    with pytest.raises(KeyError):
        together(Among(0, [0, 0]), lambda: {}["x"])


class Job:
    """A job whose ranks say `agreed` in turn, and which notes how it survived."""

    def __init__(self, *agreed, can_shrink=True):
        answers = iter(agreed)
        self.comm = SimpleNamespace(can_shrink=can_shrink, agree=lambda ok: next(answers))
        self.survived = []

    def survive(self, announce=True):
        self.survived.append(announce)


def test_work_is_made_again_until_all_living_ranks_have_its_result():
    outcomes = iter([RankFailed("here"), "of four ranks", "of three ranks"])

    def work():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    job = Job(False, True)  # it fails here first, then on another rank only
    assert settled(job, work) == "of three ranks" and job.survived == [True, False]


def test_without_ulfm_a_death_between_segments_is_the_end():
    def fail():
        raise RankFailed("gather")

    job = Job(can_shrink=False)
    with pytest.raises(RankFailed, match="gather"):
        settled(job, fail)
    assert job.survived == []


def test_a_text_travels():
    assert text_of_first(Single(), "runs/größe-1") == "runs/größe-1"
