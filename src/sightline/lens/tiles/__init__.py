"""The pass over the map in torch operations, tile by tile, on any device."""
