"""A publication survives its way as JSON exactly, and what is not one is refused by name."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance


def publication(**changes) -> Publication:
    fields = {
        "policy": "math",
        "version": 3,
        "path": "/dev/shm/w/v3.safetensors",
        "checksum": "0123456789abcdef" * 2,
        "tensor_count": 2,
        "dtype": "float32",
        "probe": Probe(((1, 2, 3), (4, 5)), ((-0.1, -2.0), (-3.5,))),
        "tolerance": Tolerance(max_abs=1e-3, mean_abs=2e-4),
    }
    return Publication(**{**fields, **changes})


def over_the_wire(document):
    return json.loads(json.dumps(document))


def test_a_publication_survives_json():
    assert Publication.from_json(over_the_wire(publication().to_json())) == publication()


@given(st.lists(st.floats(max_value=0, min_value=-1e30), min_size=1, max_size=20))
def test_every_logprob_survives_json_to_the_last_bit(logprobs):
    probe = Probe((tuple(range(len(logprobs) + 1)),), (tuple(logprobs),))
    assert Publication.from_json(over_the_wire(publication(probe=probe).to_json())).probe == probe


def test_a_report_survives_json():
    report = PublicationReport(False, 2, "it differs", 0.5, 0.1, None, {"gate": 0.1, "total": 1.5})
    assert PublicationReport.from_json(over_the_wire(report.to_json())) == report


def test_a_publication_knows_its_name_and_its_probe_its_size():
    assert publication().name == "math@v3"
    assert publication().probe.positions == 3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policy": ""}, "policy is ''"),
        ({"version": -1}, "version is -1"),
        ({"version": True}, "version is True"),
        ({"path": "relative/v3"}, "must be absolute"),
        ({"checksum": "ABC"}, "checksum is 'ABC'"),
        ({"tensor_count": 0}, "tensor_count is 0"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
    ],
)
def test_a_wrong_value_is_named(changes, complaint):
    with pytest.raises(PublicationError, match=complaint):
        publication(**changes)


@pytest.mark.parametrize(
    ("ids", "logprobs", "complaint"),
    [
        ((), (), "at least one"),
        (((1, 2),), (), "1 sequences and 0 rows"),
        (((1,),), ((),), "sequence 0 has 1 tokens"),
        (((1, 2, 3),), ((-1.0,),), "3 tokens and 1 logprobs"),
        (((1, -2),), ((-1.0,),), "holds -2"),
        (((1, 2.5),), ((-1.0,),), "holds 2.5"),
        (((1, 2),), ((math.nan,),), "log-probability nan"),
        (((1, 2),), ((-math.inf,),), "log-probability -inf"),
        (((1, 2),), ((0.5,),), "log-probability 0.5"),
    ],
)
def test_a_probe_that_proves_nothing_is_refused(ids, logprobs, complaint):
    with pytest.raises(PublicationError, match=complaint):
        Probe(ids, logprobs)


@pytest.mark.parametrize("bound", [0, -1e-3, math.nan, math.inf])
def test_a_tolerance_is_positive_and_finite(bound):
    with pytest.raises(PublicationError, match="max_abs"):
        Tolerance(max_abs=bound, mean_abs=1e-3)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_no_publication(document):
    with pytest.raises(PublicationError, match="must be a JSON object"):
        Publication.from_json(document)


def test_missing_fields_and_those_of_another_kind_are_named():
    document = publication().to_json()
    with pytest.raises(PublicationError, match="lacks checksum, dtype"):
        Publication.from_json({k: v for k, v in document.items() if k not in ("checksum", "dtype")})
    with pytest.raises(PublicationError, match=r"probe\.token_ids must be a list of lists"):
        Publication.from_json(document | {"probe": {"token_ids": [1, 2], "logprobs": [[-1.0]]}})


def test_what_a_newer_release_stored_is_read_by_the_fields_that_are_known():
    document = publication().to_json()
    newer = document | {"speed": 1, "probe": {**document["probe"], "seed": 2}}
    assert Publication.from_json(over_the_wire(newer)) == publication()
