"""A folder that many cases begin with: made once, put back before each."""

import shutil
from pathlib import Path


class Template:
    """A folder as it is now. Stores know where their volumes are, so it is put back in its place, and nowhere else."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._kept = folder, folder.with_name(f"{folder.name} as it was")
        shutil.copytree(folder, self._kept)

    def put_back(self) -> None:
        shutil.rmtree(self._folder)
        shutil.copytree(self._kept, self._folder)
