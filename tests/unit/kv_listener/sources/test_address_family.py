"""Which family of addresses an endpoint is tried with."""

import pytest

from continuum_kv_listener.sources.address_family import AddressFamily


@pytest.mark.parametrize(
    ("endpoint", "tried"),
    [
        ("tcp://engine-1:5557", [False, True, False]),
        ("tcp://localhost:5557", [False, True, False]),
        ("tcp://10.0.0.5:5557", [False, False, False]),
        ("tcp://[::1]:5557", [True, True, True]),
        ("tcp://*:5557", [False, False, False]),
        ("ipc:///run/kv.sock", [False, False, False]),
    ],
)
def test_a_name_is_tried_with_both(endpoint, tried):
    family = AddressFamily(endpoint)
    seen = []
    for _ in tried:
        seen.append(family.ipv6)
        family.failed()
    assert seen == tried
