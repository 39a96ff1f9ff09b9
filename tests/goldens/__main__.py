"""``python -m tests.goldens``: draw every golden picture anew."""

from tests import goldens

goldens.renew()
print(f"drawn: {len(list(goldens.FOLDER.glob('*.svg')))} pictures in {goldens.FOLDER}")
