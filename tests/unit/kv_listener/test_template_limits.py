"""Limits are words for labels and sentences for operators."""

import re

from continuum_kv_listener.template_limits import TemplateLimit


def test_words_are_labels_and_sentences_say_what_is_lost() -> None:
    assert len({limit.text for limit in TemplateLimit}) == len(TemplateLimit) == 13
    for limit in TemplateLimit:
        assert re.fullmatch(r"[a-z_]+", limit.value)
        assert TemplateLimit(limit.value) is limit
        assert "attributed" in limit.text


def test_whoever_alters_the_text_is_told_of_salt_echo() -> None:
    altering = [
        TemplateLimit.TRIMS_SYSTEM,
        TemplateLimit.TRIMS_USER,
        TemplateLimit.ALTERS_TEXT,
        TemplateLimit.CLEANS_SPACES,
        TemplateLimit.NORMALISES,
    ]
    assert all(limit.text.endswith("consider salt echo") for limit in altering)
