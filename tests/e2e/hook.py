"""A webhook on the head of a lab, as somebody has it who is told of problems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.lab import Lab

PORT = 8099
TAKEN = "/run/hook.taken"
SERVER = f"""
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("{TAKEN}", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"taken")
http.server.HTTPServer(("127.0.0.1", {PORT}), Hook).serve_forever()
"""


@asynccontextmanager
async def hooked(lab: Lab, name: str, more: str = "") -> AsyncIterator[None]:
    """Have a receiver meanwhile that meshd tells; each message is a line of TAKEN.

    Args:
        lab: the cluster.
        name: of the receiver in the settings.
        more: other lines of its table.
    """
    await lab.head.write("/run/hook.py", SERVER)
    await lab.head.run("systemd-run", "--unit=hook", "python3", "/run/hook.py")
    try:
        table = f'\n[notify.{name}]\nurl = "http://127.0.0.1:{PORT}/"\n{more}'
        assert await lab.write_settings(lab.settings_with() + table) == 0

        async def tried() -> bool:
            return (await lab.meshctl("notify", "test", name)).returncode == 0

        await lab.until(tried, "the test message is taken")
        yield
    finally:
        await lab.write_settings(lab.settings_with())
        await lab.head.run("systemctl", "stop", "hook", check=False)
        await lab.head.run("rm", "-f", "/run/hook.py", TAKEN)
