"""The routes of the dashboard: every page checks the visitor, and every action also checks where its form came from."""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.datastructures import QueryParams

from lightning_trainer.dashboard.actions import ACTIONS, read_form
from lightning_trainer.dashboard.live_updates import EventStream, LiveUpdates, SharedPages
from lightning_trainer.dashboard.openmetrics import CONTENT_TYPE, openmetrics
from lightning_trainer.dashboard.pages import (
    agents,
    charts,
    costs,
    overview,
    prompts,
    rollout,
    rollouts,
    setup,
    versions,
)
from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.rendering import SECURITY, Pages, static
from lightning_trainer.dashboard.sessions import Sessions, Visitor, bearer, cookie_name
from lightning_trainer.dashboard.site import Site
from lightning_trainer.errors import DropError, LightningError, RollbackError

Context = Callable[[Site, Asked], Awaitable[dict[str, Any]]]

NAVIGATION = (
    ("/", "Overview"),
    ("/rollouts", "Rollouts"),
    ("/agents", "Agents"),
    ("/versions", "Versions"),
    ("/prompts", "Prompts"),
    ("/charts", "Metrics"),
    ("/costs", "Costs"),
    ("/setup", "Set-up"),
)
_PAGES: dict[str, tuple[str, str, Context]] = {
    "/": ("Overview", "overview.html", overview.overview),
    "/rollouts": ("Rollouts", "rollouts.html", rollouts.rollouts),
    "/group": ("Group", "group.html", rollouts.group),
    "/rollout": ("Rollout", "rollout.html", rollout.rollout),
    "/span": ("Span", "span.html", rollout.span),
    "/agents": ("Agents", "agents.html", agents.agents),
    "/agents/prompts": ("System prompts", "system_prompts.html", agents.prompts),
    "/prompts": ("Prompts", "prompts.html", prompts.prompts),
    "/versions": ("Versions", "versions.html", versions.versions),
    "/versions/compare": ("Versions compared", "compare.html", versions.compare),
    "/versions/rollback": ("Roll back", "confirm/rollback.html", versions.confirm_rollback),
    "/versions/promote": ("Promote", "confirm/promote.html", versions.confirm_promotion),
    "/charts": ("Metrics", "charts.html", charts.charts),
    "/costs": ("Costs", "costs.html", costs.costs),
    "/setup": ("Set-up", "setup.html", setup.setup),
}
RENEWED = "x-renewed-page"
"""Header of the request with which a page fetches itself again."""
_BARE = "default-src 'none'; sandbox"
"""Content security policy of texts and images, which are not pages."""
_KEPT = 256
_BELOW = {"/agents/prompts": "/agents", "/group": "/rollouts", "/rollout": "/rollouts", "/span": "/rollouts"}


class Dashboard:
    """The pages and actions of one daemon, or of a stopped run.

    Args:
        token: the daemon's; None lets anyone in.
    """

    def __init__(self, site: Site, token: str | None) -> None:
        self._site = site
        self._sessions = Sessions(token)
        self._pages = Pages()
        self._updates = LiveUpdates(site)
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._shared = SharedPages()
        self._csrf_of_all = secrets.token_hex(16)

    def router(self) -> APIRouter:
        """Return all routes; they check the token themselves."""
        router = APIRouter(include_in_schema=False)
        for path, (title, template, context) in _PAGES.items():
            router.add_api_route(path, self._page(title, template, context), methods=["GET"], response_model=None)
        for name in ACTIONS:
            router.add_api_route(f"/do/{name}", self._action(name), methods=["POST"], response_model=None)
        for path, answer, method in (
            ("/text", self._text, "GET"),
            ("/image", self._image, "GET"),
            ("/events", self._events, "GET"),
            ("/metrics", self._metrics, "GET"),
            ("/login", self._log_in, "POST"),
            ("/logout", self._log_out, "POST"),
            ("/static/{name}", self._static, "GET"),
        ):
            router.add_api_route(path, answer, methods=[method], response_model=None)
        return router

    def _page(self, title: str, template: str, context: Context) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            visitor = self._sessions.visitor(request)
            if visitor is None:
                return self._ask_for_the_token(request)
            if RENEWED not in request.headers:
                return await page(request, visitor)
            # Visitors' pages differ only in the CSRF mark of their session.
            shared = replace(visitor, csrf=self._csrf_of_all)
            address = f"{visitor.session is None} {request.url.path}?{request.url.query}"
            made = await self._shared.get(address, lambda: page(request, shared))
            body = bytes(made.body).replace(self._csrf_of_all.encode(), visitor.csrf.encode())
            return Response(body, made.status_code, headers={**SECURITY, "content-type": made.headers["content-type"]})

        async def page(request: Request, visitor: Visitor) -> Response:
            try:
                values = await context(self._site, Asked(request.query_params))
            except LightningError as error:
                return self._failed(request, visitor, error)
            frame = self._frame(request, visitor, title)
            # In a thread, so that the event loop can answer agents' calls meanwhile.
            return await asyncio.to_thread(lambda: self._pages.html(template, **frame, **values))

        return answer

    def _action(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            visitor = self._sessions.visitor(request)
            if visitor is None:
                return self._ask_for_the_token(request)
            try:
                form = await read_form(request)
                if (refused := self._sessions.refusal(request, visitor, form.get("csrf", ""))) is not None:
                    return self._said(request, visitor, refused, 403)
                if self._site.live is None:
                    sentence = "this run is stopped and shown read only: start `lightning-trainer serve` to act on it"
                    return self._said(request, visitor, sentence, 409)
                said, page = await ACTIONS[name](self._site.live, form)
            except (RollbackError, DropError) as error:
                return self._said(request, visitor, str(error), 409)
            except LightningError as error:
                return self._said(request, visitor, str(error), 422)
            joined = "&" if "?" in page else "?"
            return RedirectResponse(f"{page}{joined}said={self._keep(said)}", 303, headers=SECURITY)

        return answer

    async def _text(self, request: Request) -> Response:
        visitor = self._sessions.visitor(request)
        if visitor is None:
            return self._ask_for_the_token(request)
        try:
            text = await rollout.whole_text(self._site, Asked(request.query_params))
        except LightningError as error:
            return self._failed(request, visitor, error)
        headers = {**SECURITY, "content-security-policy": _BARE}
        return PlainTextResponse(text.encode("utf-8", "replace"), headers=headers)

    async def _image(self, request: Request) -> Response:
        visitor = self._sessions.visitor(request)
        if visitor is None:
            return self._ask_for_the_token(request)
        try:
            image = await rollout.picture(self._site, Asked(request.query_params))
        except LightningError as error:
            return self._failed(request, visitor, error)
        return Response(image.body, media_type=image.kind, headers={**SECURITY, "content-security-policy": _BARE})

    async def _events(self, request: Request) -> Any:
        if self._sessions.visitor(request) is None:
            return PlainTextResponse("log in first", 401, headers=SECURITY)
        if self._updates.full:
            return PlainTextResponse("too many pages are open", 503, headers={**SECURITY, "retry-after": "30"})
        return _Streaming(EventStream(self._updates))

    async def _metrics(self, request: Request) -> Response:
        try:
            token = self._site.config.metrics.given_token()
            may_scrape = token is not None and hmac.compare_digest(bearer(request).encode(), token.encode())
            if not may_scrape and self._sessions.visitor(request) is None:
                said = "send [metrics] token, or the daemon's, as a bearer token"
                return PlainTextResponse(said, 401, headers=SECURITY)
            return Response(await openmetrics(self._site), headers={**SECURITY, "content-type": CONTENT_TYPE})
        except LightningError as error:
            return PlainTextResponse(str(error), 503, headers=SECURITY)

    async def _log_in(self, request: Request) -> Response:
        try:
            form = await read_form(request)
        except LightningError as error:
            return self._ask_for_the_token(request, str(error))
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return self._ask_for_the_token(request, "this form came from another page")
        cookie = await self._sessions.log_in(form.get("token", ""))
        if cookie is None:
            return self._ask_for_the_token(request, "this is not the daemon's token", back=_own(form.get("back", "/")))
        answer = RedirectResponse(_own(form.get("back", "/")), 303, headers=SECURITY)
        secure = request.url.scheme == "https"
        answer.set_cookie(cookie_name(request), cookie, httponly=True, samesite="strict", secure=secure, path="/")
        return answer

    async def _log_out(self, request: Request) -> Response:
        visitor = self._sessions.visitor(request)
        if visitor is None:
            return self._ask_for_the_token(request)
        try:
            form = await read_form(request)
        except LightningError as error:
            return self._said(request, visitor, str(error), 422)
        if self._sessions.refusal(request, visitor, form.get("csrf", "")) is None:
            self._sessions.log_out(visitor)
        answer = RedirectResponse("/", 303, headers=SECURITY)
        answer.delete_cookie(cookie_name(request), path="/", httponly=True, samesite="strict")
        return answer

    async def _static(self, name: str) -> Response:
        return static(name) or PlainTextResponse("there is no such file", 404, headers=SECURITY)

    def _ask_for_the_token(self, request: Request, wrong: str | None = None, back: str | None = None) -> Response:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        back = back or (here if request.method == "GET" else "/")
        # A link in a mail or a chat comes without our cookie, which is SameSite=Strict; a reload by the page sends it.
        again = request.headers.get("sec-fetch-site") == "cross-site" and cookie_name(request) not in request.cookies
        headers = {"refresh": "0"} if again and request.method == "GET" else None
        return self._pages.html("login.html", status=401, headers=headers, wrong=wrong, back=back, title="Log in")

    def _keep(self, said: str) -> str:
        """Keep an action's result for the next page: if the address held it, anyone could make a page say anything."""
        key = secrets.token_urlsafe(8)
        self._kept[key] = said
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return key

    def _failed(self, request: Request, visitor: Visitor, error: LightningError) -> Response:
        """Return a page that says why there is no other: the request is wrong, or the store cannot be read."""
        return self._said(request, visitor, str(error), error.status if isinstance(error, PageError) else 503)

    def _said(self, request: Request, visitor: Visitor, sentence: str, status: int) -> Response:
        title = "Not found" if status == 404 else "That did not work"
        return self._pages.html("said.html", status=status, sentence=sentence, **self._frame(request, visitor, title))

    def _frame(self, request: Request, visitor: Visitor, title: str) -> dict[str, Any]:
        path = request.url.path
        parameters: QueryParams = request.query_params
        return {
            "title": title,
            "navigation": NAVIGATION,
            "here": _BELOW.get(path) or ("/versions" if path.startswith("/versions") else path),
            "csrf": visitor.csrf,
            "may_log_out": visitor.session is not None,
            "is_live": self._site.live is not None,
            "place": str(self._site.state_dir),
            "said": self._kept.get(parameters.get("said", "")),
        }


class _Streaming(Response):
    """A response that hands its connection to a stream."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(scope, receive, send)


def _own(address: str) -> str:
    """Return an address on this site; anything else becomes the first page."""
    parts = urlsplit(address)
    plain = address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return address if plain and "\n" not in address and "\r" not in address else "/"
