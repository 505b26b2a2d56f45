"""Replace what is private in a text: secrets, values of variables, hosts, users, addresses. Pure.

A name has the same replacement everywhere, so that a reader still sees which host is which.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REMOVED = "<removed>"
_LEAST_VALUE = 8
# All repetitions have bounds: a line may be one word of 32 KiB.
_SECRET_WORD = (
    r"(?:secret|token|passw|passphrase|pwd|credential|auth|api[_-]?key|access[_-]?key|private|"
    r"signature|cookie)"
)
_VALUE = r"(\"[^\"]*\"|'[^']*'|\S+)"

# Times and names of C++ look like some of these, so ipaddress has the last word.
_MAYBE_ADDRESS = re.compile(
    r"(?<![\w:.])(?=[0-9a-fA-F.]{0,8}:)[0-9a-fA-F:.]{1,44}[0-9a-fA-F](?![\w:])"
)
_LEAST_ADDRESS = 5

# In this order: what is longer, or surer to be a secret, comes first.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # The end of a key whose beginning was cut off.
    (re.compile(r"\A(?:(?!-----BEGIN )[\s\S])*?-----END [^-\n]*-----"), REMOVED),
    (re.compile(r"-----BEGIN [\s\S]*?(?:-----END [^-]*-----|\Z)"), REMOVED),
    (re.compile(r"(?i)(authorization[\"']?\s{0,8}[=:]\s{0,8}[\"']?[\w-]{1,32})\s+[^\s\"']+"),
     rf"\1 {REMOVED}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    # Also the names of the variables of clouds, such as AWS_SECRET_ACCESS_KEY and WANDB_API_KEY.
    (re.compile(rf"(?i)({_SECRET_WORD}[\w.-]{{0,64}}|\b\w{{0,64}}KEY|(?:\b|_)PASS)"
                rf"([\\\"']{{0,2}}\s{{0,8}}[=:]\s{{0,8}}){_VALUE}"),
     rf"\1\2{REMOVED}"),
    # Also as a list prints it: '--password', 'word'.
    (re.compile(rf"(?i)(?<![\w-])(--?[\w.-]{{0,64}}(?:{_SECRET_WORD}|key|pass)[\w.-]{{0,64}})"
                rf"([\"']?,?\s{{1,8}})(?![\"']?-){_VALUE}"),
     rf"\1\2{REMOVED}"),
    (re.compile(r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}://)[^\s\"<>]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"), REMOVED),
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|ASIA|eyJ)[\w.-]{8,}"),
     REMOVED),
    (re.compile(r"\b[0-9a-fA-F]{24,}\b"), REMOVED),
    (re.compile(r"(?<![\w/+.-])(?=[\w+/=]*\d)(?=[\w+/=]*[A-Z])(?=[\w+/=]*[a-z])[\w+]{28,}={0,2}"),
     REMOVED),
    (re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"), "<address>"),
    (re.compile(r"(?<![\w.-])(?:/(?:home|Users|export/home)/[^/\s\"':,)]+|/root)(?=[/\s\"':,)]|$)"),
     "~"),
)  # fmt: skip

# How Horovod's messages name hosts.
_HOST = r"([A-Za-z0-9][\w.-]*)"
_HOSTS = (
    re.compile(rf"\branks? [\d, to]+ (?:of \d+ )?on {_HOST}"),
    re.compile(rf"\b(?:rank|worker|node) \d+ \({_HOST}[):,]"),
    re.compile(rf"\({_HOST}:\d+\)"),
    re.compile(rf"\({_HOST} \(process \d+\)\)"),
    re.compile(rf"\b(?:host|node \d+ on|agent on|worker on|processes? on) {_HOST}"),
    re.compile(rf"(?m)^(?:horovodrun: )?{_HOST}: (?:host|the host|the agent)\b"),
    re.compile(rf"(?m)^(?:horovodrun: )?{_HOST} may not join"),
)
_NO_HOSTS = frozenset(
    ("localhost", "the", "a", "this", "that", "which", "it", "all", "other", "has")
)


class Redaction:
    """What is to be replaced in all texts of one report.

    Args:
        values: texts that must not appear, such as values of variables; short ones are left,
            as they say nothing and would hit other words.
        hosts: names of hosts that are known to be ones.
        users: names of users.
        homes: folders that become ``~``.
    """

    def __init__(
        self,
        values: Iterable[str] = (),
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        homes: Iterable[str] = (),
    ) -> None:
        self._values = _longest_first(each for each in values if len(each) >= _LEAST_VALUE)
        self._homes = _longest_first(each.rstrip("/") for each in homes)
        self._users = _longest_first(users)
        self._hosts: dict[str, str] = {}
        for name in _longest_first(hosts):
            self._add_host(name)

    def apply(self, text: str) -> str:
        """Return a text without what is private, as far as it can be told."""
        for pattern in _HOSTS:
            for match in pattern.finditer(text):
                self._add_host(match[1].rstrip(".-"))
        for value in self._values:
            text = text.replace(value, REMOVED)
        for home in self._homes:
            text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        text = _MAYBE_ADDRESS.sub(_without_address, text)
        for name in _longest_first(self._hosts):
            text = _replace_word(text, name, self._hosts[name])
        for user in self._users:
            text = _replace_word(text, user, "<user>")
        return text

    def _add_host(self, name: str) -> None:
        # A number would be replaced in versions and times, too.
        if name and name.lower() not in _NO_HOSTS and not name.isdecimal():
            short = name.split(".")[0]
            number = self._hosts.get(short) or f"host-{len(set(self._hosts.values())) + 1}"
            self._hosts.setdefault(name, number)
            if not short.isdecimal():
                self._hosts.setdefault(short, number)


def values_to_remove(environ: Mapping[str, str], is_known: Callable[[str], bool]) -> frozenset[str]:
    """Return the values of variables that no text may contain: of all that are not known.

    Args:
        environ: the variables.
        is_known: whether the values of a variable are no secret.
    """
    return frozenset(value for name, value in environ.items() if value and not is_known(name))


def _without_address(match: re.Match[str]) -> str:
    text = match[0]
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return text
    is_one = len(text) >= _LEAST_ADDRESS and any(map(str.isdecimal, text))
    return "<address>" if is_one else text


def _replace_word(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"(?i)(?<![\w.-]){re.escape(word)}(?![\w-])", replacement, text)


def _longest_first(words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word}, key=lambda word: (-len(word), word))
