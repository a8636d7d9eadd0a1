"""HTTP: routes, templates and errors. A page renders the values that its twin below `/api` answers as JSON."""

import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from json import dumps
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route

from spark_stream.look.rendering import LOOK, stylesheet
from spark_stream.look.terminal import show_size, show_span
from spark_stream.pictures import replica_map_svg
from spark_stream.ui import changes, downloads, payload, rescue
from spark_stream.ui.connection import Connection
from spark_stream.ui.doors import (
    CACHED,
    COOKIE,
    LOOPBACK,
    Doors,
    FormRefused,
    Keys,
    Receive,
    Scope,
    Send,
    form_of,
)
from spark_stream.ui.model import copies, messages, pages, pipelines, subjects
from spark_stream.ui.model.health import age_text, health
from spark_stream.ui.query import Query
from spark_stream.ui.site import READ_ERRORS, Site
from storage_core.errors import NotFoundError, StaleIncarnationError, StorageError

log = logging.getLogger("jstream")
VIEWERS_MAX = 200  # that listen at the same time
REQUEST_SIZE_MAX = 32 << 10  # bytes of a request's line and headers
UNAVAILABLE = 503
WORDS_MAX = 2000  # letters of an error on a page
STATIC = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    LOOK: "text/css; charset=utf-8",
}
Model = Callable[..., Mapping[str, Any]]
NO_STORES: Mapping[str, Site] = {}
_LINK = re.compile(r'( (?:href|action|src|hx-get)=")/')


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and its twin below `/api`."""

    path: str
    model: Model  # of site, query and the parameters in the path
    template: str
    section: str  # of the navigation
    json: Model | None = None  # if the twin has another one
    is_live: bool = True  # it loads anew when the store changed


PAGES = (
    Page("/", pages.overview, "overview.html", "overview"),
    Page("/streams", pages.streams_page, "streams.html", "streams"),
    Page("/streams/{name}/messages", messages.messages_page, "messages.html", "streams"),
    Page(
        "/streams/{name}/messages/{sequence:int}",
        messages.message_page,
        "message.html",
        "streams",
        messages.message_json,
        is_live=False,
    ),
    Page("/streams/{name}/subjects", subjects.subjects_page, "subjects.html", "streams", is_live=False),
    Page("/streams/{name}/copies", copies.copies_page, "copies.html", "streams"),
    Page("/streams/{name}/blocks/{block}", copies.block_page, "block.html", "streams", is_live=False),
    Page("/streams/{name}/configuration", pages.configuration, "configuration.html", "streams"),
    Page("/streams/{name}/consumers/{consumer}", pages.consumer_page, "consumer.html", "consumers"),
    Page("/consumers", pages.consumers_page, "consumers.html", "consumers"),
    Page("/pipelines", pipelines.pipelines_page, "pipelines.html", "pipelines"),
    Page("/pipelines/{number:int}", pipelines.pipeline_page, "pipeline.html", "pipelines"),
    Page("/volumes", pages.volumes_page, "volumes.html", "volumes"),
    Page("/events", pages.events_page, "events.html", "events"),
)


class Server:
    """The application of one store: everything that its routes need."""

    def __init__(self, site: Site, keys: Keys, root: str = "", stores: Mapping[str, Site] = NO_STORES) -> None:
        """`root`: where its pages begin; `stores`: all that are served, by where theirs begin, if there are several."""
        self.site, self.keys, self.tasks = site, keys, changes.Tasks(site)
        self._root, self._stores = root, stores
        self.rescue = rescue.Rescue(site.rescues, site.announce)
        folder = resources.files("spark_stream.ui").joinpath("static")
        self._static = {
            name: stylesheet(name).encode() if name == LOOK else folder.joinpath(name).read_bytes() for name in STATIC
        }
        self._templates = Environment(
            loader=PackageLoader("spark_stream.ui"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        versions = {name: sha256(content).hexdigest()[:12] for name, content in self._static.items()}
        self._templates.globals.update(
            static=lambda name: f"/static/{name}?v={versions[name]}", scale=_scale,
        )  # fmt: skip
        self._templates.filters.update(
            visible=payload.visible, plain=payload.plain,
            size=lambda count: "unknown" if count is None else show_size(count),
            count=lambda number: f"{number:,}", span=show_span, seconds=_seconds_text,
        )  # fmt: skip

    def application(self) -> Starlette:
        """Return all routes, as if pages began at /."""
        routes: list[BaseRoute] = [
            Route("/static/{name}", self._static_file),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/live", self._live),
            Route("/streams/{name}", self._stream),
            Route("/api/streams/{name}", self._stream),
            Route("/streams/{name}/messages/{sequence:int}/raw", self._raw),
            Route("/streams/{name}/download", self._download),
        ]
        for page in PAGES:
            routes.append(Route(page.path, self._page(page)))
            twins = ("/api", "/api/", "/api/overview") if page.path == "/" else (f"/api{page.path}",)
            routes.extend(Route(twin, self._api(page)) for twin in twins)
        for page in (*self._rescue_pages(), *(self._change_pages() if self.site.allows_changes else ())):
            routes.append(Route(page.path, self._page(page), methods=["GET"]))
            routes.append(Route(f"/api{page.path}", self._api(page), methods=["GET"]))
        routes.append(Route("/rescue/scan", self._rescue_scan, methods=["POST"]))
        routes.append(Route("/rescue/download", self._rescue_download))
        if self.site.allows_changes:
            routes.append(Route("/change/{kind}", self._change, methods=["POST"]))
        if self._stores and not self._root:
            page = Page("/stores", self._stores_page, "stores.html", "stores")
            routes += [Route(page.path, self._page(page)), Route(f"/api{page.path}", self._api(page))]
        return Starlette(
            routes=routes,
            exception_handlers={404: self._not_found, Exception: self._unforeseen, FormRefused: self._refused},
        )

    # --- pages and their twins

    def _path(self, request: Request) -> str:
        """Return which page is asked for, as if pages began at /."""
        return request.url.path.removeprefix(self._root) or "/"

    def _stores_page(self, site: Site, query: Query) -> dict[str, Any]:
        """Return how each of the stores that are served stands."""
        del site, query
        rows = []
        for root, other in self._stores.items():
            row: dict[str, Any] = {"name": _store_name(root), "root": root, "paths": list(other.paths)}
            try:
                scan = other.scan()
                row |= {"health": {name: health(other, scan)[name] for name in ("state", "sentence")}}
                row |= {
                    "streams": len(scan.streams),
                    "messages": sum(info["state"]["messages"] for info in scan.streams),
                }
            except READ_ERRORS as error:
                row["health"] = {"state": "critical", "sentence": f"The store cannot be read: {error}"[:WORDS_MAX]}
            rows.append(row)
        return {"stores": rows}

    def _page(self, page: Page) -> Callable[[Request], Any]:
        def answer(request: Request) -> Response:
            try:
                values = page.model(self.site, Query(request.query_params), **request.path_params)
            except (*READ_ERRORS, OverflowError) as error:
                return self._failed(request, error)
            return self.render(request, page.template, values, page.section, is_live=page.is_live)

        return answer

    def _api(self, page: Page) -> Callable[[Request], Any]:
        model = page.json or page.model

        def answer(request: Request) -> Response:
            try:
                return JSONResponse(model(self.site, Query(request.query_params), **request.path_params))
            except (*READ_ERRORS, OverflowError) as error:
                self._let_go(error)
                return JSONResponse(_error_json(error), _status(error))

        return answer

    # --- rescue

    def _rescue_pages(self) -> tuple[Page, ...]:
        def streams(site: Site, query: Query) -> dict[str, Any]:
            return rescue.rescue_page(site, query, self.rescue)

        def stream(site: Site, query: Query, name: str) -> dict[str, Any]:
            return rescue.rescue_stream_page(site, query, self.rescue, name)

        def drawn(site: Site, query: Query, name: str) -> dict[str, Any]:
            return {**stream(site, query, name), "picture": replica_map_svg(self.rescue.drift(name))}

        return (
            Page("/rescue", streams, "rescue.html", "rescue"),
            Page("/rescue/streams/{name}", drawn, "rescue_stream.html", "rescue", stream, is_live=False),
        )

    async def _rescue_scan(self, request: Request) -> Response:
        """Begin to scan the directories that the command line named; nothing of the request says which."""
        await form_of(request, self.keys)
        if self.rescue.directories:
            self.rescue.begin()
        return RedirectResponse(f"{self._root}/rescue", 303)

    def _rescue_download(self, request: Request) -> Response:
        query = Query(request.query_params)
        try:
            kind, stream = query.choice("as", ("html", "json")), query.text("stream") or None
            if kind == "html":
                content, media_type = rescue.picture(self.rescue, stream), "text/html; charset=utf-8"
            else:
                content, media_type = dumps(rescue.comparison(self.rescue, stream)), "application/json"
        except READ_ERRORS as error:
            return self._failed(request, error)
        headers = {"Content-Disposition": f'attachment; filename="comparison.{kind}"'}
        return Response(content.encode("utf-8", "replace"), headers=headers, media_type=media_type)

    # --- changes

    def _change_pages(self) -> tuple[Page, ...]:
        def plan(site: Site, query: Query, kind: str) -> dict[str, Any]:
            made = changes.plan_of(site, query, kind)
            texts = {name: query.text(name) for name in changes.ASKED[kind]}
            return {**made.to_json(site), "asked": changes.ASKED[kind], "given": texts}

        def task(site: Site, query: Query, number: int) -> dict[str, Any]:
            return self.tasks.task(number).to_json(site)

        def tasks(site: Site, query: Query) -> dict[str, Any]:
            return {"changes": [change.to_json(site) for change in self.tasks.newest()]}

        return (
            Page("/change/{kind}", plan, "change.html", "changes", is_live=False),
            Page("/changes/{number:int}", task, "task.html", "changes"),
            Page("/changes", tasks, "tasks.html", "changes"),
        )

    async def _change(self, request: Request) -> Response:
        """Do what the plan said that the form was below."""
        fields = await form_of(request, self.keys)
        return await run_in_threadpool(self._begin, request, fields)

    def _begin(self, request: Request, fields: Mapping[str, str]) -> Response:
        try:
            plan = changes.plan_of(self.site, Query(fields), request.path_params["kind"])
            if plan.missing:
                raise ValueError(f"nothing was done: {plan.missing}")
            if plan.typed and fields.get("typed", "").strip() != plan.typed:
                raise ValueError(f"nothing was done: type {plan.typed} to have it done")
            address = request.client.host if request.client is not None else "an unknown address"
            task = self.tasks.begin(plan, changes.who_of(fields.get("who", ""), address))
        except READ_ERRORS as error:
            return self._failed(request, error)
        return RedirectResponse(f"{self._root}/changes/{task.number}", 303)

    def render(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        section: str = "",
        status: int = 200,
        is_live: bool = True,
    ) -> Response:
        """Return the page; what of a store's text is no text is replaced."""
        try:
            scan = self.site.scan()
            top: dict[str, Any] = {"health": health(self.site, scan), "now_ns": scan.time_ns, "number": scan.number}
        except READ_ERRORS as error:
            top = {"health": {"state": "critical", "sentence": f"The store cannot be read: {error}"[:WORDS_MAX],
                              "problems": []}, "now_ns": 0, "number": 0}  # fmt: skip
        now_ns = int(top["now_ns"])
        here = self._path(request) + (f"?{request.url.query}" if request.url.query else "")
        text = self._templates.get_template(template).render(
            **{"page": values, "top": top, "section": section, "here": here, "paths": self.site.paths},
            asked=request.query_params.get, changes=self.site.allows_changes, csrf=self.keys.csrf,
            root=self._root, store_name=_store_name(self._root) if self._stores else "",
            has_pipelines=bool(self.site.pipelines), has_rescue=bool(self.site.rescues),
            live=is_live and request.method == "GET" and values.get("is_live", True),
            age=lambda time: age_text(time, now_ns) if now_ns else time,
            link=lambda **changes: _link(request, self._path(request), changes),
        )  # fmt: skip
        # Templates name pages from / on, and those of all stores in single quotes. Text of a store holds no quotation
        # mark of HTML, so nothing else is met.
        rooted = _LINK.sub(rf"\g<1>{self._root}/", text) if self._root else text
        return HTMLResponse(rooted.encode("utf-8", "replace"), status)

    # --- errors

    def _let_go(self, error: Exception) -> None:
        if _status(error) == UNAVAILABLE:
            self.site.forget()

    def _failed(self, request: Request, error: Exception) -> Response:
        self._let_go(error)
        values = {**_error_json(error), "status": _status(error)}
        return self.render(request, "error.html", values, status=_status(error))

    def _not_found(self, request: Request, error: Exception) -> Response:
        if self._path(request).startswith("/api/"):
            return JSONResponse({"error": "JSTREAM_NO_PAGE", "message": "there is no such page"}, 404)
        values = {"error": "", "message": "There is no such page.", "status": 404}
        return self.render(request, "error.html", values, status=404, is_live=False)

    def _refused(self, request: Request, error: Exception) -> Response:
        return self.render(request, "error.html", {"error": "", "message": str(error), "status": 403}, status=403)

    def _unforeseen(self, request: Request, error: Exception) -> Response:
        log.error("jstream ui: %s", error, exc_info=error)
        return HTMLResponse("<!doctype html><title>jstream</title><p>Something failed here; the log has it.", 500)

    # --- the rest

    def _static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return Response("there is no such file\n", 404, media_type="text/plain")
        return Response(self._static[name], headers={"Cache-Control": CACHED}, media_type=STATIC[name])

    def _stream(self, request: Request) -> Response:
        return RedirectResponse(f"{request.url.path}/messages", 307)

    async def _live(self, request: Request) -> "_Live":
        """Announce scans to a viewer, as server-sent events."""
        return _Live(self.site)

    def _raw(self, request: Request) -> Response:
        """Send one message's data as it is, as a file."""
        name, sequence = request.path_params["name"], request.path_params["sequence"]
        try:
            message = self.site.store().stream(name).get(sequence)
        except (*READ_ERRORS, OverflowError) as error:
            return self._failed(request, error)
        headers = {"Content-Disposition": f'attachment; filename="message-{sequence}.bin"'}
        return Response(message.data or b"", headers=headers, media_type="application/octet-stream")

    def _download(self, request: Request) -> Response:
        try:
            return downloads.download(self.site, Query(request.query_params), request.path_params["name"])
        except READ_ERRORS as error:
            return self._failed(request, error)

    async def _login(self, request: Request) -> Response:
        if not self.keys.has_token:
            return RedirectResponse("/", 303)
        wrong = False
        if request.method == "POST":
            fields = await form_of(request, self.keys, needs_secret=False)
            if self.keys.is_token(fields.get("token", "").strip()):
                answer = RedirectResponse("/", 303)
                answer.set_cookie(COOKIE, self.keys.session, httponly=True, samesite="lax", path="/")
                return answer
            wrong = True
        template = self._templates.get_template("login.html")
        return HTMLResponse(await run_in_threadpool(template.render, wrong=wrong), 403 if wrong else 200)


class _Live:
    """An answer that announces scans. Nothing comes between the count of viewers and one more of them."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._site.viewer_count >= VIEWERS_MAX:
            await PlainTextResponse(f"{VIEWERS_MAX} viewers listen already\n", 503)(scope, receive, send)
            return
        with self._site.viewer() as changes:
            await StreamingResponse(self._events(changes), media_type="text/event-stream")(scope, receive, send)

    async def _events(self, changes: AsyncIterator[int]) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        async for number in changes:
            yield b"event: scan\nid: %d\ndata: %d\n\n" % (number, number)


def _status(error: Exception) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, StaleIncarnationError):
        return 410
    if isinstance(error, changes.Busy):
        return 409
    if isinstance(error, downloads.TooManyDownloads):
        return 429
    return UNAVAILABLE if isinstance(error, (StorageError, OSError)) else 400


def _error_json(error: Exception) -> dict[str, Any]:
    code = error.code if isinstance(error, StorageError) else type(error).__name__
    return {"error": code, "message": str(error)[:WORDS_MAX]}


def _store_name(root: str) -> str:
    """Return what pages call the store whose pages begin there."""
    return root[1:] or "default"


def _link(request: Request, path: str, changes: Mapping[str, Any]) -> str:
    """Return the address of this page with other parameters; None takes one away."""
    kept = {key: value for key, value in request.query_params.items() if key not in changes}
    kept |= {key: value for key, value in changes.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else path


def _scale(value: float, first: float, last: float, size: float) -> float:
    """Return where a value lies between two others, in units of a drawing."""
    return round(min(size, max(0.0, (value - first) / max(1e-9, last - first) * size)), 2)


def _seconds_text(time_text: str) -> str:
    """Return a time in RFC 3339 without its fraction."""
    return time_text[:19].replace("T", " ")


# --- running


def bind(address: str, port: int) -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one. Raises OSError that names both."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"pages cannot be served on {address}:{port}: {error.strerror}") from error
    return listener


def is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


def server_of(
    site: Site,
    address: str,
    token: str | None,
    host_names: tuple[str, ...] = (),
    others: Mapping[str, Site] = NO_STORES,
) -> uvicorn.Server:
    """Return what serves the pages, to be run on a socket that listens at this address.

    `others`: stores beside the first one, by name; the pages of each begin at /@NAME.
    """
    own, keys = f"[{address}]" if ":" in address else address, Keys(token)
    sites = {"": site, **{f"/@{name}": other for name, other in others.items()}}
    shown = sites if others else NO_STORES
    apps = {root: Server(of, keys, root, shown).application() for root, of in sites.items()}
    app = Starlette(routes=[Mount(root, apps[root]) for root in reversed(apps)]) if others else apps[""]
    doors = Doors(app, keys, (*LOOPBACK, own, *host_names))
    config = uvicorn.Config(
        doors, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        lifespan="off", limit_concurrency=2 * VIEWERS_MAX, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=REQUEST_SIZE_MAX, http=Connection,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(
    site: Site,
    listener: socket.socket,
    token: str | None,
    host_names: tuple[str, ...],
    others: Mapping[str, Site] = NO_STORES,
) -> None:
    """Serve pages until the process is interrupted."""
    server = server_of(site, listener.getsockname()[0], token, host_names, others)
    sites = (site, *others.values())
    for each in sites:
        each.start()
    try:
        server.run(sockets=[listener])
    finally:
        for each in sites:
            each.stop()


def read_token(path: Path, size_min: int) -> str:
    """Return the token in a file. Raises ValueError for one that is soon guessed, OSError."""
    with path.open("rb") as file:
        text = file.read(4096).decode("utf-8", "replace").strip()
    if len(text) < size_min or not text.isprintable():
        raise ValueError(f"--token-file {path}: a token is one line of at least {size_min} letters")
    return text
