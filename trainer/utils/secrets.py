"""Values that look like secrets, kept out of every file of a run."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_SECRET = {
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "jwt",
}
_BEFORE_KEY = {
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "account",
    "service",
    "ssh",
    "license",
    "wandb",
}
# Of a tokenizer, as in pad_token="<pad>".
_NO_SECRET = {"pad", "bos", "eos", "unk", "sep", "cls", "mask", "image", "start", "end", "special", "stop"}
_LOOKS_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[\w+/=.:-]{16,}")
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_OPTION = re.compile(r"(-{0,2}([A-Za-z][\w.-]*))=(.*)", re.DOTALL)


def is_secret(name: str, value: Any) -> bool:
    """Whether a named value looks like a key, token, secret or password: strings only.

    Example:
        >>> is_secret("api_key", "abc"), is_secret("pad_token", "<pad>"), is_secret("num_keys", 3)
        (True, False, False)
    """
    if not isinstance(value, str) or not value:
        return False
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    if _SECRET & set(words):
        return True
    if not words or words[-1] not in ("key", "token"):
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "token":
        return before not in _NO_SECRET or bool(_LOOKS_RANDOM.fullmatch(value))
    return before in _BEFORE_KEY or bool(_LOOKS_RANDOM.fullmatch(value))


def masked(value: Any, name: str = "") -> Any:
    """Plain data with ``***`` in the place of secrets, and of passwords in addresses.

    Example:
        >>> masked({"lr": 0.1, "hub": {"token": "hf_1"}, "url": "db://me:pw@host"})
        {'lr': 0.1, 'hub': {'token': '***'}, 'url': 'db://me:***@host'}
    """
    if isinstance(value, str):
        return MASK if is_secret(name, value) else _IN_URL.sub(rf"\g<1>{MASK}", value)
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    return value


def holds_secret(name: str, value: Any) -> bool:
    """Whether a value is a secret, or has one in it."""
    if isinstance(value, Namespace):
        return holds_secret(name, vars(value))
    if isinstance(value, Mapping):
        return any(holds_secret(str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_secret(name, item) for item in value)
    return is_secret(name, value) or (isinstance(value, str) and bool(_IN_URL.search(value)))


def masked_command(arguments: Sequence[Any]) -> list[str]:
    """A command's words, with the values of ``--token=x``, ``--token x`` and ``token=x`` masked.

    Example:
        >>> masked_command(["train.py", "--api-key", "abc", "--lr", "0.1", "hub.token=hf_1"])
        ['train.py', '--api-key', '***', '--lr', '0.1', 'hub.token=***']
    """
    found: list[str] = []
    name = ""
    for word in map(str, arguments):
        option = _OPTION.fullmatch(word)
        if option:
            found.append(f"{option[1]}={masked(option[3], option[2])}")
        else:
            found.append(masked(word, name))
        name = word.lstrip("-") if word.startswith("-") and not option else ""
    return found
