import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from lightning_trainer.bulk_objects import made_quickly


@made_quickly
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("left of all")


def test_it_is_what_the_dataclass_would_be():
    point = Point(1)
    assert type(point) is Point
    assert point == Point(x=1, y=2) != Point(1, 3)
    assert hash(point) == hash(Point(1))
    assert repr(point) == "Point(x=1, y=2)"
    assert replace(point, y=5) == Point(1, 5)
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point


def test_nothing_can_be_set_and_there_is_no_room_for_more():
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError):
        del point.y  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(point, "__dict__")


def test_what_is_checked_after_it_was_made_still_is():
    with pytest.raises(ValueError, match="left of all"):
        Point(-1)


def test_arguments_are_named_when_they_are_missing():
    with pytest.raises(TypeError, match="'x'"):
        Point()  # pyright: ignore[reportCallIssue]


def test_fields_with_a_factory_are_refused():
    @dataclass(frozen=True, slots=True)
    class Bag:
        things: list[int] = field(default_factory=list)

    with pytest.raises(TypeError, match=r"Bag\.things"):
        made_quickly(Bag)
