"""`python -m spark_stream.cli`: the same as `jstream`."""

from spark_stream.cli.start import main

if __name__ == "__main__":
    main()
