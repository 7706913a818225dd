"""The tree of an attempt's calls: every token once, and a path is exactly what the engine saw."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.explain.call_tree import CallNode, call_tree, in_order, shared_length
from lightning_trainer.types import Call


def relations(nodes) -> list[tuple[int | None, int | None, int]]:
    return [(node.parent, node.beside, node.shared) for node in nodes]


def test_turns_extend_each_other_and_an_edited_history_parts_at_the_token(make_call):
    calls = [
        make_call("a", (1, 2), (3, 4), start=0),
        make_call("b", (1, 2, 3, 4, 5), (6,), start=1),
        make_call("c", (1, 2, 3, 9, 5), (6,), start=2),
        make_call("d", (7,), (8,), start=3),
    ]
    nodes = call_tree(calls)
    assert relations(nodes) == [(None, None, 0), (1, None, 4), (None, 1, 3), (None, None, 0)]
    assert [node.new_prompt_ids for node in nodes] == [(1, 2), (5,), (9, 5), (7,)]


def test_choices_of_one_response_show_their_prompt_once(make_call):
    nodes = call_tree([make_call("a", (1, 2), (3,)), make_call("a", (1, 2), (4,), choice=1)])
    assert relations(nodes) == [(None, None, 0), (None, 1, 2)]
    assert nodes[1].new_prompt_ids == ()


def test_calls_without_ids_are_related_to_nothing(make_call):
    nodes = call_tree([make_call("a", (), ()), make_call("b", (1,), (2,)), make_call("c", (1, 2), ())])
    assert relations(nodes) == [(None, None, 0)] * 3


def test_only_forks_are_indented(make_call):
    calls = [
        make_call("a", (1,), (2,), start=0),
        make_call("b", (1, 2, 3), (4,), start=1),
        make_call("c", (1, 2, 3, 4, 5), (6,), start=2),
        make_call("d", (1, 2, 3, 4, 7), (8,), start=3),
        make_call("e", (1, 2, 3, 4, 5, 6, 9), (9,), start=4),
    ]
    assert [(node.number, depth) for node, depth in in_order(call_tree(calls))] == [
        (1, 0),
        (2, 0),
        (3, 1),
        (5, 1),
        (4, 1),
    ]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_the_shared_beginning_is_counted_to_the_token(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert shared_length(one, other) == count


_IDS = st.lists(st.integers(0, 2), max_size=5).map(tuple)


@given(st.lists(st.tuples(_IDS, _IDS), max_size=8))
def test_a_path_is_what_the_engine_saw_whatever_the_calls(make_call, pairs):
    calls = [make_call(f"s{n}", prompt, response, start=n) for n, (prompt, response) in enumerate(pairs)]
    nodes = call_tree(calls)
    for node in nodes:
        assert _begins(node, nodes) + node.new_prompt_ids == node.call.prompt_ids
        assert node.beside is None or node.beside < node.number
    ordered = [node.number for node, _ in in_order(nodes)]
    assert sorted(ordered) == [node.number for node in nodes]
    assert all(ordered.index(node.parent) < ordered.index(node.number) for node in nodes if node.parent is not None)


def _begins(node: CallNode, nodes: tuple[CallNode, ...]) -> tuple[int, ...]:
    """The tokens that are drawn elsewhere."""
    if node.parent is not None:
        return _path(nodes[node.parent - 1].call)
    return () if node.beside is None else _path(nodes[node.beside - 1].call)[: node.shared]


def _path(call: Call) -> tuple[int, ...]:
    return call.prompt_ids + call.response_ids
