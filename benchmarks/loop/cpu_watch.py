"""CPU-seconds of the loop's processes, by their purpose, at any moment of a run."""

import bisect
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psutil

_EVERY_S = 0.25
_OF_COMMAND = {
    "engine": ("VLLM::", "lightning_trainer.serving.host"),
    "trainer": ("ray::TrainerActor",),
    "daemon": ("lightning_trainer serve",),
    "Ray": ("ray", "gcs_server", "raylet"),
}
"""By kind, parts of command lines; the first kind that fits counts. This process is the agent."""


class CpuWatch:
    """Looks at this process and all below it every quarter of a second while the block runs."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, Mapping[str, float]]] = []
        self._kinds: dict[int, str] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Return the CPU-seconds between two moments, by kind of process.

        Args:
            began: by ``time.monotonic()``.
        """
        before, after = self._at(began), self._at(ended)
        spent = {kind: used_s - before.get(kind, 0.0) for kind, used_s in after.items()}
        return {kind: used_s for kind, used_s in spent.items() if used_s > 0}

    def _at(self, moment: float) -> Mapping[str, float]:
        index = bisect.bisect_right([seen_at for seen_at, _ in self._seen], moment)
        return self._seen[max(0, index - 1)][1]

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                used = process.cpu_times()
                kind = self._kind(process) if process.pid != me.pid else "agent"
            except psutil.Error:
                continue
            self._last[process.pid] = kind, used.user + used.system
        total: defaultdict[str, float] = defaultdict(float)
        for kind, used_s in self._last.values():
            total[kind] += used_s
        self._seen.append((time.monotonic(), total))

    def _kind(self, process: psutil.Process) -> str:
        known = self._kinds.get(process.pid)
        if known is None:
            command = " ".join(process.cmdline())
            fits = (kind for kind, words in _OF_COMMAND.items() if any(word in command for word in words))
            known = next(fits, "other")
            if known not in ("Ray", "other"):  # a Ray worker gets its title later, and a fork its command
                self._kinds[process.pid] = known
        return known

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
