"""Versions are compared on the probe that they share, and a new probe starts anew."""

from dataclasses import replace

from lightning_trainer.serving.host.probe.probe_comparison import ProbeHistory
from lightning_trainer.serving.publication import Probe, Publication, Tolerance

OLD_PROBE = ((1, 2, 3), (4, 5, 6))
NEW_PROBE = ((1, 2, 3, 4, 5, 6),)
V1_OLD = ((-1.0, -2.0), (-3.0, -4.0))
V2_NEW = ((-1.1, -2.1, -5.0, -3.1, -4.1),)
V3_NEW = ((-1.2, -2.2, -5.1, -3.2, -4.2),)


def publication(version, token_ids, logprobs):
    probe = Probe(token_ids, logprobs)
    return Publication("p", version, f"/v{version}", "0" * 32, 1, "float32", probe, Tolerance(0.5, 0.5))


def accepted(history, published, engine):
    verdict = history.judge(published, engine)
    assert verdict.reason is None
    history.accept(published, verdict)
    return verdict


def test_a_version_with_another_probe_is_proven_by_agreement_and_the_next_one_is_measured_from_it():
    history = ProbeHistory()
    accepted(history, publication(1, OLD_PROBE, V1_OLD), V1_OLD)
    second = publication(2, NEW_PROBE, V2_NEW)
    assert history.served_scores(second.probe) is None
    assert accepted(history, second, V2_NEW).movement is None
    assert history.served_scores(second.probe) == V2_NEW
    third = publication(3, NEW_PROBE, V3_NEW)
    assert history.judge(third, V3_NEW).movement is not None
    reason = history.judge(third, V2_NEW).reason
    assert reason is not None
    assert "stale weights" in reason


def test_another_probe_does_not_excuse_weights_that_disagree():
    history = ProbeHistory()
    accepted(history, publication(1, OLD_PROBE, V1_OLD), V1_OLD)
    wrong = tuple(tuple(value - 1.0 for value in row) for row in V2_NEW)
    reason = history.judge(publication(2, NEW_PROBE, V2_NEW), wrong).reason
    assert reason is not None
    assert "differ on the probe" in reason


def test_a_refused_version_is_not_what_the_next_one_is_measured_from():
    history = ProbeHistory()
    first = publication(1, NEW_PROBE, V2_NEW)
    accepted(history, first, V2_NEW)
    assert history.judge(publication(2, NEW_PROBE, V3_NEW), V2_NEW).reason is not None
    assert history.served_scores(replace(first, version=3).probe) == V2_NEW
