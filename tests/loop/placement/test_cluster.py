"""Three nodes in network namespaces of their own: the daemon on one, trainer and engines on the others, until both die.

Each of the two has its own /tmp and /dev/shm as well, and is a process namespace: no path of the daemon's disk is
there, and its first process takes all others along, as a machine does.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.store.tables.steps import select_batches
from lightning_trainer.types import TrainingBatch

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(5400)]

AGENT = Path(__file__).parents[1] / "scripts" / "agent_script.py"
ROOT = Path(__file__).parents[3]
WAIT_S = 1200
"""For a start, or for what comes back: engines take a minute of one core each, and the machine may be busy."""
HEAD = "10.77.0.1"
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
OF_THIS_PROCESS = ("RAY_", "GLOO_")
"""Environment that a trainer in this process has set for its own machine: a node must not inherit it."""
OWN_FOLDERS = """
mount -t tmpfs tmpfs /dev/shm || exit
case "$0" in
/tmp/*)
    mkdir /dev/shm/kept && mount --bind "$0" /dev/shm/kept && mount -t tmpfs tmpfs /tmp && mkdir -p "$0" \\
    && mount --bind /dev/shm/kept "$0" && umount /dev/shm/kept && rmdir /dev/shm/kept || exit ;;
*) mount -t tmpfs tmpfs /tmp || exit ;;
esac
"$@"; exit
"""
"""What a node's first process runs. Of /tmp it sees the checkout alone, if that is there: what it runs is installed."""
HALF, STEPS = 6, 10
KILLED_AT, KILLED_AGAIN_AT = 3, 7
"""So many steps are done then."""
LR = 1e-3
POLICY = f"""
[ray]
address = "{HEAD}:6379"
placement = "spread"
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 3
optimizer.lr = {LR}
[policy.versions]
keep_last = 20
"""
_OWN_NETWORK = "/proc/self/ns/net"
_NETWORK = 0x40000000  # CLONE_NEWNET


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Nodes:
    """A network of three hosts, and Ray on them. The test runs on the first one."""

    def __init__(self, folder: Path) -> None:
        self._names = [f"lt{os.getpid()}-{number}" for number in range(3)]
        self._processes: dict[int, subprocess.Popen] = {}
        self._folder = folder
        self._ray_folder = Path(f"/tmp/lt-nodes-{os.getpid()}")  # Ray's sockets have short paths

    def connect(self) -> None:
        """Raises CalledProcessError, FileNotFoundError: this machine or user can make no network namespaces."""
        hub = self._names[0]
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{HEAD}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for number, name in enumerate(self._names[1:], start=1):
            _ip("-n", hub, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", f"to{number}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for number in tuple(self._processes):
            self.kill(number)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(self._ray_folder, ignore_errors=True)

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def start(self, number: int) -> None:
        """Start a node; the first one is the head, gives the cluster no processors, and ends with this process."""
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-gpus=0", "--disable-usage-stats"]
        ray += [f"--node-ip-address={self.address(number)}", f"--object-store-memory={200 * 2**20}"]
        if number == 0:
            ray += ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
            command = [*ray, f"--temp-dir={self._ray_folder}"]
        else:
            command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", OWN_FOLDERS]
            command += [str(ROOT)]
            command += [*ray, f"--address={HEAD}:6379", "--num-cpus=6"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PROCESS)}
        with (self._folder / f"node-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self._names[number], *command],
                env={**clean, **RAY},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """End a node with SIGKILL: its first process, and so each of its processes."""
        process = self._processes.pop(number)
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for one in below if number == 0 else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive, f"node {number} outlives its first process: {alive}"

    def all_run(self) -> bool:
        """Raises AssertionError: a node has ended by itself."""
        for number, process in self._processes.items():
            assert process.poll() is None, f"node {number} has ended: {self.log(number)}"
        return True

    def starts(self, number: int) -> bool:
        """Start a node, and again if it has ended by itself: Ray gives up where starting takes half a minute."""
        process = self._processes.get(number)
        if process is None or process.poll() is not None:
            self.start(number)
        return True

    def commands(self, number: int) -> list[str]:
        """Return the command lines of what runs on a node now."""
        found = []
        for one in psutil.Process(self._processes[number].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                found.append(" ".join(one.cmdline()))
        return found

    def shared_memory(self, number: int) -> Path:
        """The node's own /dev/shm, as it is seen from here."""
        inside = psutil.Process(self._processes[number].pid).children(recursive=True)[-1]
        return Path(f"/proc/{inside.pid}/root/dev/shm")

    def log(self, number: int) -> str:
        return (self._folder / f"node-{number}.log").read_text()[-2000:]

    @contextlib.contextmanager
    def on_the_first(self) -> Iterator[None]:
        """Have this thread, and the processes that it starts, in the first node's network."""
        library = ctypes.CDLL(None, use_errno=True)
        with open(_OWN_NETWORK) as before, open(f"/run/netns/{self._names[0]}") as there:
            assert library.setns(there.fileno(), _NETWORK) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert library.setns(before.fileno(), _NETWORK) == 0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        try:
            nodes.connect()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = getattr(error, "stderr", None) or error
            missing = f"no network namespaces can be made here ({said}): it takes root, and iproute2"
            if os.environ.get("LIGHTNING_TESTS_NEED_NETNS"):
                pytest.fail(missing)
            pytest.skip(missing)
        with nodes.on_the_first():
            nodes.start(0)
            _until(lambda: _alive(1), lambda: nodes.log(0))
            for number in (1, 2):
                nodes.start(number)
            _until(lambda: nodes.all_run() and _alive(3), lambda: nodes.log(1) + nodes.log(2))
            yield nodes
    finally:
        nodes.remove()


@contextlib.contextmanager
def _serving(make_daemon, policy: str, replicas: int) -> Iterator:
    """A daemon on the first node, with its trainer and its engines on the others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OF_THIS_PROCESS)]:
            patch.delenv(name)
        for name, value in RAY.items():
            patch.setenv(name, value)
        engine = f'placement = "cluster"\nreplicas = {replicas}\nstartup_timeout_s = {WAIT_S}'
        daemon = make_daemon(policy, engine=engine, training='world_size = 2\ndevice = "cpu"')
        try:
            daemon.start()
            daemon.wait_until(lambda: daemon.policy("tiny")["phase"] == "collecting", WAIT_S)
            yield daemon
        finally:
            daemon.stop()


@pytest.fixture(scope="module")
def daemon(nodes: Nodes, make_daemon) -> Iterator:
    with _serving(make_daemon, POLICY, replicas=2) as daemon:
        yield daemon


def _alive(count: int) -> bool:
    """Whether so many nodes are in the cluster; asked by another process, for this one is in no Ray."""
    program = f"import ray; ray.init('{HEAD}:6379', logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", program], env={**clean, **RAY}, capture_output=True, text=True)
    return done.stdout.strip() == str(count)


def _until(condition: Callable[[], bool], said: Callable[[], str], every_s: float = 0.5) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if condition():
                return
        assert time.monotonic() < deadline, f"not so after {WAIT_S} s: {said()}"
        time.sleep(every_s)


def _replicas(daemon) -> list[dict]:
    return daemon.get("/lightning/status")["policies"]["tiny"]["engine"]["replicas"]


def _places(daemon) -> list[str]:
    return sorted(one["node"] for one in _replicas(daemon))


def _proven(daemon) -> bool:
    """Whether all replicas serve the live version, which an engine does only with a proof."""
    live = {"tiny": daemon.policy("tiny")["live_version"]}
    return all((one["state"], one["versions"]) == ("ready", live) for one in _replicas(daemon))


@contextlib.contextmanager
def _agent(daemon, steps: int) -> Iterator[None]:
    """An agent that brings the run to so many steps while the block runs and after; it loses no call and no step."""
    environment = daemon._environment() | {"LIGHTNING_ENDPOINT": daemon.url, "OPENAI_BASE_URL": f"{daemon.url}/v1"}
    agent = subprocess.Popen([sys.executable, str(AGENT), "--steps", str(steps)], env=environment)
    try:
        yield
        assert agent.wait(WAIT_S) == 0, daemon.tail()
    finally:
        agent.kill()
        agent.wait()


def _kill_in(phase: str, step: int, daemon, nodes: Nodes, number: int) -> None:
    """Kill a node when the policy is in that phase of a step or a later one."""

    def there() -> bool:
        policy = daemon.policy("tiny")
        return policy["phase"] == phase and policy["steps_done"] >= step

    _until(there, daemon.tail, every_s=0.01)
    nodes.kill(number)


def _batches(daemon) -> list[TrainingBatch]:
    with daemon.database() as connection:
        return select_batches(connection, "tiny")


def test_what_is_trained_on_two_nodes_is_served_by_both(nodes: Nodes, daemon) -> None:
    assert _places(daemon) == [nodes.address(1), nodes.address(2)]
    daemon.script(AGENT, "--steps", "2")
    policy = daemon.policy("tiny")
    assert (policy["live_version"], policy["problems"]) == (2, [])
    assert _proven(daemon)
    assert f"on {nodes.address(1)}" in daemon.command("status")


def test_nodes_that_die_in_a_step_and_in_a_publication_stop_nothing(nodes: Nodes, daemon) -> None:
    with _agent(daemon, HALF):
        _kill_in("training", KILLED_AT, daemon, nodes, 1)
    _until(lambda: _proven(daemon) and _places(daemon) == [nodes.address(2)] * 2, daemon.tail)
    _until(lambda: nodes.starts(1) and _alive(3), lambda: nodes.log(1))
    with _agent(daemon, STEPS):
        _kill_in("publishing", KILLED_AGAIN_AT, daemon, nodes, 2)
    _until(lambda: _proven(daemon) and _places(daemon) == [nodes.address(1)] * 2, daemon.tail)
    policy = daemon.policy("tiny")
    assert (policy["steps_done"], policy["live_version"]) == (STEPS, STEPS)
    batches = _batches(daemon)
    assert [batch.step for batch in batches] == list(range(1, STEPS + 1))
    segments = (segment for batch in batches for sample in batch.samples for segment in sample.segments)
    trained = Counter(segment.transition_id for segment in segments)
    assert max(trained.values()) == 1, f"trained twice: {trained.most_common(3)}"


def test_the_weights_are_those_of_one_process(daemon, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = load_config(daemon.config)
    folder = config.daemon.state_dir / "versions" / "tiny" / f"v{STEPS:08d}"
    _until(folder.is_dir, daemon.tail)
    ours = load_file(folder / "model.safetensors")
    batches = _batches(daemon)
    theirs = _alone(config, batches, tmp_path)
    assert ours.keys() == theirs.keys()
    apart = max((ours[name].double() - theirs[name].double()).abs().max().item() for name in ours)
    print(f"after {STEPS} steps the weights are {apart:.3g} apart, with a learning rate of {LR:g}")
    # A tenth of one update after ten: AdamW divides by the gradient's own size, rounding included.
    assert apart < LR / 10
    start = load_file(resolve_model("random:tiny", model_cache()) / "model.safetensors")
    assert max((ours[name].double() - start[name].double()).abs().max().item() for name in ours) > LR


def test_a_daemon_that_is_killed_leaves_no_engine_and_no_trainer_on_the_nodes(nodes: Nodes, daemon) -> None:
    ours = ("lightning_trainer.serving.host", "ray::TrainerActor", "ray::EngineActor")

    def running() -> list[str]:
        return [line for line in nodes.commands(1) if any(name in line for name in ours)]

    assert sum(ours[0] in line for line in running()) == 2
    daemon.kill()
    _until(lambda: not running(), lambda: str(running()))


def test_of_an_adapter_the_adapter_alone_travels(nodes: Nodes, make_daemon) -> None:
    adapter = POLICY.replace("[policy.versions]", "lora = { rank = 4, alpha = 8 }\n[policy.versions]")
    with _serving(make_daemon, adapter, replicas=1) as daemon:
        daemon.script(AGENT, "--steps", "2")
        assert daemon.policy("tiny")["live_version"] == 2
        assert _proven(daemon)
        assert daemon.answer("tiny@v1").version == "1", "an old adapter travels as the live one does"
        (place,) = _places(daemon)
        number = next(number for number in (1, 2) if nodes.address(number) == place)
        brought = list(nodes.shared_memory(number).glob("lightning-trainer-*/tiny/v*.safetensors"))
        assert [path.name.partition("-")[0] for path in brought] == ["v2"], "the one before is gone from the node"
        whole = resolve_model("random:tiny", model_cache()) / "model.safetensors"
        assert brought[0].stat().st_size < whole.stat().st_size / 2


def _alone(config, batches: list[TrainingBatch], folder: Path) -> dict:
    """The weights that one process makes of the same batches."""
    import asyncio

    from safetensors.torch import load_file

    from lightning_trainer.training.remote import make_trainer
    from lightning_trainer.training.settings import trainer_settings

    settings = trainer_settings(config, config.only_policy, resolve_model("random:tiny", model_cache()), folder)

    async def train() -> None:
        of_one = settings.training.model_copy(update={"world_size": 1})
        trainer = make_trainer("inprocess", replace(settings, training=of_one))
        await trainer.start()
        try:
            for batch in batches:
                await trainer.step(batch)
            await trainer.publish(folder / "alone.safetensors", len(batches))
        finally:
            await trainer.close()

    asyncio.run(train())
    return load_file(folder / "alone.safetensors")
