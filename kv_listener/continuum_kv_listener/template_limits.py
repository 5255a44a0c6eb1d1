"""What a source's chat template makes impossible (decisions C22, C23): one word and one sentence.

The word is the label of ``continuum_listener_template_limits``, the sentence is for
``GET /sources``. A limit that alters the text itself is cured by salt echo alone.
"""

from enum import StrEnum
from typing import Self


class TemplateLimit(StrEnum):
    """A kind of prompt whose key cannot be recovered from the rendered text."""

    text: str

    def __new__(cls, word: str, text: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.text = text
        return member

    TRIMS_SYSTEM = (
        "trims_system",
        "the template trims system prompts: those with white space at either end are not "
        "attributed; consider salt echo",
    )
    TRIMS_USER = (
        "trims_user",
        "the template trims user messages: first messages with white space at either end are not "
        "attributed; consider salt echo",
    )
    ALTERS_TEXT = (
        "alters_text",
        "the template changes characters inside prompts: those with quotes, markup, tabs, empty "
        "lines or letters beyond ASCII may not be attributed; consider salt echo",
    )
    CLEANS_SPACES = (
        "cleans_spaces",
        "the tokenizer's decoder removes spaces before punctuation: prompts with such spaces are "
        "not attributed; consider salt echo",
    )
    NORMALISES = (
        "normalises",
        "the tokenizer normalises Unicode: prompts with decomposed characters are not "
        "attributed; consider salt echo",
    )
    NO_PLAIN_PROMPTS = (
        "no_plain_prompts",
        "the engine does not tokenize plain prompts for us: /v1/completions prompts are not "
        "attributed; consider salt echo",
    )
    NO_SYSTEM = (
        "no_system",
        "the template has no system role: only chats without a system prompt are attributed",
    )
    WEAK_SYSTEM_END = (
        "weak_system_end",
        "only white space separates the system prompt from the first message: system prompts "
        "with an empty line in them are not attributed; consider salt echo",
    )
    SYSTEM_RUN = (
        "system_run",
        "the template does not keep several system messages apart: requests with more than one "
        "are not attributed; consider salt echo",
    )
    DEVELOPER_AS_USER = (
        "developer_as_user",
        "the template writes developer messages like user messages: requests that begin with one "
        "are not attributed; consider salt echo",
    )
    NO_REPLY_MARK = (
        "no_reply_mark",
        "the template marks no end of the first message: only first messages of the full prefix "
        "length are attributed; consider salt echo",
    )
    TOOLS_IN_TURN = (
        "tools_in_turn",
        "the template writes tools into the user's turn: chats with tools and without a system "
        "prompt are not attributed; consider salt echo",
    )
    ONE_CHAT = (
        "one_chat",
        "learnt from a single chat: prompts with tools, with several system messages or with a "
        "built-in system prompt may not be attributed; consider salt echo",
    )
