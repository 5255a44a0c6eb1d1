import pytest

from continuum_router.routing.token_ratio import MAX_MODELS, TokenRatios


def test_a_quarter_until_something_is_known():
    assert TokenRatios().ratio("m") == 0.25


def test_the_first_report_counts_whole_and_later_ones_less():
    ratios = TokenRatios()
    ratios.learn("m", 1000, 500)
    assert ratios.ratio("m") == 0.5
    ratios.learn("m", 1000, 300)
    assert ratios.ratio("m") == pytest.approx(0.4)
    for _ in range(300):
        ratios.learn("m", 1000, 800)
    assert ratios.ratio("m") == pytest.approx(0.8, abs=0.001)
    ratios.learn("m", 1000, 400)
    assert ratios.ratio("m") == pytest.approx(0.78, abs=0.001)
    assert ratios.ratio("other") == 0.25


@pytest.mark.parametrize(("size", "tokens"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
def test_nonsense_teaches_nothing(size, tokens):
    ratios = TokenRatios()
    ratios.learn("m", size, tokens)
    assert ratios.ratio("m") == 0.25


def test_bounds_of_ratio_and_memory():
    ratios = TokenRatios()
    ratios.learn("m", 1, 10**9)
    assert ratios.ratio("m") == 2.0
    ratios.learn("n", 10**9, 1)
    assert ratios.ratio("n") == pytest.approx(0.02)
    for number in range(MAX_MODELS):
        ratios.learn(f"m{number}", 4, 2)
    assert (len(ratios._known), ratios.ratio("m")) == (MAX_MODELS, 0.25)
