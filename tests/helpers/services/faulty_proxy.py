"""An HTTP proxy in front of an object store that answers chosen requests as a store in trouble does."""

import http.client
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
ANSWERS = {
    "500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "denied": (403, "AccessDenied", "Access Denied"),
}
KINDS = (*ANSWERS, "reset", "truncated")
"""`reset` closes the connection without an answer, `truncated` in the middle of one."""
PASSING = ("500", "503", "reset", "truncated")
"""What a store in trouble answers now and then."""


class FaultyProxy:
    """Passes requests on to `port`, and fails those that `fails` chooses by their number, from 0.

    requests : method and path of all requests since `begin`.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self.injected = 0
        self.kind = ""
        self.fails: Callable[[int], bool] = lambda number: False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, port))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def begin(self, kind: str = "", fails: Callable[[int], bool] = lambda number: False) -> None:
        """Count requests anew, and let these fail in this way."""
        with self._lock:
            self.requests, self.injected, self.kind, self.fails = [], 0, kind, fails

    def fault(self, request: str) -> str:
        """How this request fails; "" if it does not."""
        with self._lock:
            self.requests.append(request)
            if not self.fails(len(self.requests) - 1):
                return ""
            self.injected += 1
            return self.kind

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: FaultyProxy, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def answer(self) -> None:
            body = self._body()
            fault = proxy.fault(f"{self.command} {self.path}")
            if fault == "reset":
                self._reset()
            elif fault in ANSWERS:
                status, code, message = ANSWERS[fault]
                text = ERROR.format(code=code, message=message).encode()
                self._send(status, {"Content-Type": "application/xml"}, text)
            else:
                self._pass_on(body, cut=fault == "truncated")

        def _body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _pass_on(self, body: bytes, *, cut: bool) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name != "Transfer-Encoding"}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
            left_out = ("connection", "transfer-encoding", "content-length")
            kept = {name: value for name, value in response.getheaders() if name.lower() not in left_out}
            length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self._send(response.status, kept, data, length, cut=cut)
            connection.close()

        def _send(
            self,
            status: int,
            headers: dict[str, str],
            data: bytes,
            length: str | None = None,
            *,
            cut: bool = False,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.wfile.flush()
                self._reset()

        def _reset(self) -> None:
            # Without lingering the connection is reset, and what was not read yet is lost.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler
