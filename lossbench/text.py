"""Text from elsewhere, made safe to print and to use in a path."""

import json
import re
from typing import Any

from lossbench.errors import UsageError

# Control codes but tab and line feed, soft hyphens, bidirectional and other invisible codes, lone surrogates, tags. The
# zero-width joiners stay: some scripts need them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_LONGEST_NAME = 200


def clean(text: str) -> str:
    r"""`text` with what a terminal or a reader could not see as an escape of JSON; tabs and line feeds stay.

    >>> clean("\x1b[31mred\u202e")
    '\\u001b[31mred\\u202e'
    """
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def clean_all(value: Any) -> Any:
    """A value of JSON with every text in it `clean`."""
    if isinstance(value, dict):
        return {clean_all(key): clean_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_all(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def spreadsheet_cell(value: Any) -> Any:
    """`value` as a cell that spreadsheets take for text where it is text, never for a formula."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\n")) else text


def path_component(name: object, what: str) -> str:
    """`name`, where it can be the name of one file or folder. Raises UsageError naming `what` it is.

    >>> path_component("quick-1a2b3c", "recipe name")
    'quick-1a2b3c'
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise UsageError(f"{what} {clean(repr(name))[:80]}: give a name of 1 to {_LONGEST_NAME} characters")
    if name in (".", "..") or set(name) & set("/\\:\n\t") or clean(name) != name:
        raise UsageError(f"{what} {clean(repr(name))}: give one name, without / \\ : or control characters")
    return name
