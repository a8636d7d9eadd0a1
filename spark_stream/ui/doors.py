"""Who may ask for what: known hosts, a token where one is set, forms of our own pages only; and what pages may load.

Host           a name that this server is known by, else a page of another site could reach it by a name of its own
               (DNS rebinding): 403
token          where one is set, every page but the one that asks for it: a cookie, or `Authorization: Bearer`
form           POST: from our own pages (Origin) and with their secret (`csrf`), at most FORM_SIZE_MAX bytes
page           nothing but our own files; no inline script or style; in nobody's frame; nothing is kept by caches
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "jstream_ui"
TOKEN_SIZE_MIN = 16  # letters
FORM_SIZE_MAX = 64 << 10  # bytes
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with none at all browsers send forms with the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
CACHED = "private, max-age=31536000, immutable"
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class FormRefused(Exception):
    """A form that none of our pages sent."""


class Keys:
    """The secrets of one process: they end with it, so nobody stays logged in longer."""

    def __init__(self, token: str | None) -> None:
        self._token, self._secret = token, secrets.token_bytes(32)

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def is_token(self, token: str) -> bool:
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    @property
    def session(self) -> str:
        """What the cookie of somebody holds who knows the token."""
        return self._derived("session")

    @property
    def csrf(self) -> str:
        """What every form of our own pages holds."""
        return self._derived("csrf")

    def _derived(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def is_known(self, headers: Headers) -> bool:
        """Return whether who asks may see pages."""
        if self._token is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(credentials.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.session.encode())


class Doors:
    """Stands in front of all routes."""

    def __init__(self, app: App, keys: Keys, hosts: Iterable[str]) -> None:
        """`hosts`: names by which this server may be asked, without port; `*` for any."""
        self._app, self._keys, self._hosts = app, keys, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers, path = Headers(scope=scope), str(scope["path"])

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = {**HEADERS, "Cache-Control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in more.items() if k.lower().encode() not in present),
                ]
            await send(message)

        refusal: Response | None = None
        if "*" not in self._hosts and host_name(headers.get("host", "")) not in self._hosts:
            refusal = PlainTextResponse("this name is not one of jstream ui: pass it as --host-name\n", 403)
        elif not self._keys.is_known(headers) and path != "/login" and not path.startswith("/static/"):
            if path.startswith(("/api/", "/live")):
                refusal = PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
            else:
                refusal = RedirectResponse("/login", 303)
        await (refusal or self._app)(scope, receive, guarded)


def host_name(host: str) -> str:
    """Return the name in a Host header, in small letters and without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


async def form_of(request: Request, keys: Keys, needs_secret: bool = True) -> dict[str, str]:
    """Return the fields of a form that one of our pages sent. Raises FormRefused."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise FormRefused(f"this form came from {origin}")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise FormRefused("this form came from another site")
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_SIZE_MAX:
                raise FormRefused(f"a form has at most {FORM_SIZE_MAX} bytes")
    except ClientDisconnect as error:
        raise FormRefused("the form did not come to its end") from error
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=64))
    except ValueError as error:
        raise FormRefused(f"this is no form: {error}") from error
    if needs_secret and not hmac.compare_digest(fields.get("csrf", "").encode(), keys.csrf.encode()):
        raise FormRefused("this form is not of a page of this server: reload the page")
    return fields
