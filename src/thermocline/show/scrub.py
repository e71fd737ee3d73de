"""Removes from texts for clients what only the node may know: keys, and the folders of paths.

In:   texts of errors and warnings
Out:  the same without keys, and with the last part only of each absolute path
"""

import re

from thermocline.names import API_KEY_IN_TEXT

TEXT_CHARACTERS_MAX = 2_000
_KEY = re.compile(API_KEY_IN_TEXT)
_WORD = r"[^\s/'\"`,;:()\[\]{}<>]"
_PATH = re.compile(rf"(?<![\w.:<~/-])/(?!(?:api|health)/)(?:{_WORD}+/)+(?={_WORD})")


def hide_keys(text: str) -> str:
    """Return the beginning of a text with keys removed."""
    return _KEY.sub("tck_...", text[:TEXT_CHARACTERS_MAX])


def scrub(text: str) -> str:
    """Return a text with keys and the folders of absolute paths removed."""
    cut = text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
    return _PATH.sub(".../", _KEY.sub("tck_...", cut))
