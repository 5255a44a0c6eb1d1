"""Headers that steer the connection, and several requests on one."""

from support.framing_row import (
    EVIL,
    HOST,
    JSON,
    LEN,
    OTHER,
    Passed,
    Row,
    chunked,
    passes,
    post,
    refused,
    text,
)

_GET = "GET /health HTTP/1.1"

CONNECTION: tuple[Row, ...] = (
    passes("Connection: keep-alive", post("Connection: keep-alive"), lacks=("connection",)),
    passes("Connection: close", post("Connection: close"), closed=True, lacks=("connection",)),
    passes("Connection: CLOSE", post("Connection: CLOSE"), closed=True),
    passes("Connection: x, close", post("Connection: x, close"), closed=True),
    passes("Connection: keep-alive, close", post("Connection: keep-alive, close"), closed=True),
    passes(
        "Connection twice, the second close",
        post("Connection: keep-alive", "Connection: close"),
        closed=True,
    ),
    passes(
        "Connection names a header",
        post("Connection: X-Secret", "X-Secret: s"),
        lacks=("x-secret", "connection"),
    ),
    passes("Connection: te", post("Connection: TE", "TE: trailers"), lacks=("te",)),
    passes(
        "Keep-Alive and Proxy-Connection",
        post("Keep-Alive: timeout=5", "Proxy-Connection: keep-alive"),
        lacks=("keep-alive", "proxy-connection"),
    ),
    *(
        refused(f"Connection: {name}", post(f"Connection: {name}"), closed=False)
        for name in (
            "content-length",
            "Content-Type",
            "host",
            "authorization",
            "x-api-key",
            "x-continuum-backend",
        )
    ),
    refused("Connection: close, content-length", post("Connection: close, content-length")),
    passes("Connection: transfer-encoding", chunked("Connection: transfer-encoding")),
    passes(
        "Proxy-Authorization and Cookie",
        post("Proxy-Authorization: Basic x", "Cookie: a=b"),
        lacks=("proxy-authorization", "cookie"),
    ),
    passes(
        "X-Forwarded-For of a stranger",
        post("X-Forwarded-For: 10.0.0.1", "X_Forwarded_For: 10.0.0.1"),
        lacks=("x-forwarded-for", "x_forwarded_for"),
    ),
    passes(
        "Upgrade: websocket",
        post("Connection: Upgrade", "Upgrade: websocket"),
        lacks=("upgrade", "connection"),
        why="not taken up",
    ),
    passes(
        "Upgrade: h2c",
        post(
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
        ),
        lacks=("upgrade", "http2-settings"),
        why="not taken up",
    ),
)

EXPECTATIONS: tuple[Row, ...] = (
    Row(
        name="Expect: 100-continue, body at once",
        wire=(post("Expect: 100-continue"),),
        answers=(100, 200),
        passed=(Passed(lacks=("expect",)),),
    ),
    Row(
        name="Expect: 100-Continue, body later",
        wire=(post("Expect: 100-Continue")[:-LEN], JSON),
        answers=(100, 200),
        passed=(Passed(lacks=("expect",)),),
    ),
    Row(
        name="Expect: 100-continue in chunks",
        wire=(chunked("Expect: 100-continue"),),
        answers=(100, 200),
        passed=(Passed(),),
    ),
    refused(
        "Expect: 100-continue above the limit",
        post("Expect: 100-continue", "Content-Length: 67108865", length=False, body=b""),
        status=413,
        lingers=True,
    ),
    refused("Expect: something else", post("Expect: 200-ok"), status=417, closed=False),
    refused(
        "Expect: something else, body not sent",
        post("Expect: 200-ok")[:-LEN],
        status=417,
        lingers=True,
    ),
    refused("Expect twice", post("Expect: 100-continue", "Expect: x"), status=417, closed=False),
    passes(
        "Expect in HTTP/1.0",
        post("Expect: 100-continue", version="HTTP/1.0"),
        closed=True,
        lacks=("expect",),
        why="ignored: RFC 9110 section 10.1.1",
    ),
)

_TWO = post() + post(body=OTHER)

PIPELINES: tuple[Row, ...] = (
    Row(
        name="two requests", wire=(_TWO,), answers=(200, 200), passed=(Passed(), Passed(body=OTHER))
    ),
    Row(
        name="three requests",
        wire=(post() + chunked() + post(body=OTHER),),
        answers=(200, 200, 200),
        passed=(Passed(), Passed(), Passed(body=OTHER)),
    ),
    Row(
        name="two requests cut in the middle of the second",
        wire=(_TWO[:-30], _TWO[-30:]),
        answers=(200, 200),
        passed=(Passed(), Passed(body=OTHER)),
    ),
    Row(
        name="a second request that is refused",
        wire=(post() + post("Content-Length: 3", body=EVIL),),
        answers=(200, 400),
        passed=(Passed(),),
        closed=True,
    ),
    Row(
        name="a second request with CL and TE",
        wire=(post() + chunked("Content-Length: 3") + post(body=EVIL),),
        answers=(200, 400),
        passed=(Passed(),),
        closed=True,
    ),
    Row(
        name="a first request that is refused",
        wire=(post(f"Content-Length: {LEN}") + post(body=EVIL),),
        answers=(400,),
        closed=True,
        why="nothing behind it is looked at",
    ),
    Row(
        name="a first request with a bad body",
        wire=(post(body=b"{") + post(),),
        answers=(400, 200),
        passed=(Passed(),),
        why="its framing is sound",
    ),
    Row(
        name="garbage after a request",
        wire=(post() + b"garbage\r\n\r\n",),
        answers=(200, 400),
        passed=(Passed(),),
        closed=True,
    ),
    Row(
        name="blank lines between two requests",
        wire=(post() + b"\r\n\r\n" + post(body=OTHER),),
        answers=(200, 200),
        passed=(Passed(), Passed(body=OTHER)),
    ),
    Row(
        name="a request after Connection: close",
        wire=(post("Connection: close") + post(body=EVIL),),
        answers=(200,),
        passed=(Passed(),),
        closed=True,
        why="never read",
    ),
    Row(
        name="a request after Connection: close, later",
        wire=(post("Connection: close"), post(body=EVIL)),
        answers=(200,),
        passed=(Passed(),),
        closed=True,
    ),
    Row(
        name="a request after HTTP/1.0",
        wire=(post(version="HTTP/1.0") + post(body=EVIL),),
        answers=(200,),
        passed=(Passed(),),
        closed=True,
    ),
    Row(
        name="a health check between two requests",
        wire=(post() + text(_GET, HOST) + post(body=OTHER),),
        answers=(200, 200, 200),
        passed=(Passed(), Passed(body=OTHER)),
    ),
    Row(
        name="a request behind Upgrade",
        wire=(post("Connection: Upgrade", "Upgrade: websocket") + post(body=OTHER),),
        answers=(200, 200),
        passed=(Passed(), Passed(body=OTHER)),
    ),
    Row(
        name="two requests behind Upgrade, the second refused",
        wire=(
            post("Connection: Upgrade", "Upgrade: websocket")
            + post(body=OTHER)
            + post("Host: x", body=EVIL),
        ),
        answers=(200, 200, 400),
        passed=(Passed(), Passed(body=OTHER)),
        closed=True,
    ),
)
