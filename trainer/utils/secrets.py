"""Values that look like secrets, kept out of every file of a run."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

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
_SECRET_AT_THE_END = {"authorization", "auth", "signature", "sig"}
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
_PASSWORD = re.compile(r"(://[^/?#\s:@'\"]*:)[^/?#\s'\"]+(?=@)")
_USER = re.compile(
    r"(https?://)[^/?#\s:@'\"]+(?=@)", re.IGNORECASE
)  # a token alone; ssh://git@host has none
_BEARER = re.compile(r"\b(bearer\s+)(?=\S*\d)[^\s'\",;]{6,}", re.IGNORECASE)
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>[A-Za-z][\w.-]*)(?P<between>["']?\s*[=:]\s*)"""
    r"""(?:(?P<quote>["'])(?P<quoted>(?:(?!(?P=quote))[^\n])+)(?P=quote)"""
    r"""|(?P<scheme>(?:(?:bearer|basic|digest|token)\s+)?)(?P<bare>[^\s&;,'"<>{}()\[\]]+))""",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"\b(?:hf_\w{20,}|gh[opsru]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|sk-(?=[\w-]*\d)[\w-]{20,}|A[KS]IA[A-Z0-9]{16}|eyJ[\w-]{10,}\.eyJ[\w-]+\.[\w-]+)"
)
"""Tokens that say themselves what they are: of Hugging Face, GitHub, GitLab, Slack, OpenAI, AWS; a JWT."""
_OPTION = re.compile(r"(-{0,2}([A-Za-z][\w.-]*)\+?)=(.*)", re.DOTALL)


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
    if words and words[-1] in _SECRET_AT_THE_END:
        return True
    if not words or words[-1] not in ("key", "token"):
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "token":
        return before not in _NO_SECRET or bool(_LOOKS_RANDOM.fullmatch(value))
    return before in _BEFORE_KEY or bool(_LOOKS_RANDOM.fullmatch(value))


def masked(value: Any, name: str = "") -> Any:
    """Plain data with ``***`` in the place of secrets, by their names and as ``masked_text`` finds them.

    Example:
        >>> masked({"lr": 0.1, "hub": {"token": "hf_1"}, "url": "db://me:pw@host"})
        {'lr': 0.1, 'hub': {'token': '***'}, 'url': 'db://me:***@host'}
    """
    if isinstance(value, str):
        return MASK if is_secret(name, value) else masked_text(value)
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, name) for item in value]
    return value


def masked_text(text: str) -> str:
    """A text with ``***`` in the place of the secrets in it: for logs, messages and addresses.

    These are user and password in an address, values whose name looks like a secret (``token=...``, in a
    query too, ``"password": "..."``, ``Authorization: Bearer ...``), and tokens of a known form.

    Example:
        >>> masked_text("GET https://me:pw@host/a?page=2&sig=abc failed, {'api_key': 'k'}")
        "GET https://me:***@host/a?page=2&sig=*** failed, {'api_key': '***'}"
    """
    text = _PASSWORD.sub(rf"\g<1>{MASK}", text)
    text = _USER.sub(rf"\g<1>{MASK}", text)
    return _KNOWN.sub(MASK, _BEARER.sub(rf"\g<1>{MASK}", _without_named(text)))


def _without_named(text: str) -> str:
    parts, at = [], 0
    while found := _NAMED.search(text, at):
        quote, scheme = found["quote"] or "", found["scheme"] or ""
        value = found["quoted"] or found["bare"]
        # "password: str" is an annotation, "sig = x" code or prose: without quotes only what may be random.
        plain = not quote and found["between"] != "=" and not scheme and not re.search(r"\d", value)
        secret = not plain and is_secret(found["name"], value)
        parts += [text[at : found.end("between")], f"{quote}{scheme}{MASK}{quote}" if secret else ""]
        at = found.end() if secret else found.end("between")  # url=https://host?token=...: names in values
    return "".join([*parts, text[at:]])


def holds_secret(name: str, value: Any) -> bool:
    """Whether a value is a secret, or has one in it."""
    if isinstance(value, Namespace):
        return holds_secret(name, vars(value))
    if isinstance(value, Mapping):
        return any(holds_secret(str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_secret(name, item) for item in value)
    return isinstance(value, str) and masked(value, name) != value


def masked_command(arguments: Sequence[Any]) -> list[str]:
    """A command's words, with the values of ``--token=x``, ``--token x`` and ``token=x`` masked.

    In a word or value that is a mapping or a list in YAML or JSON, the secrets are masked; one that cannot
    be read is masked whole where it names a secret.

    Example:
        >>> masked_command(["train.py", "--api-key", "abc", "--lr", "0.1", "hub.token=hf_1"])
        ['train.py', '--api-key', '***', '--lr', '0.1', 'hub.token=***']
    """
    found: list[str] = []
    name = ""
    for word in map(str, arguments):
        option = _OPTION.fullmatch(word)
        if option:
            found.append(f"{option[1]}={_masked_value(option[3], option[2])}")
        else:
            found.append(word if word.lower() in ("bearer", "basic") else _masked_value(word, name))
        # An option, or a header that no quotes keep together: ``Authorization: Bearer abc``.
        is_name = (word.startswith("-") and not option) or word.endswith(":")
        scheme = name if word.lower() in ("bearer", "basic") else ""
        name = word.lstrip("-").rstrip(":") if is_name else scheme
    return found


def _read(text: str) -> Any:
    """JSON, which YAML reads too, and takes a hundred times as long."""
    try:
        return json.loads(text)
    except ValueError:
        return yaml.safe_load(text)


def _masked_value(text: str, name: str) -> str:
    """A value of a command, which may be a mapping or a list."""
    if text.lstrip()[:1] not in ("{", "["):
        return str(masked(text, name))
    try:
        value = _read(text)
    except yaml.YAMLError:
        names = re.findall(r"[A-Za-z_][\w-]*", text)
        return MASK if any(is_secret(one, text) for one in names) else str(masked(text, name))
    if not isinstance(value, (dict, list)) or not holds_secret(name, value):
        return text
    return yaml.safe_dump(
        masked(value, name), default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20
    ).rstrip("\n")
