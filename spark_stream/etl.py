"""`jstream etl` for spark-submit, which starts a file: spark-submit .../spark_stream/etl.py run FILE.

Master, memory, packages and all other settings are those of spark-submit then; the exit code is the command's.
"""

import sys

from spark_stream.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "etl")
    main()
