"""What the gguf package makes of raw blocks.

  dequantize.py DIR    for each DIR/TYPE.bin writes DIR/TYPE.f32, little-endian float32
"""

import pathlib
import sys

import gguf
import numpy as np

for path in pathlib.Path(sys.argv[1]).glob("*.bin"):
    raw = np.fromfile(path, dtype=np.uint8)
    kind = gguf.GGMLQuantizationType[path.stem]
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(raw, kind)
    values.astype("<f4").tofile(path.with_suffix(".f32"))
