"""python -m simulator: serve until told to stop, or while a command runs (--run CMD ...)."""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from simulator.app import make_app
from simulator.exposition import render
from simulator.options import build, parse
from simulator.pace import new_event_loop


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: who gets which signal is decided here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket; a line and exit 3 if it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048)
        # As uvloop does under the real server: else the first token waits for the ACK of the head, up to 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as exc:
        reason = (exc.strerror or str(exc)).partition(" (")[0]
        print(
            f"simulator: can't listen on {host}:{port}: {reason}; give another --port (0 = any free one)",
            file=sys.stderr,
        )
        raise SystemExit(3) from None


async def run_command(command: list[str], url: str, received: "asyncio.Queue[int]") -> int:
    """Run the command to its end; its exit code, or 128 + the signal that ended it."""
    if not received.empty():
        return 128 + received.get_nowait()
    try:
        child = await asyncio.create_subprocess_exec(*command, env={**os.environ, "SIM_URL": url})
    except OSError as exc:
        print(f"simulator: can't run {command[0]}: {exc.strerror}", file=sys.stderr)
        return 127 if isinstance(exc, FileNotFoundError) else 126
    forwarding = asyncio.ensure_future(forward(received, child))
    code = await child.wait()
    forwarding.cancel()
    return code if code >= 0 else 128 - code


async def forward(received: "asyncio.Queue[int]", child: asyncio.subprocess.Process) -> None:
    """Ctrl-C goes to the whole group: the command decides what to do, and needs this server while it drains."""
    while True:
        number = await received.get()
        if number != signal.SIGINT:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(child.pid, number)  # send_signal() would poll, and take the exit code from the watcher


async def until_signal(received: "asyncio.Queue[int]") -> int:
    await received.get()
    return 0


async def serve(options: argparse.Namespace, command: list[str] | None, sock: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, received.put_nowait, number)
    box = build(options, loop)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(options.host, options.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"
    config = uvicorn.Config(
        make_app(box),
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    server = Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    await render(box)  # the first page is slow to make; later ones must not delay tokens
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    print(
        f"simulator: {url} serves {' '.join(model.name for model in box.models)}",
        file=sys.stderr if command else sys.stdout,
        flush=True,
    )
    gc.collect()
    gc.freeze()
    try:
        return await (run_command(command, url, received) if command else until_signal(received))
    finally:
        server.should_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # nobody is left to read it
        await serving


def main(argv: list[str]) -> int:
    options, command = parse(argv)
    with listen(options.host, options.port) as sock, asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(serve(options, command, sock))
        except KeyboardInterrupt:  # before the signal handlers were in place
            return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
