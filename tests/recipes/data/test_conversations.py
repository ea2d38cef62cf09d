"""Conversations of the usual forms, what of them is learned, and how they share rows."""

import copy
import json
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from paceline import PacelineError
from paceline.recipes.data.conversations import (
    ConversationRows,
    Encoded,
    collate,
    conversation_of,
    encode,
    encode_all,
    encode_last,
    pack,
    read_conversations,
    split_off,
)
from paceline.recipes.networks.head_loss import IGNORED

USER, ANSWER, SYSTEM = "user", "assistant", "system"


def encoded(tokens, targets):
    return Encoded(array("i", tokens), array("i", targets))


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


FORMS = {
    "alpaca": (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        messages((USER, "Add.\n1 2"), (ANSWER, "3")),
    ),
    "alpaca with history": (
        {
            "instruction": "And you?",
            "input": "",
            "output": "Well.",
            "system": "Be kind.",
            "history": [["Hello.", "Hi."]],
        },
        messages(
            (SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi."), (USER, "And you?"), (ANSWER, "Well.")
        ),
    ),
    "sharegpt": (
        {
            "conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Hi."}],
            "system": "Be kind.",
        },
        messages((SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi.")),
    ),
    "openai": (
        {"messages": messages((SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi."))},
        messages((SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi.")),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read(name):
    record, expected = FORMS[name]
    assert conversation_of(record) == expected


@pytest.mark.parametrize("lines", [False, True])
def test_files_are_lists_or_lines(lines, tmp_path):
    records = [record for record, _ in FORMS.values()]
    file = tmp_path / "data.json"
    file.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1))
    assert read_conversations(file) == [expected for _, expected in FORMS.values()]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"instruction": "Add."}, "output"),
        ({"text": "Add."}, "instruction"),
        ({"conversations": [{"from": "human", "value": "Hello."}]}, "no answer"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "the role 'function_call'"),
        ({"instruction": "Add.", "output": None}, "NoneType"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "list"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, "weights of messages"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tool calls"),
        ("text", "a str"),
    ],
)
def test_a_record_of_another_form_is_named(record, reason, tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps([FORMS["alpaca"][0], record]))
    with pytest.raises(PacelineError, match=f"record 2 of (.|\n)*{reason}"):
        read_conversations(file)


def test_what_is_no_json_is_reported_with_its_line(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps(FORMS["alpaca"][0]) + '\n\n{"instruction": ')
    with pytest.raises(PacelineError, match=r"data\.json is no JSON(.|\n)* line 3"):
        read_conversations(file)
    with pytest.raises(PacelineError, match=r"nothing\.json cannot be read: No such file"):
        read_conversations(tmp_path / "nothing.json")


def test_separators_of_unicode_and_a_byte_order_mark_are_text(tmp_path):
    record = {"instruction": "Say\u2028so.", "input": "", "output": "\u0085 so"}
    text = "\n".join(json.dumps(record, ensure_ascii=False) for _ in range(2))
    (tmp_path / "data.jsonl").write_text(text, encoding="utf-8-sig")
    expected = messages((USER, "Say\u2028so."), (ANSWER, "\u0085 so"))
    assert read_conversations(tmp_path / "data.jsonl") == [expected] * 2


def test_answers_before_the_first_question_are_left_out():
    turns = [("gpt", "Welcome."), ("human", "Hello."), ("gpt", "Hi.")]
    record = {"conversations": [{"from": role, "value": content} for role, content in turns]}
    assert conversation_of(record) == messages((USER, "Hello."), (ANSWER, "Hi."))


def test_the_last_part_is_split_off():
    assert split_off(list(range(20)), 0.1) == (list(range(18)), [18, 19])
    with pytest.raises(PacelineError, match="1 records are too few"):
        split_off([1], 0.1)


# -- rows ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_every_conversation_is_in_one_row_that_has_room(sizes):
    rows = pack(sizes, 20)
    assert sorted(item for row in rows for item in row) == list(range(len(sizes)))
    filled = [sum(sizes[item] for item in row) for row in rows]
    assert max(filled) <= 20
    assert len([row for row in filled if row <= 10]) <= 1  # two that are half empty would be one


def test_rows_are_filled_up_apart_from_what_they_hold():
    conversations = [encoded([5, 6, 7], [6, 7, IGNORED]), encoded([8, 9], [9, IGNORED])]
    rows = ConversationRows(conversations, 6)
    assert len(rows) == 1
    batch = collate([rows[0]], 6)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0]]
    assert batch["targets"].tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    alone = ConversationRows(conversations)
    assert collate([alone[0], alone[1]])["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]


def test_conversations_without_anything_to_learn_are_left_out():
    assert len(ConversationRows([encoded([5, 6], [IGNORED] * 2), encoded([5, 6], [6, IGNORED])])) == 1
    with pytest.raises(PacelineError, match="no conversation has an answer"):
        ConversationRows([encoded([5, 6], [IGNORED] * 2)])


# -- with transformers ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("transformers")
    from paceline.recipes.data.tiny_models import tiny_tokenizer

    return tiny_tokenizer()


LONG = messages(
    (SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi  there."), (USER, "Why?"), (ANSWER, "So.")
)


def test_only_answers_are_learned_each_with_its_end(tokenizer):
    (found,) = encode(tokenizer, LONG, 1000)
    text = tokenizer.apply_chat_template(LONG, tokenize=False)
    assert tokenizer.decode(found.tokens) == text
    learned = [target for target in found.targets if target != IGNORED]
    assert tokenizer.decode(learned) == "Hi  there.<|im_end|>\nSo.<|im_end|>\n"
    for token, target in zip(found.tokens[1:], found.targets, strict=False):
        assert target in (token, IGNORED)
    assert found.targets[-1] == IGNORED


def test_what_is_too_long_is_cut_off(tokenizer):
    (whole,), (cut,) = encode(tokenizer, LONG, 1000), encode(tokenizer, LONG, 30)
    assert cut.tokens == whole.tokens[:30]
    assert list(cut.targets) == [*whole.targets[:29], IGNORED]


@pytest.fixture
def other(tokenizer):
    """A tokenizer whose template a test may replace."""
    return copy.deepcopy(tokenizer)


def test_where_earlier_answers_change_each_has_a_row(other, tokenizer):
    """Qwen3's template shows thoughts in the last answer alone."""
    thought = "{% if message['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    other.chat_template = other.chat_template.replace(
        "{{ message['content'] }}", thought + "{{ message['content'] }}"
    )
    rows = encode(other, LONG, 1000)
    learned = [tokenizer.decode([target for target in row.targets if target != IGNORED]) for row in rows]
    assert learned == ["<think></think>Hi  there.<|im_end|>\n", "<think></think>So.<|im_end|>\n"]
    assert tokenizer.decode(rows[1].tokens).count("<think>") == 1


def test_templates_that_cannot_be_followed_are_refused(other):
    prompt = other.chat_template
    other.chat_template = None
    for one in (encode, encode_last):
        with pytest.raises(PacelineError, match="no chat template"):
            one(other, LONG, 100)
    other.chat_template = prompt + "{% if add_generation_prompt %}<think>{% endif %}"
    with pytest.raises(PacelineError, match="differently from the prompt for it"):
        encode(other, LONG, 100)
    other.chat_template = "{{ raise_exception('no system, please') }}"
    with pytest.raises(
        PacelineError, match=r"conversation 1: the chat template refuses(.|\n)*no system, please"
    ):
        encode_all(other, [LONG], 100, encode)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_conversations_do_not_see_each_other(attention, tokenizer):
    from paceline.recipes.data.tiny_models import tiny_conversations, tiny_llama

    torch.manual_seed(0)
    model = tiny_llama().double().eval()
    model.set_attn_implementation(attention)
    conversations = [row for one in tiny_conversations()[0][:7] for row in encode(tokenizer, one, 150)]
    packed = ConversationRows(conversations, 400)
    assert len(packed) < 4

    def total(rows, length=0):
        batch = collate(rows, length)
        targets = batch.pop("targets")
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits
        return F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    alone = sum(total([[one]]) for one in conversations)
    torch.testing.assert_close(total(list(packed), 400), alone, rtol=1e-9, atol=0)
    torch.testing.assert_close(total([[one] for one in conversations]), alone, rtol=1e-9, atol=0)
