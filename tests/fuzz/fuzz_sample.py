"""A function with a fault behind three conditions, for the fuzzer's own tests."""


def planted(data: bytes) -> None:
    if data[:1] == b"{":  # noqa: SIM102  each condition is a place of its own
        if data[1:2] == b"U":  # noqa: SIM102
            if data[2:3] == b"}":
                raise ZeroDivisionError
