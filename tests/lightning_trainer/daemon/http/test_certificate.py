"""A certificate that cannot be used is refused before anything starts, in one sentence that names the file."""

import asyncio
import os

import pytest

from lightning_trainer.cli.doctor import State
from lightning_trainer.cli.doctor.places import check_tls
from lightning_trainer.config import DaemonConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.http import tls
from lightning_trainer.daemon.http.tls import ShownCertificate, read_certificate
from lightning_trainer.errors import ConfigError


def config(files, **more) -> DaemonConfig:
    return DaemonConfig(tls_cert=files[0], tls_key=files[1], **more)


def refusal(files) -> str:
    with pytest.raises(ConfigError) as raised:
        read_certificate(config(files))
    said = str(raised.value)
    assert "\n" not in said
    return said


def test_one_that_is_in_order_says_whose_it_is_and_for_how_long(authority):
    found = read_certificate(config(authority.sign("gpu-box", "10.0.0.7", days=90)))
    assert found is not None
    assert found.names == ("gpu-box", "10.0.0.7")
    assert 89.9 < found.days_left < 90.1
    assert found.pem.count("BEGIN CERTIFICATE") == 1


def test_without_one_there_is_no_tls():
    assert read_certificate(DaemonConfig()) is None


def test_files_that_are_missing_or_something_else_are_named(authority, tmp_path):
    cert, key = authority.sign("gpu-box")
    absent, empty = tmp_path / "absent.pem", tmp_path / "empty.pem"
    empty.touch(0o600)
    assert f"tls_cert = '{absent}': there is no such file" in refusal((absent, key))
    assert f"tls_key = '{absent}': there is no such file" in refusal((cert, absent))
    assert "tls_cert" in refusal((tmp_path, key))
    assert "holds no certificate" in refusal((empty, key))
    assert "holds no certificate" in refusal((key, key))
    assert "holds no private key" in refusal((cert, cert))
    cert.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
    assert "cannot be used" in refusal((cert, key))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(authority):
    cert, key = authority.sign("gpu-box")
    cert.chmod(0)
    assert f"tls_cert = '{cert}' cannot be read: Permission denied" in refusal((cert, key))


def test_a_key_of_another_certificate_is_refused(authority):
    cert, _ = authority.sign("gpu-box")
    _, other = authority.sign("gpu-box", file="other")
    assert "is not the key of the certificate" in refusal((cert, other))


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(authority):
    assert "openssl pkey" in refusal(authority.sign("gpu-box", passphrase=b"secret"))


@pytest.mark.parametrize(
    ("since_days", "days", "said"), [(-9, -1, "certificate has expired"), (1, 9, "certificate is not yet valid")]
)
def test_one_that_is_not_valid_now_is_refused(authority, since_days, days, said):
    assert said in refusal(authority.sign("gpu-box", since_days=since_days, days=days))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_a_key_that_others_may_read_or_write_is_refused(authority, mode):
    cert, key = authority.sign("gpu-box")
    key.chmod(mode)
    assert f"chmod 600 {key}" in refusal((cert, key))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_somebody_else_is_refused(authority):
    cert, key = authority.sign("gpu-box")
    os.chown(key, 65534, 65534)
    assert "belongs to another user" in refusal((cert, key))


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
def test_certificate_and_key_go_together_and_are_found_beside_the_file(tmp_path, given):
    path = tmp_path / "lightning.toml"
    path.write_text(f'[daemon]\n{given} = "tls/one.pem"\n')
    with pytest.raises(ConfigError, match="go together"):
        load_config(path)
    path.write_text('[daemon]\ntls_cert = "tls/one.pem"\ntls_key = "/etc/two.pem"\n')
    read = load_config(path).daemon
    assert (str(read.tls_cert), str(read.tls_key)) == (str(tmp_path / "tls/one.pem"), "/etc/two.pem")
    assert read.url() == "https://127.0.0.1:8321"


def test_an_address_of_version_6_makes_a_url():
    assert DaemonConfig(host="::1").url(7) == "http://[::1]:7"


async def test_one_that_was_renewed_is_shown_without_a_restart(authority, monkeypatch, caplog):
    monkeypatch.setattr(tls, "_LOOK_AGAIN_S", 0.02)
    settings = config(authority.sign("old", days=3))
    first = read_certificate(settings)
    assert first is not None
    told: list[tuple[str, ...]] = []
    shown = ShownCertificate(settings, first)
    watching = asyncio.create_task(shown.keep_fresh(lambda new: told.append(new.names)))
    await asyncio.sleep(0.1)
    assert "expires in 3 days" in caplog.text
    assert settings.tls_key is not None
    settings.tls_key.write_text("half written")
    await asyncio.sleep(0.2)
    assert shown.now is first
    assert "the certificate of before is still shown" in caplog.text
    authority.sign("new", days=90)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.02)
    assert told == [("new",)] == [shown.now.names]
    watching.cancel()


async def test_one_that_was_refused_is_read_again_when_what_was_wrong_is_mended(authority, monkeypatch, caplog):
    """Its mode, say, which changes no time of the file: before, it was never looked at again."""
    monkeypatch.setattr(tls, "_LOOK_AGAIN_S", 0.02)
    settings = config(authority.sign("old"))
    first = read_certificate(settings)
    assert first is not None
    assert settings.tls_key is not None
    shown = ShownCertificate(settings, first)
    renewed = asyncio.Event()
    watching = asyncio.create_task(shown.keep_fresh(lambda _: renewed.set()))
    await asyncio.sleep(0)
    authority.sign("new")
    settings.tls_key.chmod(0o644)
    async with asyncio.timeout(10):
        while "chmod 600" not in caplog.text:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert caplog.text.count("chmod 600") == 1
        settings.tls_key.chmod(0o600)
        await renewed.wait()
    assert shown.now.names == ("new",)
    watching.cancel()


def test_the_doctor_says_what_of_the_way_can_be_read(authority):
    assert check_tls(DaemonConfig()).state is State.OK
    beyond = check_tls(DaemonConfig(host="0.0.0.0"))
    assert beyond.state is State.WARNING
    assert "can be read on the way" in beyond.found
    good = check_tls(config(authority.sign("gpu-box"), host="0.0.0.0"))
    assert (good.state, good.found) == (State.OK, "a certificate for gpu-box, valid for 30 days")
    assert check_tls(config(authority.sign("gpu-box", days=2))).state is State.WARNING
    assert check_tls(config(authority.sign("gpu-box", days=-0.5))).state is State.FAILURE
