"""A server of S3's protocol in another process (moto's), which fails as a test asks it to.

python object_store.py FOLDER   (it writes its port into FOLDER/port, and requests into FOLDER/requests)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

KEY, SECRET = "AKIAOFTHETESTS12345", "s3cr3t/Of/The/Tests/0123456789abcdefghij"


class ObjectStore:
    """The server, with a bucket ``bucket``.

    Args:
        folder: For its files.

    Attributes:
        environment: The variables that a client needs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(folder)], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while not (folder / "port").exists() or not (folder / "port").read_text():
            assert self._process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        port = (folder / "port").read_text()
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def plan(self, **actions: object) -> None:
        """What is to happen from now on.

        Args:
            **actions: ``prefix``: only requests with this in their path are counted and meant; ``fail``:
                the answer of a request by its number from 0 (``"500"``, ``"cut"``), by ``"all"``, or by
                the beginning of ``METHOD name``; ``kill``: a process id, and the number of the request at
                which it is killed; ``first``: whether the request takes effect before.
        """
        part = self.folder / "plan.part"
        part.write_text(json.dumps(actions))
        part.replace(self.folder / "plan")

    def requests(self, prefix: str = "") -> list[str]:
        """``METHOD path`` of each request so far whose path has the prefix in it."""
        path = self.folder / "requests"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if prefix in line]

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait(10)


class Faults:
    """The application with faults in front of it."""

    def __init__(self, application, folder: Path) -> None:
        self._application, self._folder = application, folder
        self._lock, self._counts = threading.Lock(), {}

    def __call__(self, environ, start_response):
        line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        with self._lock:
            with (self._folder / "requests").open("a") as file:
                file.write(line + "\n")
            plan = self._folder / "plan"
            actions = json.loads(plan.read_text()) if plan.exists() else {}
            prefix = actions.get("prefix", "")
            number = None
            if prefix in line:
                number = self._counts.get(prefix, 0)
                self._counts[prefix] = number + 1
        if number is None or not actions:
            return self._application(environ, start_response)
        if actions.get("kill") and actions["kill"][1] == number:
            if actions.get("first"):
                list(self._application(environ, start_response))
            os.kill(actions["kill"][0], signal.SIGKILL)
            return self._cut(environ)
        fail = actions.get("fail", {})
        by_line = next((what for start, what in fail.items() if line.startswith(start)), None)
        what = fail.get(str(number)) or fail.get("all") or by_line
        if what == "cut":
            return self._cut(environ)
        if what == "500":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>on purpose</Message></Error>"]
        return self._application(environ, start_response)

    def _cut(self, environ):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionError("cut")


def serve(folder: Path) -> None:
    """Serve until the process is killed."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = Faults(DomainDispatcherApplication(create_backend_app), folder)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    import urllib.request

    address = f"http://127.0.0.1:{server.server_port}/bucket"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT"))
    (folder / "port").write_text(str(server.server_port))
    threading.Event().wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
