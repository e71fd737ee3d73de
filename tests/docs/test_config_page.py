"""Every setting is documented with its default, and nothing else is."""

import re
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from thermocline.config import LakeSettings, WalSettings

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text()


def test_the_page_has_every_setting_with_its_default():
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", PAGE, re.MULTILINE))
    known = {
        one.name: one.default.value if isinstance(one.default, Enum) else str(one.default)
        for one in (*fields(WalSettings), *fields(LakeSettings))
        if one.default is not MISSING
    }
    assert told == known
