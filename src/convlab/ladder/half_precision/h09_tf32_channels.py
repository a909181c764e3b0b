"""h09: any number of channels in TF32. What h06, h07 and h08 do for 16 bits, for float32.

Source: ours, beyond the paper. h05 takes multiples of 8 input and 16 output channels, and reads a
place at a time. Other layers go to t07, whose threads gather the windows number by number, from a
copy with the channels first. But h08's functions ask the format of the numbers for all that depends
on their type (:mod:`convlab.ladder.half_precision.panel_format`), so they serve float32 too:

- **Padded pixels** as in h08: a pixel of four numbers is 16 bytes, one product has 8 terms, and a
  slice has 32. A thread that copies loads its four numbers one by one.
- **Any output channels** as in h07: those that come in fours are stored 16 bytes a lane, others
  leave through shared memory, or above 256 one by one.
- **Rows of windows** as in h06, where the problem has no padding along W.

The products are h05's: the tensor cores cut each factor to TF32.
"""

from __future__ import annotations

from convlab.ladder.half_precision.h01_panels import HOPPER
from convlab.ladder.half_precision.h08_padded_input import (
    prepare,
    production_tile,
    why_not_walked,
)
from convlab.ladder.stage import Stage, Tile, Tiles

STAGE = Stage(
    __name__,
    title="Any channels in TF32: padded pixels, and outputs by way of shared memory",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h05_tf32_panels", "h08_padded_input"),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 32, 8, 2),
        model=Tile(64, 64, 32, 16, 2),
        production=production_tile,
    ),
    precision="tf32",
    cuts_to_tf32=True,
    requires=HOPPER,
    channels_last=True,
    limit=why_not_walked,
)
