"""What of a sample is learned, and what becomes of samples that are too long."""

import copy
from dataclasses import replace

import pytest

from paceline import PacelineError
from paceline.recipes.data.tiny_models import tiny_tokenizer
from paceline.recipes.language.data.samples import Conversation, Text
from paceline.recipes.language.data.templates import Encoding
from paceline.recipes.networks.head_loss import IGNORED

pytest.importorskip("transformers")

USER, ANSWER, SYSTEM = "user", "assistant", "system"


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


LONG = Conversation(
    messages(
        (SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi  there."), (USER, "Why?"), (ANSWER, "So.")
    )
)


@pytest.fixture(scope="module")
def encoding():
    return Encoding(tiny_tokenizer(), 1000)


@pytest.fixture
def other(encoding):
    """One whose template a test may replace."""
    return replace(encoding, tokenizer=copy.deepcopy(encoding.tokenizer))


def learned(one):
    return tiny_tokenizer().decode([target for target in one.targets if target != IGNORED])


def test_only_answers_are_learned_each_with_its_end(encoding):
    (found,) = encoding.rows(LONG)
    assert tiny_tokenizer().decode(found.tokens) == encoding.tokenizer.apply_chat_template(
        LONG.messages, tokenize=False
    )
    assert learned(found) == "Hi  there.<|im_end|>\nSo.<|im_end|>\n"
    for token, target in zip(found.tokens[1:], found.targets, strict=False):
        assert target in (token, IGNORED)
    assert found.targets[-1] == IGNORED


def test_the_last_answer_alone_or_all_may_be_learned(encoding):
    (found,) = replace(encoding, train_on="last").rows(LONG)
    assert learned(found) == "So.<|im_end|>\n"
    (found,) = replace(encoding, train_on="all").rows(LONG)
    assert learned(found) == tiny_tokenizer().decode(found.tokens[1:])
    assert encoding.answer(LONG) == replace(encoding, train_on="last").rows(LONG)[0]


def test_silent_answers_are_not_learned(encoding):
    (found,) = encoding.rows(replace(LONG, silent=frozenset([2])))
    assert learned(found) == "So.<|im_end|>\n"
    (found,) = encoding.rows(replace(LONG, silent=frozenset([4])))
    assert learned(found) == "Hi  there.<|im_end|>\n"
    assert tiny_tokenizer().decode(found.tokens).endswith("So.<|im_end|>\n")
    assert encoding.rows(replace(LONG, silent=frozenset([2, 4]))) == []


def test_texts_begin_as_the_tokenizer_says_and_have_an_end(encoding):
    (found,) = encoding.rows(Text("One two", " three.", 0.5))
    assert tiny_tokenizer().decode(found.tokens) == "<|im_start|>One two three.<|im_end|>"
    assert (learned(found), found.weight) == (" three.<|im_end|>", 0.5)
    (found,) = encoding.rows(Text("", "One two."))
    assert learned(found) == "One two.<|im_end|>"
    (found,) = encoding.rows(Text("", "One two.<|im_end|>"))
    assert learned(found) == "One two.<|im_end|>"
    (found,) = replace(encoding, train_on="all").rows(Text("One two", " three."))
    assert learned(found) == "One two three.<|im_end|>"


def test_what_is_too_long_is_cut_dropped_or_an_error(encoding):
    (whole,), (cut,) = encoding.rows(LONG), replace(encoding, length=30).rows(LONG)
    assert cut.tokens == whole.tokens[:30]
    assert list(cut.targets) == [*whole.targets[:29], IGNORED]
    assert cut.cut == len(whole.tokens) - 30
    assert replace(encoding, length=30, too_long="drop").rows(LONG) == []
    assert replace(encoding, length=30, too_long="drop").answer(LONG) is None
    with pytest.raises(PacelineError, match=rf"has {len(whole.tokens)} tokens, and length is 30"):
        replace(encoding, length=30, too_long="error").rows(LONG)
    size = len(whole.tokens)
    assert replace(encoding, length=size, too_long="error").rows(LONG) == [whole]


@pytest.mark.parametrize("length", [2, 7, 10, 24])
def test_long_texts_become_rows_and_each_token_is_learned_once(encoding, length):
    text = Text("", "The text of a book, which is longer than a row. " * 3)
    (whole,) = encoding.rows(text)
    rows = replace(encoding, length=length).rows(text)
    assert max(len(one.tokens) for one in rows) <= length
    targets = [target for one in rows for target in one.targets if target != IGNORED]
    assert targets == list(whole.tokens[1:])
    (cut,) = replace(encoding, length=10).rows(replace(text, prompt="One."))
    assert len(cut.tokens) == 10  # what has a prompt is not continued without it


def test_where_earlier_answers_change_each_has_a_row(other):
    """Qwen3's template shows thoughts in the last answer alone."""
    thought = "{% if message['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    other.tokenizer.chat_template = other.tokenizer.chat_template.replace(
        "{{ message['content'] }}", thought + "{{ message['content'] }}"
    )
    rows = other.rows(LONG)
    assert [learned(row) for row in rows] == [
        "<think></think>Hi  there.<|im_end|>\n",
        "<think></think>So.<|im_end|>\n",
    ]
    assert tiny_tokenizer().decode(rows[1].tokens).count("<think>") == 1
    (found,) = replace(other, train_on="last").rows(LONG)
    assert found == rows[1]


def test_tools_and_calls_reach_the_template(other):
    other.tokenizer.chat_template = (
        "{% for tool in tools or [] %}[{{ tool['function']['name'] }}]{% endfor %}"
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    sample = Conversation(
        [
            *messages((USER, "Rain?")),
            {"role": ANSWER, "content": "", "tool_calls": [call]},
            *messages(("tool", "no"), (ANSWER, "No.")),
        ],
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    (found,) = other.rows(sample)
    assert learned(found) == '{"name": "f", "arguments": {"a": 1}};No.;'
    assert tiny_tokenizer().decode(found.tokens).startswith("[f]user:Rain?;")


def test_templates_that_cannot_be_followed_are_refused(other):
    prompt = other.tokenizer.chat_template
    other.tokenizer.chat_template = None
    for encode in (other.rows, other.answer):
        with pytest.raises(PacelineError, match=r"no chat template(.|\n)*chatml"):
            encode(LONG)
    other.tokenizer.chat_template = prompt + "{% if add_generation_prompt %}<think>{% endif %}"
    with pytest.raises(PacelineError, match="differently from the prompt for it"):
        other.rows(LONG)
    other.tokenizer.chat_template = "{{ raise_exception('no system, please') }}"
    with pytest.raises(PacelineError, match=r"the chat template refuses(.|\n)*no system, please"):
        other.rows(LONG)
