"""What a host may be sent follows from its address, however that is written."""

import pytest
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.routing.hosts import Hosts, HostTrust, on_this_machine

DAEMON, TRUSTED, UNTRUSTED = HostTrust.DAEMON, HostTrust.TRUSTED, HostTrust.UNTRUSTED


@pytest.mark.parametrize(
    ("entry", "url", "trust"),
    [
        ("gpu-box", "http://GPU-BOX.:8000/v1", TRUSTED),
        ("gpu-box:8000", "http://user:key@gpu-box:8000/v1", TRUSTED),
        ("gpu-box:8000", "http://gpu-box:8001/v1", UNTRUSTED),
        ("gpu-box:8000", "http://gpu-box:8000@elsewhere/v1", UNTRUSTED),
        ("https://gpu-box", "https://gpu-box:443/v1", TRUSTED),
        ("https://gpu-box", "http://gpu-box/v1", UNTRUSTED),
        ("[2001:DB8:0::5]:8000", "http://[2001:db8::5]:8000/v1", TRUSTED),
        ("[::1]:8000", "http://[0:0:0:0:0:0:0:1]:8000/v1", TRUSTED),
        ("[::1]:8000", "http://localhost:8000/v1", TRUSTED),
        ("2001:db8::5", "http://[2001:db8::5]:8000/v1", TRUSTED),
        ("::1", "http://127.0.0.1:8000/v1", TRUSTED),
    ],
)
def test_a_named_host_is_known_however_it_is_written(entry, url, trust):
    assert Hosts("http://daemon:8321", [entry]).trust(url) is trust


@pytest.mark.parametrize("entry", ["gpu-box:port", "", "http://", "::1::"])
def test_an_entry_that_names_no_host_is_refused(entry):
    with pytest.raises(ConfigurationError, match="host:port"):
        Hosts("http://daemon:8321", [entry])


@pytest.mark.parametrize(
    ("url", "trust"),
    [
        ("https://corp.example/lightning/v1/chat/completions", DAEMON),
        ("https://corp.example/lightning", DAEMON),
        ("https://corp.example/llm/v1/chat/completions", UNTRUSTED),
        ("https://corp.example/lightning-llm/v1/chat/completions", UNTRUSTED),
        ("https://corp.example/", UNTRUSTED),
    ],
)
def test_what_else_a_proxy_serves_beside_the_daemon_is_not_the_daemon(url, trust):
    assert Hosts("https://Corp.example:443/lightning/").trust(url) is trust
    assert Hosts("https://corp.example").trust(url) is DAEMON


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8321/v1", True),
        ("https://LOCALHOST/v1", True),
        ("http://[0:0:0:0:0:0:0:1]:8000", True),
        ("http://127.0.0.1.example/v1", False),
        ("https://api.openai.com/v1", False),
    ],
)
def test_a_url_on_loopback_is_on_this_machine(url, here):
    assert on_this_machine(url) is here
