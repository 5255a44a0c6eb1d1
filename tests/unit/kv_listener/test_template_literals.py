"""From literals to a format: marks, links, openings, warnings."""

from continuum_kv_listener.prompt_format import Section
from continuum_kv_listener.prompt_literal import Literal
from continuum_kv_listener.template_limits import TemplateLimit
from continuum_kv_listener.template_literals import (
    TemplateLiterals,
    build_format,
)

CHATML = TemplateLiterals(
    system_head="<|s|>system\n",
    developer_head="<|s|>developer\n",
    user_head="<|s|>user\n",
    system_to_user="<|e|>\n<|s|>user\n",
    developer_to_user="<|e|>\n<|s|>user\n",
    system_to_system="<|e|>\n<|s|>system\n",
    user_to_reply="<|e|>\n<|s|>assistant\n",
    raw_head="",
)


def test_a_structural_template() -> None:
    built, warnings = build_format(CHATML)
    assert built.system_ends == ("<|e|>\n<|s|>",)
    assert built.user_ends == ("<|e|>\n<|s|>",)
    assert built.not_system == ()
    assert built.chat_marks == ("<|s|>",)
    assert warnings == ()


def test_links_are_longest_first_and_mix_the_two_system_roles() -> None:
    built, _ = build_format(CHATML)
    assert [
        ("".join(map(str, link.literal.parts)), link.section) for link in built.system_links
    ] == [
        ("<|e|>\n<|s|>developer\n", Section.SYSTEM),
        ("<|e|>\n<|s|>system\n", Section.SYSTEM),
        ("<|e|>\n<|s|>user\n", Section.USER),
    ]


def test_a_white_space_border_ends_the_system_text_and_is_told() -> None:
    built, warnings = build_format(
        TemplateLiterals(
            system_head="<s>[INST] ",
            user_head="<s>[INST] ",
            system_to_user="\n\n",
            user_to_reply="[/INST]",
            raw_head="<s>",
        )
    )
    assert built.system_ends == ("\n\n",)
    assert built.not_system == ("[/INST]",)
    assert built.chat_marks == ("<s>[INST]",)
    assert warnings == (TemplateLimit.WEAK_SYSTEM_END, TemplateLimit.SYSTEM_RUN)


def test_a_template_without_marks_of_its_own_reads_plain_prompts_too() -> None:
    built, _ = build_format(
        TemplateLiterals(
            system_head="<bos>",
            user_head="<bos><|User|>",
            system_to_user="<|User|>",
            user_to_reply="<|Assistant|>",
            raw_head="<bos>",
        )
    )
    assert built.system_ends == ("<|User|>", "<|Assistant|>")
    assert built.chat_marks == ("<bos><|User|>",)


def test_no_system_role_and_no_end_of_a_message() -> None:
    built, warnings = build_format(TemplateLiterals(user_head="Q: ", user_to_reply="\n"))
    assert built.system_ends == ()
    assert built.user_ends == ()
    assert built.raw_head is None
    assert warnings == (TemplateLimit.NO_SYSTEM, TemplateLimit.NO_REPLY_MARK)


def test_developer_messages_that_look_like_user_messages_open_nothing() -> None:
    built, warnings = build_format(
        TemplateLiterals(
            system_head="<sys>",
            developer_head="<usr>",
            user_head="<usr>",
            system_to_user="<end><usr>",
            system_to_system="<end><sys>",
            user_to_reply="<end><bot>",
        )
    )
    assert [(opening.literal, opening.section) for opening in built.openings] == [
        (Literal.of("<sys>"), Section.SYSTEM),
        (Literal.of("<usr>"), Section.USER),
    ]
    assert warnings == (TemplateLimit.DEVELOPER_AS_USER,)
