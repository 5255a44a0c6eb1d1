from support.config_files import ROUTER_BASE, good_router, router_lines


def test_enabled_is_accepted_early():
    assert good_router("").health_checks.enabled is True
    assert good_router("health_checks: {enabled: false}").health_checks.enabled is False


def test_keys_of_the_source_are_known_by_name():
    assert router_lines(ROUTER_BASE + "health_checks: {interval: 30s, intervall: 30s}") == [
        "r.yaml:2: health_checks.interval: is not in this version; remove it, or name it "
        "x_interval",
        "r.yaml:2: health_checks.intervall: is not a known key; known: enabled",
    ]
