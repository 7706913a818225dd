"""A stored version is a whole model folder with the proof that it was published with; the rule removes the rest."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.versions.archive import VersionArchive


@pytest.fixture
def archive(tmp_path: Path) -> VersionArchive:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        (model / name).write_text(f'"{name}"')
    return VersionArchive(tmp_path / "versions" / "p", model_dir=model)


def publication(folder: Path, version: int) -> Publication:
    weights = folder / f"published-{version}"
    weights.write_text(f"weights {version}")
    probe = Probe(((1, 2, 3),), ((-0.5, -1.25),))
    return Publication("p", version, str(weights), "ab" * 16, 1, "float32", probe, Tolerance(1e-3, 1e-4))


def test_what_is_stored_is_the_publication_with_another_path(archive, tmp_path):
    published = publication(tmp_path, 12)
    archive.add(published)
    Path(published.path).unlink()

    stored = archive.publication(12)

    folder = archive.folder(12)
    assert (stored.checksum, stored.probe, stored.tolerance) == (
        published.checksum,
        published.probe,
        published.tolerance,
    )
    assert Path(stored.path).read_text() == "weights 12"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "publication.json",
        "tokenizer.json",
    ]


def test_named_chat_templates_and_the_license_are_stored_too(archive, tmp_path):
    """transformers takes ``tool_use`` for a chat with tools, so the old version would see another prompt without it."""
    model = tmp_path / "model"
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    (model / "LICENSE").write_text("MIT")
    archive.add(publication(tmp_path, 1))
    folder = archive.folder(1)
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "with tools"
    assert (folder / "LICENSE").read_text() == "MIT"


def test_a_version_that_is_stored_is_not_written_again(archive, tmp_path):
    archive.add(publication(tmp_path, 1))
    before = archive.folder(1).stat().st_ino
    archive.add(publication(tmp_path, 1))
    assert archive.folder(1).stat().st_ino == before


def test_a_version_that_is_stored_with_other_weights_is_written_again(archive, tmp_path):
    """Version 0 of a policy that began anew, from another model: what was stored is not what its record says."""
    archive.add(publication(tmp_path, 0))
    other = replace(publication(tmp_path, 0), checksum="cd" * 16)
    Path(other.path).write_text("other weights")
    archive.add(other)
    stored = archive.publication(0)
    assert (stored.checksum, Path(stored.path).read_text()) == ("cd" * 16, "other weights")


def test_pruning_leaves_what_is_kept_and_sweeps_what_was_interrupted(archive, tmp_path):
    for version in (1, 2, 3):
        archive.add(publication(tmp_path, version))
    (archive.folder(3).parent / ".v00000004.77.partial").mkdir()
    archive.prune({1, 3})
    assert archive.versions() == [1, 3]
    assert sorted(entry.name for entry in archive.folder(1).parent.iterdir()) == ["v00000001", "v00000003"]


def test_what_another_store_trained_is_set_aside_and_the_model_that_was_begun_with_stays(archive, tmp_path):
    assert archive.set_aside() is None
    archive.add(publication(tmp_path, 0))
    assert archive.set_aside() is None
    archive.add(publication(tmp_path, 3))
    root = archive.folder(3).parent
    assert archive.set_aside() == root.with_name("p~1")
    assert (archive.versions(), (root.with_name("p~1") / "v00000003").is_dir()) == ([], True)


@pytest.mark.parametrize("document", [None, "{", json.dumps({"policy": "p"})])
def test_what_cannot_be_read_is_said_in_a_sentence(archive, tmp_path, document):
    if document is not None:
        archive.add(publication(tmp_path, 5))
        (archive.folder(5) / "publication.json").write_text(document)
    with pytest.raises(PublicationError, match=r"version 5 is not stored|publication lacks"):
        archive.publication(5)
