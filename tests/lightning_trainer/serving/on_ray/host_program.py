"""Plays the host of an engine for the tests of where engines are put: it answers as one does and computes nothing.

What it is told on standard input, and what it says on standard output, is ours; a publication is accepted where the
file is there, inside the folder of weights, and has its checksum.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
from lightning_trainer.serving.shared_memory import file_checksum

settings = json.loads(sys.stdin.readline())
assert (Path(settings["model"]) / "config.json").is_file()
published = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"version": published[-1]["version"] if published else 0})

    def do_POST(self) -> None:
        publication = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = Path(publication["path"])
        assert Path(settings["weights_directory"]) in path.parents
        sound = file_checksum(path) == publication["checksum"]
        if sound:
            published.append(publication)
        files = sorted(str(one.name) for one in path.parent.iterdir())
        report = {"accepted": sound, "version": publication["version"], "reason": " ".join([settings["model"], *files])}
        measured = {"max_abs_diff": 0.0, "mean_abs_diff": 0.0, "movement": None, "seconds": {}}
        self._answer({**report, **measured})

    def _answer(self, document: dict) -> None:
        known = self.headers["authorization"] == f"Bearer {settings['token']}"
        body = json.dumps(document if known else {"error": {"message": "no token"}}).encode()
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


server = ThreadingHTTPServer((settings["host"], 0), Handler)
threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
version = settings["engine"]["vllm"].get("seed", "0.31.0")
print(json.dumps({"port": server.server_port, "vllm": version}), flush=True)
sys.stdin.read()  # the end of whoever started it
