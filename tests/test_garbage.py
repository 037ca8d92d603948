"""Collections leave out what lives, and lose nothing for ever."""

import gc
import weakref

import pytest

from specviz.ui.garbage import leave_out_what_lives


class Node:
    pass


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_what_lives_is_not_looked_through_again():
    kept = [[number] for number in range(1000)]
    leave_out_what_lives()
    assert not any(each is kept for each in gc.get_objects())
    assert gc.get_freeze_count() > len(kept)


def test_what_was_left_out_is_freed_with_its_last_reference_and_cycles_at_the_next_call():
    alone, first, second = Node(), Node(), Node()
    first.other, second.other = second, first
    gone = [weakref.ref(alone), weakref.ref(first)]
    leave_out_what_lives()
    del alone, first, second
    assert gone[0]() is None and gone[1]() is not None
    leave_out_what_lives()
    assert gone[1]() is None
