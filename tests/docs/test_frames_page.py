"""The page about data frames: its programs run in the order of the page, in one process."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()
PROGRAM = "".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
SAID = """[('attic', 25.0), ('cellar', 15.0)]
1.0
[('attic', 3), ('cellar', 3)]
[{'sensor': 'attic', 'mean': 22.5}, {'sensor': 'cellar', 'mean': 12.5}]
"""


def test_the_programs_of_the_page_print_what_the_rows_say(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID
