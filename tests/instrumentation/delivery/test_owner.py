"""For whom spans wait: anyone who comes first, until the daemon of this process is known, and then that one alone."""

import pytest
from lightning_instrumentation.access.known import KnownDaemon, remember
from lightning_instrumentation.access.proof import Access, owner_of_token
from lightning_instrumentation.delivery.outbox import Outbox
from lightning_instrumentation.delivery.spool import Spool, endpoint_folder, orphaned_spools, orphans_in, owned_folders
from lightning_instrumentation.settings import read_settings

NOBODY = "http://127.0.0.1:9"
MINE, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def outbox(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path / "access"))
    made = []

    def make(token=None, endpoint=NOBODY):
        settings = read_settings(
            endpoint,
            agent=None,
            service_name=None,
            token=token,
            trusted_hosts=(),
            spool_dir=tmp_path / "spool",
            spool_limit_bytes=None,
            max_body_bytes=None,
            capture_content=None,
        )
        access = Access(settings.endpoint, settings.token)
        made.append(Outbox(settings, access))
        return made[-1], access

    yield make
    for one in made:
        one.close(0.0)


def rows(tmp_path, owner):
    folder = endpoint_folder(tmp_path / "spool", NOBODY, owner)
    return sum(file.read_bytes().count(b"span") for file in folder.glob("*.spans")) if folder.is_dir() else 0


def test_once_the_daemon_is_known_the_rest_waits_for_it_alone(outbox, tmp_path):
    box, access = outbox()
    box.put(b"span 1")
    access.daemon = MINE  # as a proof says it
    box.put(b"span 2")
    box.put(b"span 3")
    assert (rows(tmp_path, None), rows(tmp_path, MINE)) == (1, 2)
    assert box.waiting == 3


def test_the_last_daemon_at_the_address_is_whom_a_new_process_belongs_to(outbox, tmp_path):
    remember(NOBODY, KnownDaemon("a-token", daemon=MINE))
    box, _ = outbox()
    box.put(b"span 1")
    assert rows(tmp_path, MINE) == 1


def test_a_token_that_was_given_says_more_than_what_another_daemon_left(outbox, tmp_path):
    remember(NOBODY, KnownDaemon("of the other", daemon=OTHER))
    box, _ = outbox("of-this-process")
    box.put(b"span 1")
    owner = owner_of_token("of-this-process")
    assert (rows(tmp_path, OTHER), rows(tmp_path, owner)) == (0, 1)
    assert "of-this-process" not in owner


def test_orphans_are_taken_for_their_owner_at_whatever_address(tmp_path):
    for endpoint, owner in ((NOBODY, MINE), ("http://127.0.0.1:10", MINE), (NOBODY, OTHER), (NOBODY, None)):
        with Spool.create(endpoint_folder(tmp_path, endpoint, owner)) as spool:
            spool.append(f"for {owner}".encode())
            assert spool.owner == owner
    taken = [*orphaned_spools(tmp_path, NOBODY), *orphans_in(owned_folders(tmp_path, [MINE, "another-name"]))]
    assert sorted(body for spool in taken for body in spool.read(9)) == [b"for None", *[f"for {MINE}".encode()] * 2]
    for spool in taken:
        spool.close()


def test_a_client_with_a_token_takes_its_daemons_orphans_at_whatever_address(outbox, tmp_path):
    for endpoint, owner in (("http://elsewhere:1", MINE), ("http://elsewhere:1", OTHER), (NOBODY, OTHER)):
        with Spool.create(endpoint_folder(tmp_path / "spool", endpoint, owner)) as spool:
            spool.append(f"{endpoint} {owner}".encode())
    open_to_all, access = outbox()
    access.daemon = MINE  # anyone can say so: it has no token to prove it with
    assert open_to_all._orphans() == []
    box, access = outbox("a-token")
    access.daemon = MINE
    (taken,) = box._orphans()
    with taken:
        assert taken.read(9) == [f"http://elsewhere:1 {MINE}".encode()]


def test_once_its_daemon_is_proven_also_what_waits_elsewhere_since_before_it_was_known(outbox, tmp_path):
    """Before: a daemon that came back at another address never got what had waited while it was down."""
    for endpoint, token in (("http://elsewhere:1", "a-token"), ("http://elsewhere:1", "another")):
        with Spool.create(endpoint_folder(tmp_path / "spool", endpoint, owner_of_token(token))) as spool:
            spool.append(f"{endpoint} {token}".encode())
    box, access = outbox("a-token")
    access.daemon = MINE  # as the daemon of before left it
    assert box._orphans() == []
    access._proven = "a-token", 1.0
    (taken,) = box._orphans()
    with taken:
        assert taken.read(9) == [b"http://elsewhere:1 a-token"]


def test_what_waits_under_a_wrong_token_goes_to_the_daemon_that_proves_the_right_one(outbox, tmp_path):
    there = "http://gpu-box:8321"
    mistyped, rotated = owner_of_token("mistyped"), owner_of_token("of-last-year")
    for endpoint, owner in ((there, mistyped), (there, rotated), (there, OTHER), ("http://elsewhere:1", mistyped)):
        with Spool.create(endpoint_folder(tmp_path / "spool", endpoint, owner)) as spool:
            spool.append(f"{endpoint} {owner}".encode())
    box, access = outbox("the-right-one", there)
    assert box._orphans() == []
    access.daemon = MINE  # as the daemon of before left it, or without a token
    assert box._orphans() == []
    access._proven = "the-right-one", 1.0
    taken = box._orphans()
    assert {body for spool in taken for body in spool.read(9)} == {
        f"{there} {one}".encode() for one in (mistyped, rotated)
    }
    for spool in taken:
        spool.close()
    access.forget()
    assert box._orphans() == []


def test_on_loopback_another_token_may_be_another_projects_and_waits_for_it(outbox, tmp_path):
    with Spool.create(endpoint_folder(tmp_path / "spool", NOBODY, owner_of_token("of-another-project"))) as spool:
        spool.append(b"span")
    box, access = outbox("of-this-project")
    access.daemon, access._proven = MINE, ("of-this-project", 1.0)
    assert box._orphans() == []


def test_what_is_left_to_another_owner_is_all_there_and_still_held(tmp_path):
    here, there = endpoint_folder(tmp_path, NOBODY), endpoint_folder(tmp_path, NOBODY, MINE)
    with Spool.create(here) as spool:
        for number in range(3):
            spool.append(f"span {number}".encode())
        spool.move_to(there)
        assert orphans_in([here, there]) == []
        spool.append(b"span 3")
    assert list(here.iterdir()) == []
    (found,) = orphans_in([there])
    with found:
        assert found.read(9) == [f"span {number}".encode() for number in range(4)]
