"""Draw which node of the demo's broken cluster has which message: docs/images/drift.svg. Prints it.

python scripts/drift_picture.py > docs/images/drift.svg
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spark_stream import rescue
from spark_stream.demo.folder import STREAM, unpack_nodes
from spark_stream.pictures import replica_map_svg

WIDTH = 840  # pixels


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        drift = rescue.compare(rescue.open(unpack_nodes(Path(work))), STREAM)
    print(replica_map_svg(drift, WIDTH, alone=True))


if __name__ == "__main__":
    main()
