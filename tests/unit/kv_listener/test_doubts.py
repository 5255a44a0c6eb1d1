"""Ages and dates of suspicion."""

from continuum_kv_listener.doubts import Doubts


def test_nothing_is_suspect_at_first():
    doubts = Doubts(600.0)
    assert not doubts.open
    assert doubts.next_due() is None
    assert not doubts.retire(1e9)


def test_a_loss_makes_older_ages_suspect_for_the_patience():
    doubts = Doubts(600.0)
    doubts.begin(1000.0)
    assert (doubts.age, doubts.open, doubts.next_due()) == (1, True, 1600.0)
    assert not doubts.retire(1599.0)
    assert doubts.retired == 0
    assert doubts.retire(1600.0)
    assert (doubts.retired, doubts.open, doubts.next_due()) == (1, False, None)


def test_each_loss_has_its_own_date():
    doubts = Doubts(600.0)
    doubts.begin(1000.0)
    doubts.begin(1100.0)
    assert doubts.retire(1600.0)
    assert (doubts.retired, doubts.next_due()) == (1, 1700.0)
    assert doubts.retire(2000.0)
    assert (doubts.retired, doubts.open) == (2, False)


def test_a_storm_of_losses_needs_few_dates():
    doubts = Doubts(600.0)
    for n in range(100_000):
        doubts.begin(1000.0 + n / 100)
    assert len(doubts._dates) <= 1000.0 / (600.0 / 32) + 1
    assert doubts.retire(1600.0)
    # the blocks of the losses that share the first date, and no later ones
    assert 0 < doubts.retired < 100_000
    assert doubts.age == 100_000


def test_a_wipe_leaves_nothing_to_doubt():
    doubts = Doubts(600.0)
    doubts.begin(1000.0)
    doubts.settle()
    assert not doubts.open
    assert not doubts.retire(1e9)
