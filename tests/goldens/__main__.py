"""``python -m tests.goldens``: draw the golden pictures again."""

import json

from tests.goldens import FOLDER, VERSIONS, pictures, versions

for name, svg in pictures().items():
    (FOLDER / name).write_text(svg, encoding="utf-8")
VERSIONS.write_text(json.dumps(versions(), indent=2) + "\n")
