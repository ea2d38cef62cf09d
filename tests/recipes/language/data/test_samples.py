"""What records of each form say, and which are refused."""

import json

import pytest

from paceline.recipes.language.data.samples import Conversation, Reading, Text

USER, ANSWER, SYSTEM = "user", "assistant", "system"
READING = Reading()


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


HELLO = messages((SYSTEM, "Be kind."), (USER, "Hello."), (ANSWER, "Hi."))
FORMS = {
    "alpaca": (
        {"instruction": "Add.", "input": "1 2", "output": "3", "text": "Add. 1 2: 3"},
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
        [*HELLO, *messages((USER, "And you?"), (ANSWER, "Well."))],
    ),
    "sharegpt": (
        {
            "conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Hi."}],
            "system": "Be kind.",
        },
        HELLO,
    ),
    "sharegpt with roles": ({"conversations": HELLO}, HELLO),
    "openai": ({"messages": HELLO}, HELLO),
    "parts": (
        {
            "messages": [
                *HELLO[:2],
                {
                    "role": ANSWER,
                    "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i."}],
                },
            ]
        },
        HELLO,
    ),
    "prompt and completion": ({"prompt": HELLO[:2], "completion": HELLO[2:]}, HELLO),
    "a welcome first": (
        {"conversations": [{"from": "gpt", "value": "Welcome."}, *HELLO[1:]]},
        HELLO[1:],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_a_conversation_is_read(name):
    record, expected = FORMS[name]
    assert READING.sample(record) == Conversation(expected)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"text": "Once."}, Text("", "Once.")),
        ({"prompt": "1+1=", "completion": "2", "weight": 0.5}, Text("1+1=", "2", 0.5)),
    ],
)
def test_texts_have_no_template(record, expected):
    assert READING.sample(record) == expected


def test_columns_and_roles_may_have_other_names():
    reading = Reading(columns={"instruction": "question", "output": "answer"})
    assert reading.sample({"question": "Why?", "answer": "So.", "output": "no"}) == Conversation(
        messages((USER, "Why?"), (ANSWER, "So."))
    )
    reading = Reading(columns={"conversations": "dialog"}, roles={"bot": ANSWER, "me": USER})
    record = {"dialog": [{"from": "me", "value": "Why?"}, {"from": "bot", "value": "So."}]}
    assert reading.sample(record) == Conversation(messages((USER, "Why?"), (ANSWER, "So.")))
    assert Reading(form="text").sample({"text": "Once.", "messages": []}) == Text("", "Once.")


def test_a_system_prompt_is_for_conversations_that_have_none():
    reading = Reading(system="Be brief.")
    assert reading.sample({"messages": HELLO}) == Conversation(HELLO)
    brief = messages((SYSTEM, "Be brief."))
    assert reading.sample({"messages": HELLO[1:]}) == Conversation(brief + HELLO[1:])


def test_weights_say_what_counts():
    record = {"messages": [*HELLO[1:], HELLO[1], HELLO[2] | {"weight": 0}], "weight": 2}
    found = READING.sample(record)
    assert (found.weight, found.silent) == (2.0, {3})
    assert all("weight" not in message for message in found.messages)
    train = {"messages": [HELLO[1], HELLO[2] | {"train": False}, HELLO[1], HELLO[2]]}
    assert READING.sample(train).silent == {1}


CALL = {"name": "weather", "arguments": {"place": "Ulm"}}
TOOL = {"name": "weather", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    "record",
    [
        {
            "messages": [
                {"role": USER, "content": "Rain?"},
                {
                    "role": ANSWER,
                    "content": None,
                    "tool_calls": [
                        {
                            "type": "function",
                            "function": CALL | {"arguments": json.dumps(CALL["arguments"])},
                        }
                    ],
                },
                {"role": "tool", "content": "no"},
                {"role": ANSWER, "content": "No."},
            ],
            "tools": [{"type": "function", "function": TOOL}],
        },
        {
            "conversations": [
                {"from": "human", "value": "Rain?"},
                {"from": "function_call", "value": json.dumps(CALL)},
                {"from": "observation", "value": "no"},
                {"from": "gpt", "value": "No."},
            ],
            "tools": json.dumps([TOOL]),
        },
    ],
    ids=["openai", "sharegpt"],
)
def test_calls_of_tools_are_as_templates_take_them(record):
    found = READING.sample(record)
    assert found.messages[1] == {
        "role": ANSWER,
        "content": "",
        "tool_calls": [{"type": "function", "function": CALL}],
    }
    assert [one["role"] for one in found.messages] == [USER, ANSWER, "tool", ANSWER]
    assert found.tools == [{"type": "function", "function": TOOL}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"instruction": "Add."}, "output"),
        ({"txt": "Add.", "id": 3}, "just the keys txt, id"),
        ({"conversations": [{"from": "human", "value": "Hello."}]}, "no answer"),
        ({"conversations": [{"from": "bot", "value": "f()"}]}, "the role 'bot'; roles: {bot: user}"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "a function call is no JSON"),
        ({"instruction": "Add.", "output": None}, "None, a NoneType"),
        ({"messages": [{"role": USER, "content": [{"type": "image"}]}]}, "a message has image: text alone"),
        ({"messages": [{"role": ANSWER, "content": "a", "weight": 0.5}]}, "is 0 or 1, and this one is 0.5"),
        ({"messages": "Hello."}, "a list of mappings, and these are 'Hello.', a str"),
        ({"messages": HELLO, "weight": -1}, "from 0 on, and this one is -1"),
        ({"messages": HELLO, "weight": True}, "from 0 on, and this one is True"),
        ({"messages": HELLO, "tools": "{"}, "tools is no JSON"),
        ({"messages": [{"role": ANSWER, "tool_calls": [{}]}]}, "a call of a tool has no name"),
        ({"text": 5}, "a text is a string, and this one is 5, an int"),
        ({"text": "  "}, "empty"),
    ],
)
def test_other_records_are_refused(record, reason):
    with pytest.raises((KeyError, TypeError, ValueError)) as error:
        READING.sample(record)
    assert reason in str(error.value)


# -- pairs and labels ----------------------------------------------------------------------------


EXPECTED = tuple(messages((USER, "Add 1 and 2."), (ANSWER, last)) for last in ("3", "12"))
PAIRS = {
    "alpaca": {"instruction": "Add 1 and 2.", "input": "", "chosen": "3", "rejected": "12"},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "Add 1 and 2."}],
        "chosen": {"from": "gpt", "value": "3"},
        "rejected": {"from": "gpt", "value": "12"},
    },
    "openai": {"chosen": EXPECTED[0], "rejected": EXPECTED[1]},
    "prompt": {"prompt": EXPECTED[0][:1], "chosen": EXPECTED[0][1:], "rejected": EXPECTED[1][1:]},
    "a text and messages": {
        "prompt": "Add 1 and 2.",
        "chosen": EXPECTED[0][1:],
        "rejected": EXPECTED[1][1:],
    },
    "openai beside its prompt": {
        "prompt": "Add 1 and 2.",
        "chosen": EXPECTED[0],
        "rejected": EXPECTED[1],
    },
    "one message": {"prompt": "Add 1 and 2.", "chosen": EXPECTED[0][1], "rejected": EXPECTED[1][1]},
}


@pytest.mark.parametrize("form", PAIRS)
def test_each_form_of_a_pair_is_read(form):
    found = READING.pair(PAIRS[form] | {"margin": 2, "weight": "a column of theirs"})
    assert found == (*map(Conversation, EXPECTED), 2)


def test_pairs_of_texts_share_what_they_begin_with():
    expected = (Text("1 + 2 =", " 3"), Text("1 + 2 =", " 12"), None)
    assert READING.pair({"prompt": "1 + 2 =", "chosen": " 3", "rejected": " 12"}) == expected
    assert READING.pair({"chosen": "1 + 2 = 3", "rejected": "1 + 2 = 12"}) == expected
    for record in ({"chosen": "same", "rejected": "same"}, {"chosen": "long er", "rejected": "long"}):
        with pytest.raises(ValueError, match="empty"):
            READING.pair(record)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": EXPECTED[0][:1], "completion": EXPECTED[0][1:], "label": True},
        {"messages": EXPECTED[0], "label": True},
        {"instruction": "Add 1 and 2.", "output": "3", "kto_tag": True},
    ],
)
def test_each_form_of_a_label_is_read(record):
    assert READING.labelled(record) == (Conversation(EXPECTED[0]), True)


@pytest.mark.parametrize(
    ("read", "record", "reason"),
    [
        (READING.pair, {"instruction": "Add.", "output": "3"}, "chosen"),
        (READING.pair, PAIRS["alpaca"] | {"margin": "much"}, "a margin is a number"),
        (
            READING.pair,
            {"chosen": EXPECTED[0][1:], "rejected": EXPECTED[1][1:]},
            "no prompt with an answer",
        ),
        (READING.labelled, {"instruction": "Add.", "output": "3"}, "kto_tag"),
        (READING.labelled, {"instruction": "Add.", "output": "3", "label": "yes"}, "true or false"),
        (READING.labelled, {"messages": EXPECTED[0][:1], "label": True}, "no prompt with an answer"),
    ],
)
def test_other_pairs_and_labels_are_refused(read, record, reason):
    with pytest.raises((KeyError, TypeError, ValueError)) as error:
        read(record)
    assert reason in str(error.value)
