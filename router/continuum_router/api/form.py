"""A client's form or other opaque body, read only as far as routing needs it.

The beginning is kept until the model's field is found; what follows it is passed on as it comes, so
that memory is bounded whatever the size of the upload.
"""

from aiohttp import hdrs, web

from continuum_router.api.client_body import ClientBody
from continuum_router.api.scope import Scope
from continuum_router.errors import BadRequest
from continuum_router.providers.form_scan import FormDamaged, FormScan, boundary_of
from continuum_router.request import ChatRequest, Endpoint, Upload, parse_opaque

MAX_HELD = 1024 * 1024
"""Bytes of a form in which its model must have come."""


async def read_form(
    request: web.BaseRequest, endpoint: Endpoint, scope: Scope, limit: int
) -> ChatRequest:
    """Read a multipart form up to its model, or to its end when it has none within `MAX_HELD`.

    Raises BadRequest when the form is damaged or its model comes too late.
    """
    boundary = boundary_of(request.headers.get(hdrs.CONTENT_TYPE, ""))
    if boundary is None:
        raise BadRequest("The form's Content-Type has no usable boundary.", code="invalid_form")
    body = ClientBody(request, limit)
    await body.begin()
    scan = FormScan(boundary=boundary)
    held = bytearray()
    whole = False
    try:
        while "model" not in scan.fields and not scan.ended and len(held) < MAX_HELD:
            piece = await body.next()
            if not piece:
                whole = True
                break
            held += piece
            scan.feed(held)
    except FormDamaged:
        raise BadRequest("The body is not a readable form.", code="invalid_form") from None
    model, stream = scan.fields.get("model"), scan.fields.get("stream")
    if model is None and not (whole or scan.ended):
        raise BadRequest(
            "The form's 'model' comes too late: put the field before the file.",
            param="model",
            code="model_too_late",
        )
    return _opaque(
        body,
        endpoint,
        scope,
        bytes(held),
        whole,
        model=None if model is None else model.value,
        model_at=None if model is None else (model.start, model.end),
        stream=stream is not None and stream.value.strip().lower() in (b"true", b"1"),
    )


async def read_opaque(
    request: web.BaseRequest, endpoint: Endpoint, scope: Scope, limit: int
) -> ChatRequest:
    """Begin with a body that is neither JSON nor a form: its first piece, the rest as it comes."""
    body = ClientBody(request, limit)
    await body.begin()
    first = await body.next()
    return _opaque(body, endpoint, scope, first, not first)


def _opaque(  # noqa: PLR0913  what was found out about one body
    body: ClientBody,
    endpoint: Endpoint,
    scope: Scope,
    raw: bytes,
    whole: bool,
    *,
    model: bytes | None = None,
    model_at: tuple[int, int] | None = None,
    stream: bool = False,
) -> ChatRequest:
    whole = whole or body.length == len(raw)
    body.hand_over()
    return parse_opaque(
        endpoint,
        raw,
        model=model,
        stream=stream,
        path=scope.path,
        method=scope.method,
        upload=Upload(
            length=len(raw) if whole else body.length,
            model_at=model_at,
            tail=None if whole else body,
        ),
    )
