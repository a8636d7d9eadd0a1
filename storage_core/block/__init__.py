"""The block file: header, frames, footer; one codec, one writer, one reader. Source: docs/formats/block.md."""
