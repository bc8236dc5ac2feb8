"""Pointsman at an earlier version: what still runs while this one is rolled out, and again after a rollback.

`earlier.tar.xz` has its four rooms as they were on 29 November 2026 (0cf5f99), but for one file that is as it was:

    git archive COMMIT gateway consumers router policies | tar -x -C FOLDER --exclude gain.npz
    tar --sort=name --owner=0 --group=0 -cJf tests/acceptance/earlier.tar.xz -C FOLDER .

Each release becomes the earlier version of the next.
"""

import shutil
import tarfile
from pathlib import Path

from tests.acceptance.processes import ROOT

ARCHIVE = Path(__file__).with_name("earlier.tar.xz")
AS_IT_WAS = Path("router/gain.npz")


def unpacked(folder: Path) -> Path:
    """A folder that processes of the earlier version can start in."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    shutil.copyfile(ROOT / AS_IT_WAS, folder / AS_IT_WAS)
    return folder
