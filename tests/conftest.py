"""What several suites share: the tiny model, one engine that serves it for the whole session, and recorded spans."""

import ast
import asyncio
import ipaddress
import itertools
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.json_format import ParseDict
from hypothesis import HealthCheck, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_trainer.config import EngineConfig
from lightning_trainer.ingest.http.otlp import decode_json_request, decode_request
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.types import Span

T = TypeVar("T")

# Where the shell turns bytecode off, collecting takes twice as long, and every process that a test starts compiles all
# that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes is the machine's affair; speed is measured in benchmarks/.
settings.register_profile("lightning", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lightning")


_ENGINES = re.compile(r"\bmark\.(engine|loop|ray)\b")
"""Marks of tests that start processes which take most of the machine."""
_HEAVY = {"engine", "verl", "loop", "ray", "torch", "process", "long", "slow", "gpu"}
_HEAVY_FILE = re.compile(
    rf"^pytestmark = (?:\[[^\]]*|.*)\bmark\.({'|'.join(sorted(_HEAVY))})\b",
    re.MULTILINE,
)
"""A file all of whose tests import torch, vLLM, verl or Ray, start them or another program, or take seconds."""
_PROGRAMS = {"postgres", "chromium", "lightning"}
"""Fixtures that start a program."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="no test that imports torch, vLLM, verl or Ray, starts a program or takes seconds (make test-fast)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, before they are imported, files that the fast tier has nothing of."""
    if config.getoption("--fast") and collection_path.suffix == ".py":
        return bool(_HEAVY_FILE.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        heavy = [item for item in items if _is_heavy(item)]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in set(heavy)]


def _is_heavy(item: pytest.Item) -> bool:
    programs = _PROGRAMS.intersection(getattr(item, "fixturenames", ()))
    return bool(programs) or any(mark.name in _HEAVY for mark in item.iter_markers())


@cache
def _with_engines(file: str) -> frozenset[str]:
    """Return the names of a file's tests that start engines or Ray, by its text: who hands out tests imports none."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    if not _ENGINES.search(text):
        return frozenset()
    body = ast.parse(text).body
    whole = any(
        isinstance(one, ast.Assign) and "pytestmark" in (said := ast.unparse(one)) and _ENGINES.search(said)
        for one in body
    )
    tests = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(
        one.name for one in tests if whole or any(_ENGINES.search(ast.unparse(by)) for by in one.decorator_list)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process begin with all tests that start engines and Ray, one after the other, and another run the rest.

    Two engines that begin at once on two cores take so long that Ray gives up waiting for its own node.
    """
    from xdist.scheduler import LoadScopeScheduling

    class EnginesFirst(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            return "engines" if test.partition("[")[0] in _with_engines(file) else file

        def _assign_work_unit(self, node: Any) -> None:
            if "engines" in self.workqueue:
                self.workqueue.move_to_end("engines", last=False)
            super()._assign_work_unit(node)

    return EnginesFirst(config, log)


@pytest.fixture(scope="session", autouse=True)
def spool_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests record goes nowhere near the spool of whoever runs them, from which their own daemon would get it; nor
    do tests learn of that daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path_factory.mktemp("spool")))
        patch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path_factory.mktemp("access")))
        yield


class Authority:
    """Signs certificates, as an organization's own authority does."""

    def __init__(self, folder: Path, name: str = "Authority of the tests") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ca = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key, -1, 30).add_extension(ca, critical=True)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        *names: str,
        days: float = 30,
        since_days: float = -1,
        passphrase: bytes | None = None,
        file: str = "served",
    ) -> tuple[Path, Path]:
        """Return the files of a certificate for these names, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "daemon")])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        made = self._builder(subject, key, since_days, days).add_extension(alternatives, critical=False)
        cert, private = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        private.touch(0o600)
        private.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return cert, private

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since_days: float, days: float
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=since_days))
            .not_valid_after(now + timedelta(days=days))
        )


_AUTHORITIES = "SSL_CERT_FILE"
_OF_THE_MACHINE = os.environ.get(_AUTHORITIES)


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each HTTP client load one authority: all of the machine's take 40 ms of CPU, a thousand times in a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_AUTHORITIES, str(Authority(tmp_path_factory.mktemp("authority"), "Authority of nobody").file))
        yield


@pytest.fixture(scope="session")
def machines_authorities(one_authority: None) -> Callable[[], AbstractContextManager[None]]:
    """``with machines_authorities():`` for tests that install packages, the only ones that reach beyond the machine."""

    @contextmanager
    def restored() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if _OF_THE_MACHINE is None:
                patch.delenv(_AUTHORITIES)
            else:
                patch.setenv(_AUTHORITIES, _OF_THE_MACHINE)
            yield

    return restored


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@pytest.fixture(scope="session")
def authority_class() -> type[Authority]:
    return Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class SharedEngine:
    """A real engine (fp32, the tiny model, policy ``tiny``) behind plain calls; its event loop has a thread of its own.

    It is shared: a test that publishes leaves its version behind, so take the next number from ``next_version``.
    """

    def __init__(self, model_dir: Path, folder: Path, /, **options: Any) -> None:
        """``options``: settings of the engine other than these."""
        self.model_dir = model_dir
        self.weights = WeightFiles(folder / "state", version_bytes=2**26)
        self.settings = EngineSettings(
            **{
                "model_dir": model_dir,
                "policies": ("tiny",),
                "weights_dir": self.weights.folder,
                "log_dir": folder,
                "threads": 1,
                "drain_timeout_s": 20,
                "gpu_memory_utilization": options.pop("gpu_memory_utilization", 0.2),
                **{name: options.pop(name) for name in tuple(options) if name not in EngineConfig.model_fields},
                "engine": EngineConfig(
                    **{
                        "dtype": "float32",
                        "max_model_len": 256,
                        "max_num_seqs": 16,
                        "kv_cache_gib": 0.25,
                        "tool_call_parser": "hermes",
                        **options,
                    }
                ),
            }
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared-engine", daemon=True)
        self._thread.start()
        self._versions = itertools.count(1)
        self.process = self.wait(self._start())

    @property
    def base_url(self) -> str:
        return self.process.base_url

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client of the engine itself, not of the gateway."""
        return httpx.AsyncClient(base_url=self.base_url, headers=dict(self.process.headers), timeout=120, **options)

    def next_version(self) -> int:
        return next(self._versions)

    def publish(self, publication: Publication) -> PublicationReport:
        return self.wait(self.process.publish(publication))

    def score(self, token_ids: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        return self.wait(self.process.score(token_ids))

    def version(self) -> int:
        return self.wait(self.process.version())

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float = 600) -> T:
        """Run a coroutine in the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self.wait(self.process.stop())
        self.weights.remove()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _start(self) -> EngineProcess:
        process = EngineProcess(self.settings)
        await process.start()
        try:
            await process.ready(600)
        except BaseException:
            await process.stop()
            raise
        return process


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The folder of ``random:tiny``, in the user's cache, where the daemons that tests start have it too."""
    from lightning_trainer.models.resolve import model_cache, resolve_model

    return resolve_model("random:tiny", model_cache())


@pytest.fixture(scope="session")
def start_engine(tiny_model: Path) -> Callable[..., SharedEngine]:
    """``start_engine(folder, **settings)``: another engine, for whoever closes it."""
    return partial(SharedEngine, tiny_model)


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    """One engine for all tests that are marked ``engine``."""
    folder = tmp_path_factory.mktemp("engine")
    engine = SharedEngine(tiny_model, folder)
    try:
        yield engine
    finally:
        engine.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def lightning() -> Iterator[Any]:
    """``lightning.run("token", cwd=folder)``, ``lightning.start("serve", cwd=folder)``: commands as processes, without
    the seconds that a start of Python takes (``prepared.py``)."""
    prepared = import_module("tests.prepared").Prepared()
    yield prepared
    prepared.close()


@pytest.fixture
def recorded() -> Callable[..., list[Span]]:
    """``recorded(name)``: what real instrumentations sent while one program ran, as the receiver would store it.

    ``recorded/*.json`` names their packages, versions and license (``recorded_with``), the ``program`` and what was
    ``left_out``. The program, if it can be this one: 6 calls that a model answered (the second with two choices, the
    fourth a stream that its reader left) and one that the server refused; the last two answers go to a LangChain agent
    "solver" with the tool "calculator". What their exporter POSTed is under ``foreign`` as ``MessageToDict`` writes an
    ``ExportTraceServiceRequest``, or under ``otlp_json`` if it was JSON. With ``part="ours"`` it is what our own client
    sent from the same process.
    """

    def read(name: str, part: str = "foreign") -> list[Span]:
        document = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text(encoding="utf-8"))
        if "otlp_json" in document:
            return list(decode_json_request(json.dumps(document["otlp_json"]).encode()).spans)
        request = ParseDict(document[part], ExportTraceServiceRequest())
        return list(decode_request(request.SerializeToString()).spans)

    return read


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of the session's own."""
    from benchmarks.common.postgres_server import postgres_server, programs

    if programs() is None:
        missing = "there is no PostgreSQL here: apt-get install postgresql"
        if os.environ.get("LIGHTNING_TESTS_NEED_POSTGRES"):
            pytest.fail(missing)
        pytest.skip(missing)
    # A test that kills processes loses nothing without fsync; benchmarks run with it.
    with postgres_server(fsync="off") as server:
        yield server


_SCHEMAS = itertools.count(1)


@pytest.fixture
def postgres_url(postgres: Any) -> str:
    """The URL of a schema of the test's own."""
    schema = f"test_{next(_SCHEMAS)}"
    postgres.execute(f"CREATE SCHEMA {schema}")
    return postgres.url(schema)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for a module; without one its tests are skipped, unless the run needs it."""
    with import_module("benchmarks.dashboard.browser").browser() as browser:
        if browser is None:
            missing = "there is no Chromium here: apt-get install chromium, and pip install playwright"
            if os.environ.get("LIGHTNING_TESTS_NEED_BROWSER"):
                pytest.fail(missing)
            pytest.skip(missing)
        yield browser
