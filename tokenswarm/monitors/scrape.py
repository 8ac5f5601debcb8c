"""One GET of a metrics page, by plain http.client in a process of its own: redirects followed, keys kept at home."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

TIMEOUT = 5.0
BODY_MAX = 16 << 20
HOPS = 4


@dataclass(frozen=True)
class Access:
    """How a page may be asked for: the key goes to `home` (scheme, host and port) only."""

    home: str = ""
    key: str = ""
    ca: str = ""
    insecure: bool = False
    client_cert: str = ""

    def headers(self, url: str) -> dict[str, str]:
        """Headers for a URL."""
        plain = {"Accept": "text/plain, */*;q=0.5", "Accept-Encoding": "identity", "User-Agent": "tokenswarm"}
        at_home = bool(self.key) and urlsplit(url)[:2] == urlsplit(self.home)[:2]
        return plain | ({"Authorization": f"Bearer {self.key}"} if at_home else {})

    def context(self) -> ssl.SSLContext:
        """TLS as the options say."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.client_cert:
            context.load_cert_chain(self.client_cert)
        return context


def access_of(kind: str, url: str, options: object) -> Access:
    """The access of a target of the run; its key comes from this process's environment."""
    ca = str(getattr(options, f"{kind}_ca", ""))
    key = os.environ.get(f"{kind.upper()}_API_KEY", "")
    return Access(url, key, ca, bool(getattr(options, "insecure", False)), str(getattr(options, "client_cert", "")))


@dataclass(frozen=True)
class Page:
    """What came back: text and the time it was complete; or `why` there is none."""

    time: float
    text: str = ""
    why: str = ""
    ms: float = 0.0


def get(url: str, access: Access = Access(), timeout: float = TIMEOUT) -> Page:
    """GET a page. Never raises: a failure is a page with `why`. The time stamp is that of the answer, late or not."""
    begun = time.monotonic()
    try:
        status, body = _follow(url, access, begun + timeout, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Page(time.time(), why=" ".join(f"{why}".split())[:160], ms=1000 * (time.monotonic() - begun))
    took = 1000 * (time.monotonic() - begun)
    text = body.decode("utf-8", "replace")
    return Page(
        time.time(), text if status == 200 else "", "" if status == 200 else f"HTTP {status}{_said(text)}", took
    )


def _follow(url: str, access: Access, until: float, timeout: float) -> tuple[int, bytes]:
    for _ in range(HOPS):
        parts = urlsplit(url)
        if parts.scheme == "https":
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                str(parts.hostname), parts.port, timeout=timeout, context=access.context()
            )
        else:
            link = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            link.request("GET", path, headers=access.headers(url))
            answer = link.getresponse()
            to = answer.getheader("Location")
            if not (300 <= answer.status < 400 and to):
                return answer.status, _body(answer, until)
            url = urljoin(url, to)
        finally:
            link.close()
    raise ValueError(f"redirected {HOPS} times")


def _body(answer: http.client.HTTPResponse, until: float) -> bytes:
    """The body; of one that is cut short, the whole lines: a number that lost its last digits looks like a number."""
    got = b""
    try:
        while part := answer.read1(1 << 16):
            got += part
            if len(got) > BODY_MAX:
                raise ValueError(f"the page is larger than {BODY_MAX >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError("timed out")
        if answer.length:  # read1 ends quietly when the peer closes too early
            raise http.client.IncompleteRead(got, answer.length)
    except (http.client.IncompleteRead, ConnectionError):
        return got[: got.rfind(b"\n") + 1]
    return got


def _said(text: str) -> str:
    """The server's own words in an error body."""
    try:
        found = json.loads(text)
    except ValueError:
        words = text
    else:
        inner = found.get("error", found) if isinstance(found, dict) else found
        words = str(inner.get("message") or inner.get("detail") or "") if isinstance(inner, dict) else str(inner)
    words = " ".join(words.split())[:120]
    return f": {words}" if words and not words.startswith("<") else ""
