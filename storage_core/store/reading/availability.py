"""Which messages can be read now: before a query plans a batch that it could not read.

A volume that is away may be the only one that has a block. Whether that is so is worked out from the manifest for all
blocks at once; only those that no volume at hand is known to have are looked for.
"""

from collections.abc import Sequence

import numpy as np

from storage_core.errors import DataLossError, UnavailableError
from storage_core.metadata.state import StoreState, StreamState
from storage_core.store.environment import Environment
from storage_core.store.reading.plan import whole_blocks
from storage_core.store.reading.reading import ask_block
from storage_core.store.volume.volumes import Volume


def first_away(
    state: StoreState, stream: StreamState, volumes: Sequence[Volume], first: int, end: int, env: Environment
) -> tuple[int, str] | None:
    """Return the first sequence of [first, end) that cannot be read while a volume is away, and why; None: all can.

    Raises ProcessError.
    """
    at_hand = {volume.volume_id for volume in volumes if volume.identity is not None}
    present_mask = sum(1 << position for position, volume_id in enumerate(stream.placement) if volume_id in at_hand)
    rows = stream.blocks.rows[stream.blocks_in(first, end)]
    doubtful = rows[(rows["holders"] & np.uint32(present_mask)) == 0]
    for block in whole_blocks(state, stream, doubtful, volumes):
        try:
            ask_block(block, lambda reader: None, env)
        except UnavailableError as error:
            return max(first, block.first), str(error)
        except DataLossError:  # every volume was asked: that is for the reader to say, or to go on past
            continue
    return None
