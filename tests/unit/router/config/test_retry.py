from continuum_router.config.retry import RetryConfig
from support.config_files import good_router, router_lines


def test_defaults():
    retry = RetryConfig()
    assert (retry.max_attempts, retry.initial_delay, retry.max_delay) == (3, 0.1, 30.0)
    assert (retry.backoff_multiplier, retry.jitter) == (2.0, True)
    assert retry.retryable_status_codes == (429, 502, 503, 504)
    assert retry.prefer_untried_backends is False


def test_no_status_at_all_is_allowed():
    assert good_router("retry: {retryable_status_codes: []}").retry.retryable_status_codes == ()


def test_a_status_twice():
    text = "backends: [{name: a, url: 'http://h'}]\nretry: {retryable_status_codes: [503, 503]}"
    assert router_lines(text) == [
        "r.yaml:2: retry.retryable_status_codes[1]: 503 is listed twice; remove one"
    ]
